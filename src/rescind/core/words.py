"""Words for numbers in what is printed."""

from __future__ import annotations


def count_of(number: int | str, thing: str) -> str:
    """Return "1 round", "1,500 rounds", or of a band "10-100 rounds". thing: in the singular"""
    shown = number if isinstance(number, str) else f"{number:,}"
    return f"{shown} {thing}{'' if number == 1 else 's'}"


def people_of(number: int) -> str:
    """Return "1 person", "1,500 people"."""
    return "1 person" if number == 1 else f"{number:,} people"
