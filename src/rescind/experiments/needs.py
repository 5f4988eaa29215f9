"""How much memory a method will need on data of some size, before anything is started.

The constants are upper bounds of what `bench/memory.py` measures. They count the whole process:
Python and torch, records on devices, the model, and a round with its evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescind.core.memory import free_memory
from rescind.core.method import Method
from rescind.data.dataset import Dataset
from rescind.errors import ConfigError
from rescind.methods.additive.kernel_gram import KernelGram
from rescind.methods.additive.local_seq_gram import LocalSeqGram
from rescind.methods.additive.seq_gram import SeqGram
from rescind.models.item_item import ItemWeights, LocalWeights

PROCESS = 450_000_000
"""Bytes of a process that has loaded torch and the compiler."""
ROW = 600
"""Bytes of an interaction: columns, lots and splits, while they are built."""
VALUE = 40
"""Bytes of one number in a table of users or items: the model, its copies, optimiser and save."""
PAIR = 35
"""Bytes of a pair of items in a dense sum, its inverse, a solve, an evaluation and a save."""
NEAR_AND_FAR = 70
"""The same of a pair that is counted twice, near and far, and solved for each (46 to 65 seen)."""
ORDERED_PAIR = 100
"""The same of an ordered pair, counted near and far, whose weights no half can hold."""
COMPILED = 450_000_000
"""Bytes more of a process that has compiled the loops of a sparse sum."""
DENSE: tuple[tuple[type[Method], int], ...] = ((SeqGram, ORDERED_PAIR), (KernelGram, NEAR_AND_FAR))
"""Learners of all pairs that take more than `PAIR` for each."""
NEAR_LIST = 120
"""Bytes of one neighbour of an item, while lists are made."""
NEAR_PAIR = 64
"""Bytes of a pair of items that somebody had together, in a sparse sum and while it is sorted."""


@dataclass(frozen=True)
class Sizes:
    """What decides about memory."""

    users: int
    items: int
    rows: int
    pairs: int | None = None
    """Sum over users of their rows squared; None if the data was not read."""

    @classmethod
    def of(cls, dataset: Dataset) -> Sizes:
        each = np.bincount(dataset.user, minlength=1).astype(np.int64)
        # Empty places of users who left take memory, too.
        users, items = len(dataset.users), len(dataset.items)
        return cls(users, items, len(dataset), int((each * each).sum()))


def needed(method: Method, sizes: Sizes) -> int:
    """Return an upper bound on the bytes that a run of this method takes."""
    method, items = method.for_items(sizes.items), sizes.items
    total = PROCESS + ROW * sizes.rows
    sparse = method if isinstance(method, LocalSeqGram) else method.model
    if isinstance(sparse, LocalSeqGram | LocalWeights):
        every = items * items
        met = every if sizes.pairs is None else min(every, sizes.pairs)
        lists = NEAR_LIST * items * sparse.many
        return total + COMPILED + NEAR_PAIR * met + lists
    if isinstance(method.model, ItemWeights):
        pair = next((size for cls, size in DENSE if isinstance(method, cls)), PAIR)
        return total + pair * items * items
    width = getattr(method.model, "dim", 1)
    return total + VALUE * width * (sizes.users + items)


def must_fit(method: Method, sizes: Sizes) -> None:
    """Raise before a run starts if it needs more memory than is free."""
    need, free = needed(method, sizes), free_memory()
    if free is None or need <= free:
        return
    name = type(method.for_items(sizes.items)).__name__
    raise ConfigError(
        f"{name} on {sizes.items:,} items and {sizes.rows:,} rows needs up to {in_words(need)} of "
        f"memory, and {in_words(free)} are free. Leave out rare items (--set data.core=10), or use "
        f"another method (rescind data describe NAME lists them)."
    )


def must_have_order(method: Method, dataset: Dataset) -> None:
    """Raise before a run starts if a method learns from the order of rows, and none is known."""
    method.check_order(dataset.name, dataset.has_time)


def in_words(size: int) -> str:
    """Return bytes as text: 7.7 GB, 450 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
