"""The three papers again: exhibits, figures, leaderboards, pages, departures, reproduction."""
