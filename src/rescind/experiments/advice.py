"""Which method to begin with on some data, and why."""

from __future__ import annotations

from dataclasses import dataclass

from rescind.core.method import Method
from rescind.core.settings import find
from rescind.experiments.needs import Sizes, in_words, needed
from rescind.methods.additive._solve import seconds_to_solve
from rescind.methods.additive.gram import DENSE_ITEMS
from rescind.storage.kinds import METHODS

COMPARED = ("Popularity", "Gram", "LocalGram", "FedAvg", "FedShare")
"""Methods whose memory is told before a run."""
FEW = 5
"""Rows of a user below which 8:1:1 leaves less than one to test."""


@dataclass(frozen=True)
class Advice:
    """A method to begin with."""

    method: str
    why: tuple[str, ...]


def memory_of_methods(sizes: Sizes) -> dict[str, int]:
    """Return what each method will need, in bytes."""
    return {name: needed(_made(name), sizes) for name in COMPARED}


def _made(name: str) -> Method:
    made: Method = find(*METHODS, name)()
    return made


def advise(sizes: Sizes, timed: bool, free: int | None) -> Advice:
    """Return a method for data of this size. free: bytes of memory, None if not known"""
    each, density = sizes.rows / sizes.users, sizes.rows / (sizes.users * sizes.items)
    why = [
        f"{sizes.users:,} users, {sizes.items:,} items, {each:.0f} rows per user, "
        f"{100 * density:.2g} % of all pairs"
    ]
    needs, seconds = memory_of_methods(sizes), seconds_to_solve(sizes.items)
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
    if timed:
        why.append("there are times: for the next item, try --method SeqGram --set data.split=last")
    return Advice(method, tuple(why))
