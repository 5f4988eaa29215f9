"""The samples of a local epoch, and each client's copy of the rows they touch.

Wave w is the w-th mini-batch of all clients that have one, so clients with one batch and with
nine train together. Gradients do not mix: each client has its own rows, and a loss is a vector
with one entry per client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Cohort
from rescind.core.jagged import Shelf
from rescind.core.params import Params


@dataclass(frozen=True)
class Plan:
    """The samples of one local epoch, sorted by wave, then owner."""

    owner: Tensor
    """[n] the client's position in the cohort."""
    sizes: tuple[int, ...]
    """Number of samples of each wave, in order."""
    items: Params = field(default_factory=dict)
    """Columns of items, [n] or [n, k]: each (owner, item) gets a row on the shelf."""
    values: Params = field(default_factory=dict)
    """Other columns, [n, ...]: labels, weights."""
    also: tuple[tuple[Tensor, Tensor], ...] = ()
    """More (owner, item) pairs that must be on the shelf, such as replay lists."""

    @classmethod
    def of(
        cls,
        owner: Tensor,
        clients: int,
        batch_size: int | None,
        bits: Tensor | None,
        items: Params,
        values: Params | None = None,
    ) -> Plan:
        """Cut each client's samples, in the order of their random bits, into mini-batches.

        Samples keep the given order without `bits`, without a batch size, and if every client has
        only one batch.
        """
        count = jagged.counts(owner, clients)
        most = int(count.max()) if len(owner) else 0
        if batch_size is None or most <= batch_size:
            return cls(owner, (len(owner),), items, values or {})
        order = torch.argsort(owner, stable=True) if bits is None else jagged.shuffle(bits, owner)
        sizes, to = _waves(count, batch_size, owner[order])
        order = torch.empty_like(order).index_copy_(0, to, order)
        items, values = ({n: v[order] for n, v in p.items()} for p in (items, values or {}))
        return cls(owner[order], sizes, items, values)


def _waves(count: Tensor, batch_size: int, owner: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the size of each wave, and each sample's position sorted by wave, then owner.

    count: [C] samples of each client    owner: [n] sorted
    """
    waves = -(-int(count.max()) // batch_size)
    first = torch.arange(waves, device=count.device).unsqueeze(1) * batch_size
    cells = (count - first).clamp(0, batch_size)  # [waves, C]: samples of a client in a wave
    place = jagged.places(owner, len(count))
    wave = place // batch_size
    start = jagged.starts(cells.reshape(-1))
    to = start[wave * len(count) + owner] + place - wave * batch_size
    return tuple(cells.sum(1).tolist()), to


@dataclass(frozen=True)
class Batch:
    """One wave: at most one mini-batch of every client. `rows` are positions on the shelf."""

    owner: Tensor
    rows: Mapping[str, Tensor]
    values: Mapping[str, Tensor]
    clients: int

    @property
    def active(self) -> Tensor:
        """Return which clients have a sample in the batch. [C] bool"""
        mask = torch.zeros(self.clients, dtype=torch.bool, device=self.owner.device)
        mask[self.owner] = True
        return mask


@dataclass(frozen=True)
class Work:
    """The clients' copies of the parameters, as autograd leaves."""

    shelf: Shelf
    rows: Mapping[str, Tensor]
    """By table: [R, d], one row per pair on the shelf."""
    dense: Mapping[str, Tensor]
    """By name: [C, ...], a copy per client of public values that are not tables."""
    own: Mapping[str, Tensor]
    """By name: [C, ...], private values, which never leave the device."""
    held: Tensor
    """[n] positions of the cohort's training records on the shelf."""

    @classmethod
    def begin(
        cls,
        plans: Sequence[Plan],
        names: Iterable[str],
        tables: Sequence[str],
        public: Params,
        private: Params,
        cohort: Cohort,
    ) -> Work:
        """Copy the named parameters; of tables, only the rows on the shelf."""
        names = set(names)
        pairs = [(cohort.train.owner, cohort.train.item)]
        for plan in plans:
            for column in plan.items.values():
                each = column.numel() // max(len(plan.owner), 1)
                owner = plan.owner.repeat_interleave(each) if each > 1 else plan.owner
                pairs.append((owner, column.reshape(-1)))
            pairs += plan.also
        owners, items = (torch.cat(side) for side in zip(*pairs, strict=True))
        shelf = Shelf.of(owners, items, len(cohort), cohort.items)
        rows = {n: public[n].index_select(0, shelf.item) for n in tables if n in public}
        dense = {n: v for n, v in public.items() if n in names and n not in tables}
        return cls(
            shelf=shelf,
            rows={n: _leaf(v) if n in names else v for n, v in rows.items()},
            dense={n: _leaf(v.expand(len(cohort), *v.shape).clone()) for n, v in dense.items()},
            own={n: _leaf(v.clone()) for n, v in private.items() if n in names},
            held=shelf.find(cohort.train.owner, cohort.train.item),
        )

    def leaves(self, names: Iterable[str]) -> dict[str, Tensor]:
        leaves = {**self.dense, **self.own, **self.rows}
        return {name: leaves[name] for name in names}

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield the waves of a plan, with items converted to positions on this shelf."""
        rows = {}
        for name, item in plan.items.items():
            owner = plan.owner.view(-1, *[1] * (item.dim() - 1)).expand_as(item)
            rows[name] = self.shelf.find(owner, item)
        for end, size in zip(accumulate(plan.sizes), plan.sizes, strict=True):
            cut = slice(end - size, end)
            wave, values = ({n: v[cut] for n, v in part.items()} for part in (rows, plan.values))
            yield Batch(plan.owner[cut], wave, values, self.shelf.owners)


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_(value.is_floating_point())
