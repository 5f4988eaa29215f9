"""Words for numbers in what is printed."""

from __future__ import annotations


def count_of(number: int | str, thing: str, things: str = "") -> str:
    """Return "1 round", "1,500 rounds", or of a band "10-100 rounds".

    thing: in the singular    things: in the plural, if that is not only an s
    """
    shown = number if isinstance(number, str) else f"{number:,}"
    return f"{shown} {thing if number == 1 else things or f'{thing}s'}"


def people_of(number: int | str) -> str:
    """Return "1 person", "1,500 people"."""
    return count_of(number, "person", "people")


def some_of(some: int, every: int) -> str:
    """Return "this item is", "1 of these 3 items is", "2 of these 3 items are"."""
    return (
        "this item is"
        if every == 1
        else f"{some:,} of these {every:,} items {'is' if some == 1 else 'are'}"
    )
