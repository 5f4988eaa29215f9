"""`rescind data describe`: what a dataset is like, in lines or as JSON."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer
from typer import Argument, Option

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Name = Annotated[str, Argument(help="A name from `rescind data list`.")]
COUNTED = ("times", "ratings", "per user", "titles", "split", "method")
"""What is said of imported data."""


def describe_dataset(name: Name, json: Json = False) -> None:
    """Describe a dataset: size, terms of use, source, and what methods need on it.

    Of imported data also its times, ratings, rows per user, and the method that `rescind run`
    would choose.

    Example: rescind data describe ml-1m
    """
    from rescind.data import describe

    about = describe(name)
    if own := about["kind"] == "imported":  # it is here, so it can be counted
        about |= _counted(name)
    else:
        about["memory"] = _memory(about)
    if json:
        print_json(about)
        return
    lines = [("size", size(about))]
    lines += [("terms", about["terms"] or "not stated")]
    lines += [("publisher", url) for url in about["publisher"]]
    lines += [("wheel", about["wheel"])] if about["wheel"] else []
    lines += [("variant", f"{variant}: {what}") for variant, what in about["variants"].items()]
    lines += [(what, about[what]) for what in COUNTED if what in about]
    lines += problems(about)
    lines += [("digest", about["digest"] or "not known")]
    lines += [("note", about["notes"])] if about["notes"] else []
    typer.echo(f"{about['title']} ({about['name']})")
    for what, text in lines:
        typer.echo(f"  {what:9}  {text}")
    for method, need in (about["memory"] or {}).items():
        time = f", about {about['seconds']:,.0f} CPU s to solve" if method == "Gram" else ""
        typer.echo(f"  {'memory':9}  {method:<12} up to {need / 1e9:.1f} GB{time}")
    get = "" if own else f"rescind data get {name}; "
    typer.echo(f"\nNext: {get}rescind run --data {name}")


def _counted(name: str) -> dict[str, Any]:
    """Return what imported data is like, and the method to begin with."""
    import numpy as np

    from rescind.core.memory import free_memory
    from rescind.data import load
    from rescind.data.split import known_pairs
    from rescind.experiments.advice import advise, memory_of_methods, ties_of
    from rescind.experiments.needs import Sizes
    from rescind.methods.additive._solve import seconds_to_solve

    data: Any = load(name)
    sizes, each = Sizes.of(data), np.bincount(data.user, minlength=1)
    ties = ties_of(data)
    advice = advise(sizes, ties, free_memory())
    low, middle, high = (int(np.quantile(each[each > 0], part)) for part in (0, 0.5, 1))
    times = "none"
    if ties is not None:
        times = f"{_day(data.time.min())} to {_day(data.time.max())}"
        times += f", {100 * ties:.0f} % of the rows have the time of another item of their user"
    return {
        **data.size,
        "digest": data.digest,  # without rows that were erased, as the size
        "times": times,
        "ratings": _rated(data),
        "per user": f"{low:,} to {high:,} rows, half of the users have {middle:,} or more",
        "titles": titled(data),
        **({"split": in_words(parts)} if (parts := rows_of_split(data)) else {}),
        "repeats": data.repeats,
        "held_out_pairs": known_pairs(data),
        "method": f"{advice.method}, because: {'; '.join(advice.why[1:])}",
        "memory": memory_of_methods(sizes, ties is not None),
        "seconds": max(seconds_to_solve(sizes.items), 1),
    }


def _day(seconds: Any) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(int(seconds), UTC).date().isoformat()
    except (OverflowError, OSError, ValueError):  # places of a sequence, or no time of our era
        return f"{int(seconds):,}"


def _memory(about: dict[str, Any]) -> dict[str, int] | None:
    """Return the bytes that each method needs that can learn from it; None for graphs."""
    if not {"users", "items", "rows"} <= about.keys():
        return None
    from rescind.experiments.advice import memory_of_methods
    from rescind.experiments.needs import Sizes
    from rescind.methods.additive._solve import seconds_to_solve

    about["seconds"] = max(seconds_to_solve(about["items"]), 1)
    sizes = Sizes(about["users"], about["items"], about["rows"])
    return memory_of_methods(sizes, about.get("times") != "none")


def problems(about: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what repeats, and what no method can find."""
    from rescind.data.split import misses

    lines = [("repeats", repeated(about["repeats"]))] if about.get("repeats") else []
    return lines + ([("misses", t)] if (t := misses(about.get("held_out_pairs", {}))) else [])


def repeated(rows: int) -> str:
    """Return how many rows repeat a pair, in words."""
    return f"{rows:,} rows repeat a (user, item) pair, which learning counts once"


def _rated(data: Any) -> str:
    if data.rating is None:
        return "none"
    low, high = float(data.rating.min()), float(data.rating.max())
    return f"{low:,.10g} to {high:,.10g}; read by KernelGram alone (docs/methods.md)"


def titled(data: Any) -> str:
    """Return how many items have a title."""
    if data.titles is None:
        return "none"
    return f"{int((data.titles != '').sum()):,} of {len(data.items):,} items have one"


def rows_of_split(data: Any) -> dict[str, int]:
    """Count the rows of each part of the split that came with the data; empty if none did."""
    from rescind.data import TEST, TRAIN, VALID

    labels = {"train": TRAIN, "valid": VALID, "test": TEST} if data.split is not None else {}
    return {part: int((data.split == label).sum()) for part, label in labels.items()}


def in_words(parts: dict[str, int]) -> str:
    """Return the split that came with the data. parts: rows of each"""
    counts = ", ".join(f"{count:,} {part}" for part, count in parts.items())
    last = "" if parts["valid"] else " (without valid rows, the last round of a run counts)"
    return f"came with the data: {counts} rows{last}"


def size(about: dict[str, Any]) -> str:
    """Return the counts of a dataset in words."""
    words = ("users", "items", "rows", "nodes", "edges", "features", "classes")
    return ", ".join(f"{about[word]:,} {word}" for word in words if word in about)


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    typer.echo(json_module.dumps(value, ensure_ascii=False))
