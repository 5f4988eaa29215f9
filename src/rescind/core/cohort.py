"""A cohort of clients in flat tensors: items, messages from the server, graphs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.params import Params
from rescind.errors import BoundaryError


@dataclass(frozen=True)
class Lot:
    """Distinct items of the clients of a cohort, flat, sorted by `owner` [n], then `item` [n]."""

    owner: Tensor
    item: Tensor
    clients: int
    time: Tensor | None = None
    """[n] when each item came, for learners that read the order (`Method.ordered`); else None."""
    rating: Tensor | None = None
    """[n] twice the rating of each item, for the same learners; None if nothing is rated."""

    def __len__(self) -> int:
        return len(self.owner)

    @cached_property
    def count(self) -> Tensor:
        """Return the number of items of each client. [C]"""
        return jagged.counts(self.owner, self.clients)

    @cached_property
    def place(self) -> Tensor:
        """Return the position of each item within its client, 0, 1, 2, ... [n]"""
        return torch.arange(len(self), device=self.owner.device) - self.first[self.owner]

    @cached_property
    def first(self) -> Tensor:
        """Return the position of each client's first item. [C]"""
        return jagged.starts(self.count)

    def part(self, begin: int, end: int) -> Lot:
        """Return the items of the clients from `begin` to before `end`."""
        rows = slice(*(int(self.first[n]) if n < self.clients else len(self) for n in (begin, end)))
        time = None if self.time is None else self.time[rows]
        rating = None if self.rating is None else self.rating[rows]
        lot = Lot(self.owner[rows] - begin, self.item[rows], end - begin, time, rating)
        lot.__dict__["count"] = self.count[begin:end]  # the cached property
        return lot

    def only(self, entry: Tensor, owner: Tensor, clients: int) -> Lot:
        """Return some entries under new owners. entry: [n] bool    owner: [entries]"""
        time = None if self.time is None else self.time[entry]
        rating = None if self.rating is None else self.rating[entry]
        return Lot(owner, self.item[entry], clients, time, rating)


@dataclass(frozen=True)
class Mail:
    """Messages from the server to single clients: `values[name][j]` is for client `ids[j]`.

    On clients, `values["has"]` tells which of them got a message. Mail exists during training
    only; a device stores what it needs later (for example for scoring) in its private values.
    """

    ids: Tensor
    values: Params

    def to(self, ids: Tensor) -> Mail:
        """Return the messages for these clients, in their order; zeros if there is none."""
        sorted_ids, order = torch.sort(self.ids)
        at = torch.searchsorted(sorted_ids, ids).clamp_(max=max(len(order) - 1, 0))
        has = sorted_ids[at] == ids if len(order) else torch.zeros_like(ids, dtype=torch.bool)
        place = order[at] if len(order) else at
        values = {}
        for name, value in self.values.items():
            rows = value[place] if len(order) else value.new_zeros((len(ids), *value.shape[1:]))
            shape = (-1, *[1] * (rows.dim() - 1))
            values[name] = torch.where(has.view(shape), rows, torch.zeros_like(rows))
        return Mail(ids, {**values, "has": has})

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if len(value) != len(self.ids):
                raise BoundaryError(
                    f"mail '{name}' has {len(value)} rows for {len(self.ids)} recipients."
                )


@dataclass(frozen=True)
class Graph:
    """Subgraphs of several clients, without edges across clients.

    Features are flat (node, feature, value) triples, so that binary bags of words stay small.
    """

    owner: Tensor
    """[N] the client of each node: its index, or its position in a cohort."""
    index: Tensor
    """[N] the node's number in the whole graph, sorted: `Records.item` refers to it."""
    edge: Tensor
    """[2, E] both directions, as positions 0..N-1 in this graph."""
    node: Tensor
    """[m] the position of the node of each feature entry."""
    feature: Tensor
    """[m] its column."""
    value: Tensor
    """[m] its value."""
    label: Tensor
    """[N] class, -1 if unknown."""
    features: int
    classes: int

    def of(self, ids: Tensor) -> Graph:
        """Select the subgraphs of these clients; `owner` becomes the position in `ids`."""
        place = torch.full((int(self.owner.max()) + 1 if len(self.owner) else 1,), -1)
        place = place.to(ids.device)
        inside = ids < len(place)
        place[ids[inside]] = torch.arange(len(ids), device=ids.device)[inside]
        return self.keep(place[self.owner] >= 0, place[self.owner])

    def keep(self, kept: Tensor, owner: Tensor | None = None) -> Graph:
        """Keep only these nodes, with edges and features, optionally with new owners. [N] bool"""
        owner = self.owner if owner is None else owner
        renumber = torch.cumsum(kept, 0) - 1
        edges = kept[self.edge[0]] & kept[self.edge[1]]
        entries = kept[self.node]
        return replace(
            self,
            owner=owner[kept],
            index=self.index[kept],
            edge=renumber[self.edge[:, edges]],
            node=renumber[self.node[entries]],
            feature=self.feature[entries],
            value=self.value[entries],
            label=self.label[kept],
        )

    def edges_at(self, client: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """Return where the graph has each of these edges of a client, either way. [n, E] bool"""
        ends, owner = self.index[self.edge], self.owner[self.edge[0]]
        forth = (ends[0] == one[:, None]) & (ends[1] == other[:, None])
        back = (ends[1] == one[:, None]) & (ends[0] == other[:, None])
        return (forth | back) & (owner == client[:, None])

    def to(self, device: str | torch.device) -> Graph:
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **cast(dict[str, Any], tensors))

    def find(self, item: Tensor) -> Tensor:
        """Return the positions of nodes, given their numbers in the whole graph."""
        return torch.searchsorted(self.index, item)


@dataclass(frozen=True)
class Cohort:
    """C clients that are processed together: one on a phone, thousands in a simulation."""

    ids: Tensor
    """[C]"""
    items: int
    """I, the number of items so far."""
    train: Lot
    """The items to train on in this round."""
    own: Lot
    """All items that the device may use to infer, to exclude negatives and to mask."""
    role: str = "train"
    held: Lot | None = None
    """Held-out items, only for evaluation."""
    weight: Tensor = field(default_factory=lambda: torch.ones(0))
    """[C] the weight of each client in the sum."""
    mail: Mail | None = None
    graph: Graph | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> Cohort:
        """Return the clients from `begin` to before `end`, without mail and graphs."""
        own = self.own.part(begin, end)
        return Cohort(
            ids=self.ids[begin:end],
            items=self.items,
            train=own if self.train is self.own else self.train.part(begin, end),
            own=own,
            role=self.role,
            held=None if self.held is None else self.held.part(begin, end),
            weight=self.weight[begin:end],
        )
