"""Reproduction of the papers: exhibits, figures, leaderboards, pages and departures."""
