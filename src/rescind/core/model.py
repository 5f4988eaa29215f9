"""Interfaces of models. A model holds settings, never parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.params import Params
from rescind.core.world import Sizes


@runtime_checkable
class Model(Protocol):
    """A model of any task: which parameters it has and their initial values."""

    task: ClassVar[str]
    """"ranking" or "nodes": the task it can be used for."""
    tables: ClassVar[tuple[str, ...]]
    """Public parameters with one row per item: clients copy only the rows they touch."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return initial public values; each row depends on its index only, so tables can grow."""
        ...

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Return initial private values [C, ...]; each depends on the client's id only."""
        ...


class RankingModel(Model, Protocol):
    """A model that scores items for users."""

    def infer(self, rows: Params, own: Params, lot: Lot) -> Params:
        """Compute a client's vectors from its private values and its own items (an ego graph).

        rows: by table [n, d], the rows of the items in `lot`    own: [C, ...]
        """
        return own

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """Score flat samples. rows: by table [n, d]    own: inferred, [C, ...]    -> [n]"""
        ...

    def scores(self, public: Params, own: Params) -> Tensor:
        """Score all items for every client. own: inferred, [C, ...]    -> [C, I]"""
        ...


class TakenRows(Mapping[str, Tensor]):
    """The rows of the items of a lot, by table. They are copied when somebody reads them."""

    def __init__(self, public: Params, tables: tuple[str, ...], lot: Lot) -> None:
        self._tables, self._lot = {name: public[name] for name in tables}, lot

    def __getitem__(self, name: str) -> Tensor:
        return self._tables[name].index_select(0, self._lot.item)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def summed(self, name: str) -> Tensor:
        """Add up each client's rows without copying them, in the order of `segment_sum`. [C, d]"""
        lot, table = self._lot, self._tables[name]
        return functional.embedding_bag(lot.item, table, lot.first, mode="sum")


def summed_rows(rows: Params, name: str, lot: Lot) -> Tensor:
    """Add up the rows of each client's items. rows: by table [n, d]    -> [C, d]"""
    if isinstance(rows, TakenRows):
        return rows.summed(name)
    return jagged.segment_sum(rows[name], lot.owner, lot.clients)


def private_names(model: Model) -> tuple[str, ...]:
    return _names(cast(Hashable, model))


@lru_cache(maxsize=32)
def _names(model: Any) -> tuple[str, ...]:
    return tuple(model.private(torch.zeros(0, dtype=torch.int64), Clock(0)))
