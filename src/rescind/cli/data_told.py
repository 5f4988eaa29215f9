"""What `rescind data` says of imported rows: ratings, titles, repeats, and their own split."""

from __future__ import annotations

from typing import Any


def rated(data: Any) -> str:
    """Return the range of the ratings, and who reads them."""
    if data.rating is None:
        return "none"
    low, high = float(data.rating.min()), float(data.rating.max())
    return (
        f"{low:,.10g} to {high:,.10g}; read by KernelGram alone (unlike below 1, or liking "
        f"above 0), and by methods of your own that ask (docs/methods.md)"
    )


def titled(data: Any) -> str:
    """Return how many items have a title."""
    if data.titles is None:
        return "none"
    return f"{int((data.titles != '').sum()):,} of {len(data.items):,} items have one"


def repeated(rows: int) -> str:
    """Return what happens to rows whose pair has another row already."""
    return (
        f"{'1 row repeats' if rows == 1 else f'{rows:,} rows repeat'} a (user, item) pair: all "
        f"rows are kept, learning counts a pair once (its earliest time, its best rating)"
    )


def misses_told(about: dict[str, Any]) -> str:
    """Return what is said of held-out pairs that are in train, too; empty if there are none."""
    from rescind.data.known_pairs import known_pairs_told

    return known_pairs_told(about.get("held_out_pairs") or {})


def rows_of_split(data: Any) -> dict[str, int]:
    """Count the rows of each part of the split that came with the data; empty if none did."""
    from rescind.data import TEST, TRAIN, VALID

    if data.split is None:
        return {}
    labels = {"train": TRAIN, "valid": VALID, "test": TEST}
    return {part: int((data.split == label).sum()) for part, label in labels.items()}


def split_told(rows: dict[str, int]) -> str:
    """Return which split is used: the one that came with the data. rows: of each part"""
    counts = ", ".join(f"{count:,} {part}" for part, count in rows.items())
    told = f"came with the data: {counts} rows"
    return told if rows["valid"] else f"{told}. Without valid rows, the last round of a run counts"
