"""Versions of the tables, in order. A released version is never changed; a new one is added."""
