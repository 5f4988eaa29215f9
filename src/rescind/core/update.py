"""What clients send: an `Update` is still one per client, a `Sum` is all the server receives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.params import Params


@dataclass(frozen=True)
class Rows:
    """Rows of a table, of many clients: value[j] is for row index[j] of client owner[j]."""

    owner: Tensor
    """[n] place in the cohort (in a log: the client's number)."""
    index: Tensor
    """[n] row of the table."""
    value: Tensor
    """[n, d]"""
    size: int
    """How many rows the whole table has."""

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, chosen: Tensor) -> Rows:
        return Rows(self.owner[chosen], self.index[chosen], self.value[chosen], self.size)

    @property
    def nbytes(self) -> int:
        """As it would travel: the values and a four-byte row number each."""
        return self.value.numel() * self.value.element_size() + 4 * len(self)


@dataclass(frozen=True)
class Update:
    """What a cohort would send, by name: rows of a table, or a dense tensor [C, ...]."""

    clients: int
    entries: Mapping[str, Rows | Tensor]

    def norms(self) -> Tensor:
        """The Euclidean norm of each client's whole update. [C]"""
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
        """Every client's update times its own factor. factor: [C]"""
        scaled: dict[str, Rows | Tensor] = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Rows):
                each = _spread(factor[entry.owner].to(entry.value.dtype), entry.value)
                scaled[name] = replace(entry, value=entry.value * each)
            else:
                scaled[name] = entry * _spread(factor.to(entry.dtype), entry)
        return Update(self.clients, scaled)

    def only(self, kept: Tensor) -> Update:
        """Nothing of the clients that are not kept, not even a NaN times zero. kept: [C] bool"""
        left: dict[str, Rows | Tensor] = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Rows):
                left[name] = entry[kept[entry.owner]]
            else:
                left[name] = torch.where(_spread(kept, entry), entry, torch.zeros_like(entry))
        return Update(self.clients, left)

    def fold(self, weight: Tensor, ids: Tensor | None = None) -> Sum:
        """The weighted sum over clients; with `ids`, the single updates travel along.

        weight: [C], 0 for a client that is left out
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
        """The bytes all clients of the cohort would send, touched rows only."""
        return sum(
            entry.nbytes if isinstance(entry, Rows) else entry.numel() * entry.element_size()
            for entry in self.entries.values()
        )


def _squares(value: Tensor) -> Tensor:
    """The sum of squares of each row, whatever its shape. [n]"""
    return value.double().square().reshape(len(value), math.prod(value.shape[1:])).sum(1)


def _spread(each: Tensor, like: Tensor) -> Tensor:
    return each.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Sum:
    """All the server ever receives of a role. Sums can be added in any order."""

    totals: Params
    """By name: the sum of weight * update."""
    weight: float
    """The sum of the weights."""
    clients: int
    """How many clients are in it."""
    touched: Params = field(default_factory=dict)
    """By table: [rows] the weight of the clients that touched each row."""
    who: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """[clients] whose updates are in it, as the server knows from having asked them."""
    parts: tuple[tuple[Tensor, Update], ...] = ()
    """Single updates, only for a method that says `individual = True`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """How many updates were left out, by reason."""
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
        """The weighted mean by name; empty when nobody sent anything."""
        if not self.weight:
            return {}
        return {
            name: (total if total.is_floating_point() else total.double()) / self.weight
            for name, total in self.totals.items()
        }

    def to_bytes(self) -> bytes:
        """For the wire. Single updates do not travel this way."""
        tensors = {f"totals/{n}": v for n, v in self.totals.items()}
        tensors |= {f"touched/{n}": v for n, v in self.touched.items()}
        # Weights travel as float64 tensors, so that not one bit is lost in text.
        tensors["who"] = self.who
        tensors["weight"] = torch.tensor(self.weight, dtype=torch.float64)
        facts = {
            "clients": self.clients,
            "up": self.up,
            "down": self.down,
            "refused": dict(self.refused),
        }
        tensors["facts"] = torch.frombuffer(
            bytearray(json.dumps(facts).encode()), dtype=torch.uint8
        )
        return params.to_bytes(tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> Sum:
        """Read what `to_bytes` wrote."""
        tensors = params.from_bytes(data)
        facts: dict[str, Any] = json.loads(tensors.pop("facts").numpy().tobytes())
        weight, who = float(tensors.pop("weight")), tensors.pop("who")

        def drawer(start: str) -> dict[str, Tensor]:
            return {n[len(start) :]: v for n, v in tensors.items() if n.startswith(start)}

        return cls(
            totals=drawer("totals/"), touched=drawer("touched/"), weight=weight, who=who, **facts
        )


def total_of(sums: Mapping[str, Sum]) -> Sum | None:
    """Add the sums of all roles; None if there are none."""
    roles = list(sums.values())
    return sum(roles[1:], roles[0]) if roles else None
