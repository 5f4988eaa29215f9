"""What clients send: an `Update` has one part per client, a `Sum` is what the server gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.params import Params


@dataclass(frozen=True)
class Rows:
    """Rows of a table for several clients: value[j] is for row index[j] of client owner[j]."""

    owner: Tensor
    """[n] position in the cohort (in a log: the client's number)."""
    index: Tensor
    """[n] row of the table."""
    value: Tensor
    """[n, d]"""
    size: int
    """Number of rows of the whole table."""

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, chosen: Tensor) -> Rows:
        return Rows(self.owner[chosen], self.index[chosen], self.value[chosen], self.size)

    @property
    def nbytes(self) -> int:
        """Return the bytes to send: the values, and four bytes per row number."""
        return self.value.numel() * self.value.element_size() + 4 * len(self)


@dataclass(frozen=True)
class Update:
    """What a cohort sends, by name: rows of a table, or a dense tensor [C, ...]."""

    clients: int
    entries: Mapping[str, Rows | Tensor]

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each client's whole update. [C]"""
        total: Tensor | None = None
        for entry in self.entries.values():
            if isinstance(entry, Rows):
                each = _squares(entry.value)
                mine = each.new_zeros(self.clients).index_add_(0, entry.owner, each)
            else:
                mine = _squares(entry)
            total = mine if total is None else total + mine
        return torch.zeros(self.clients, dtype=torch.float64) if total is None else total.sqrt()

    def scale(self, factor: Tensor) -> Update:
        """Multiply each client's update by its factor. factor: [C]"""
        scaled: dict[str, Rows | Tensor] = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Rows):
                each = _spread(factor[entry.owner].to(entry.value.dtype), entry.value)
                scaled[name] = replace(entry, value=entry.value * each)
            else:
                scaled[name] = entry * _spread(factor.to(entry.dtype), entry)
        return Update(self.clients, scaled)

    def only(self, kept: Tensor) -> Update:
        """Remove the values of clients that are not kept, NaN included. kept: [C] bool"""
        left: dict[str, Rows | Tensor] = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Rows):
                left[name] = entry[kept[entry.owner]]
            else:
                left[name] = torch.where(_spread(kept, entry), entry, torch.zeros_like(entry))
        return Update(self.clients, left)

    def fold(self, weight: Tensor, ids: Tensor | None = None) -> Sum:
        """Compute the weighted sum over clients; with `ids`, include the single updates.

        weight: [C], 0 to leave a client out
        """
        totals: dict[str, Tensor] = {}
        touched: dict[str, Tensor] = {}
        plain = bool((weight == 1).all())
        for name, entry in self.entries.items():
            if isinstance(entry, Rows):
                each = weight[entry.owner].to(entry.value.dtype)
                value = entry.value if plain else entry.value * _spread(each, entry.value)
                total = value.new_zeros((entry.size, *value.shape[1:]))
                totals[name] = total.index_add_(0, entry.index, value)
                touched[name] = each.new_zeros(entry.size).index_add_(0, entry.index, each)
            else:
                value = entry if plain else entry * _spread(weight.to(entry.dtype), entry)
                totals[name] = value.sum(0)
        return Sum(
            totals=totals,
            weight=float(weight.double().sum()),
            clients=int((weight != 0).sum()),
            touched=touched,
            parts=() if ids is None else ((ids, self),),
            up=self.nbytes,
        )

    @property
    def nbytes(self) -> int:
        """Return the bytes that all clients of the cohort send, touched rows only."""
        return sum(
            entry.nbytes if isinstance(entry, Rows) else entry.numel() * entry.element_size()
            for entry in self.entries.values()
        )


def _squares(value: Tensor) -> Tensor:
    """Return the sum of squares of each row, of any shape. [n]"""
    return value.double().square().reshape(len(value), math.prod(value.shape[1:])).sum(1)


def _spread(each: Tensor, like: Tensor) -> Tensor:
    return each.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Sum:
    """All that the server gets from the clients of a role. Sums can be added in any order."""

    totals: Params
    """By name: the sum of weight * update."""
    weight: float
    """The sum of the weights."""
    clients: int
    """Number of clients in it."""
    touched: Params = field(default_factory=dict)
    """By table: [rows] the weight of the clients that touched each row."""
    who: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """[clients] ids of the clients in it; the server knows them because it asked them."""
    parts: tuple[tuple[Tensor, Update], ...] = ()
    """Single updates, only for a method with `individual = True`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Number of refused updates, by reason."""
    up: int = 0
    """Bytes the clients sent."""
    down: int = 0
    """Bytes the clients received."""

    def __add__(self, other: Sum) -> Sum:
        reasons = {*self.refused, *other.refused}
        return Sum(
            totals=params.add(self.totals, other.totals),
            weight=self.weight + other.weight,
            clients=self.clients + other.clients,
            touched=params.add(self.touched, other.touched),
            who=torch.cat([self.who.to(other.who.device), other.who]),
            parts=self.parts + other.parts,
            refused={r: self.refused.get(r, 0) + other.refused.get(r, 0) for r in sorted(reasons)},
            up=self.up + other.up,
            down=self.down + other.down,
        )

    def mean(self) -> dict[str, Tensor]:
        """Return the weighted mean by name; empty if no client sent an update."""
        if not self.weight:
            return {}
        return {
            name: (total if total.is_floating_point() else total.double()) / self.weight
            for name, total in self.totals.items()
        }


def total_of(sums: Mapping[str, Sum]) -> Sum | None:
    """Add the sums of all roles; None if there are none."""
    roles = list(sums.values())
    return sum(roles[1:], roles[0]) if roles else None
