"""Which method to begin with on some data, why, and the recipe of one cell for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.core.memory import free_memory
from rescind.core.method import Method
from rescind.core.settings import find
from rescind.data import Dataset, describe, load
from rescind.data.blocks import share_tied
from rescind.errors import ConfigError
from rescind.experiments.described import spelt
from rescind.experiments.needs import Sizes, in_words, needed
from rescind.experiments.recipe import Recipe, of_table
from rescind.methods._outside import class_name
from rescind.methods.additive._solve import seconds_to_solve
from rescind.methods.additive.gram import DENSE_ITEMS
from rescind.storage.kinds import METHODS

COMPARED = (
    "Popularity",
    "Gram",
    "KernelGram",
    "LocalGram",
    "SeqGram",
    "LocalSeqGram",
    "FedAvg",
    "FedShare",
)
"""Methods whose memory is told before a run."""
ORDERED = ("SeqGram", "LocalSeqGram")
"""Those that learn what comes after what, so that data without times says nothing to them."""
MOSTLY_TIED = 0.5
"""Share of equal times above which the last item is hardly known, so that none is to be guessed."""
FEW = 5
"""Rows of a user below which 8:1:1 leaves less than one to test."""


@dataclass(frozen=True)
class Advice:
    """A method to begin with."""

    method: str
    why: tuple[str, ...]


def memory_of_methods(sizes: Sizes, in_order: bool) -> dict[str, int]:
    """Return what each method that can learn from the data will need, in bytes.

    in_order: whether it is known which rows of a user came first
    """
    able = [name for name in COMPARED if in_order or name not in ORDERED]
    return {name: needed(_made(name), sizes) for name in able}


def _made(name: str) -> Method:
    made: Method = find(*METHODS, name)()
    return made


def advise(sizes: Sizes, ties: float | None, free: int | None) -> Advice:
    """Return a method for data of this size.

    ties: share of rows with the time of another item of their user, None if there are no times
    free: bytes of memory, None if not known
    """
    each, share = sizes.rows / sizes.users, 100 * sizes.rows / (sizes.users * sizes.items)
    why = [
        f"{sizes.users:,} users, {sizes.items:,} items, {each:.0f} rows per user, "
        f"{share:{'.2g' if share < 10 else '.0f'}} % of all pairs"
    ]
    needs = memory_of_methods(sizes, ties is not None)
    seconds = seconds_to_solve(sizes.items)
    dense = f"{in_words(needs['Gram'])}, about {max(seconds, 1):,.0f} CPU s to solve"
    fits = {name: free is None or need <= free for name, need in needs.items()}
    if sizes.items <= DENSE_ITEMS and fits["Gram"]:
        method = "Gram"
        why.append(f"all pairs of {sizes.items:,} items are quick and fit into memory ({dense})")
    elif fits["LocalGram"]:
        method = "LocalGram"
        why.append(
            f"{sizes.items:,} items are many: neighbours alone, up to "
            f"{in_words(needs['LocalGram'])}, not all pairs ({dense})"
        )
    else:
        method = "FedAvg"
        why.append(f"sums of pairs do not fit into memory ({in_words(needs['LocalGram'])})")
    if method != "FedAvg":
        why.append("one round, no settings to tune, and forgetting is exact subtraction")
    if each < FEW:
        why.append(f"fewer than {FEW} rows per user: hold it against Popularity")
    if ties is not None:
        ordered = {"Gram": "SeqGram", "LocalGram": "LocalSeqGram"}.get(method)
        why += _next_item(ordered if ordered and fits[ordered] else None, ties)
    return Advice(method, tuple(why))


def _next_item(method: str | None, ties: float) -> list[str]:
    """Return what to try for the next item. method: one that fits into memory, None if none does"""
    if ties > MOSTLY_TIED:
        return [
            f"{100 * ties:.0f} % of the rows have the time of another item of their user, so the "
            f"next item is hardly known"
        ]
    if method is None:
        return []
    preset = " --set method.preset=sequences" if method == "SeqGram" else ""
    return [
        f"there are times: for the next item, try --method {method}{preset} --set data.split=last"
    ]


def advice_for(name: str) -> Advice:
    """Return the method to begin with on a dataset of this name; its data is read."""
    describe(name)  # an unknown name is told before anything is looked for
    data = load(name)
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"'{name}' is a graph. Name a method for graphs, such as --method GraphGram."
        )
    return advise(Sizes.of(data), ties_of(data), free_memory())


def ties_of(data: Dataset) -> float | None:
    """Return the share of rows with the time of another item of their user, None without times."""
    return share_tied(data) if data.has_time else None


def recipe_for(data: str, method: str, changes: Sequence[str] = ()) -> Recipe:
    """Return a recipe of one cell."""
    found, file = class_name(method), method.partition(":")[0]
    name = spelt(found) or found  # 'gram' and 'Gram' are one run
    # A class alone could be that of another file that was run before.
    from_file = f"{Path(file).expanduser().resolve()}:{name}" if file.endswith(".py") else name
    table: dict[str, Any] = {
        "title": f"{name} on {data}",
        "data": {"name": data},
        "method": {"name": from_file},
    }
    return of_table(Path("data") / f"{data}-{name}.toml", table, changes)
