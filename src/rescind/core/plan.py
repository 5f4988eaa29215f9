"""The samples of a local epoch, and each client's copy of the rows they touch.

Wave w is the w-th mini-batch of all clients that have one, so clients with one batch and with
nine train together. Gradients do not mix: each client has its own rows, and a loss is a vector
with one entry per client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
    items: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns of items, [n] or [n, k]: each (owner, item) gets a row on the shelf."""
    values: Mapping[str, Tensor] = field(default_factory=dict)
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
        items: Mapping[str, Tensor],
        values: Mapping[str, Tensor] | None = None,
        also: tuple[tuple[Tensor, Tensor], ...] = (),
    ) -> Plan:
        """Cut each client's samples, in the order of their random bits, into mini-batches.

        Samples keep the given order without `bits`, without a batch size, and if every client has
        only one batch.
        """
        count = jagged.counts(owner, clients)
        most = int(count.max()) if len(owner) else 0
        if batch_size is None or most <= batch_size:
            return cls(owner, (len(owner),), items, values or {}, also)
        if bits is not None:
            order = jagged.shuffle(bits, owner)
        else:
            order = torch.argsort(owner, stable=True)
        sizes, to = _waves(count, batch_size, owner[order])
        order = torch.empty_like(order).index_copy_(0, to, order)
        return cls(
            owner[order],
            sizes,
            {name: column[order] for name, column in items.items()},
            {name: column[order] for name, column in (values or {}).items()},
            also,
        )


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
        owners = [cohort.train.owner]
        items = [cohort.train.item]
        for plan in plans:
            for column in plan.items.values():
                flat = column.reshape(-1)
                each = flat.numel() // max(len(plan.owner), 1)
                owners.append(plan.owner.repeat_interleave(each) if each > 1 else plan.owner)
                items.append(flat)
            for owner, item in plan.also:
                owners.append(owner)
                items.append(item)
        shelf = Shelf.of(torch.cat(owners), torch.cat(items), len(cohort), cohort.items)
        return cls(
            shelf=shelf,
            rows={n: _row_copy(public[n], shelf, n in names) for n in tables if n in public},
            dense={
                n: _leaf(v.unsqueeze(0).expand(len(cohort), *v.shape).clone())
                for n, v in public.items()
                if n in names and n not in tables
            },
            own={n: _leaf(v.clone()) for n, v in private.items() if n in names},
            held=shelf.find(cohort.train.owner, cohort.train.item),
        )

    def leaves(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the autograd leaves with these names."""
        leaves = {**self.dense, **self.own, **self.rows}
        return {name: leaves[name] for name in names}

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield the waves of a plan, with items converted to positions on this shelf."""
        rows = {}
        for name, item in plan.items.items():
            owner = plan.owner.view(-1, *[1] * (item.dim() - 1)).expand_as(item)
            rows[name] = self.shelf.find(owner, item)
        at = 0
        for size in plan.sizes:
            cut = slice(at, at + size)
            at += size
            yield Batch(
                plan.owner[cut],
                {name: row[cut] for name, row in rows.items()},
                {name: value[cut] for name, value in plan.values.items()},
                self.shelf.owners,
            )


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_(value.is_floating_point())


def _row_copy(table: Tensor, shelf: Shelf, trained: bool) -> Tensor:
    rows = table.index_select(0, shelf.item)
    return _leaf(rows) if trained else rows
