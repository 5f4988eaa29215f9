"""Clients side by side in flat tensors: their items, their letters, their graphs."""

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
    """Distinct items of a cohort's clients, flat: `owner` [n] sorted, `item` [n] sorted in it."""

    owner: Tensor
    item: Tensor
    clients: int

    def __len__(self) -> int:
        return len(self.owner)

    @cached_property
    def count(self) -> Tensor:
        """How many items each client has. [C]"""
        return jagged.counts(self.owner, self.clients)

    @cached_property
    def place(self) -> Tensor:
        """The place of each item inside its client, 0, 1, 2, ... [n]"""
        return torch.arange(len(self), device=self.owner.device) - self.first[self.owner]

    @cached_property
    def first(self) -> Tensor:
        """Where each client's items begin. [C]"""
        return jagged.starts(self.count)


@dataclass(frozen=True)
class Mail:
    """What the server sends to one recipient only: values[name][j] is for client ids[j].

    At the client, `values["has"]` says who got a letter. Mail is there while training; what a
    device wants to use later (for scoring, say) it keeps in its private values.
    """

    ids: Tensor
    values: Params

    def to(self, ids: Tensor) -> Mail:
        """The letters for these clients, in their order; a client without one gets zeros."""
        sorted_ids, order = torch.sort(self.ids)
        at = torch.searchsorted(sorted_ids, ids).clamp_(max=max(len(order) - 1, 0))
        has = sorted_ids[at] == ids if len(order) else torch.zeros_like(ids, dtype=torch.bool)
        place = order[at] if len(order) else at
        values = {}
        for name, value in self.values.items():
            letter = value[place] if len(order) else value.new_zeros((len(ids), *value.shape[1:]))
            shape = (-1, *[1] * (letter.dim() - 1))
            values[name] = torch.where(has.view(shape), letter, torch.zeros_like(letter))
        return Mail(ids, {**values, "has": has})

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if len(value) != len(self.ids):
                raise BoundaryError(
                    f"mail '{name}' has {len(value)} letters for {len(self.ids)} recipients. "
                    f"Give one row per recipient."
                )


@dataclass(frozen=True)
class Graph:
    """Subgraphs of clients side by side, without edges across clients.

    Features are flat (node, feature, value) triples, so that binary bags of words stay small.
    """

    owner: Tensor
    """[N] whose node it is: a client index, or the place in a cohort."""
    index: Tensor
    """[N] the node's number in the whole graph, sorted: what `Records.item` refers to."""
    edge: Tensor
    """[2, E] both directions, as places 0..N-1 of this graph."""
    node: Tensor
    """[m] the place of the node a feature entry belongs to."""
    feature: Tensor
    """[m] its column."""
    value: Tensor
    """[m] its value."""
    label: Tensor
    """[N] class, -1 where there is none."""
    features: int
    classes: int

    def of(self, ids: Tensor) -> Graph:
        """The subgraphs of these clients; `owner` becomes the place in `ids`."""
        place = torch.full((int(self.owner.max()) + 1 if len(self.owner) else 1,), -1)
        place = place.to(ids.device)
        inside = ids < len(place)
        place[ids[inside]] = torch.arange(len(ids), device=ids.device)[inside]
        return self.keep(place[self.owner] >= 0, place[self.owner])

    def keep(self, kept: Tensor, owner: Tensor | None = None) -> Graph:
        """Only these nodes, with their edges and features, perhaps under other owners. [N] bool"""
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

    def to(self, device: str | torch.device) -> Graph:
        """The same graph on another device."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **cast(dict[str, Any], tensors))

    def find(self, item: Tensor) -> Tensor:
        """The places of nodes, given their numbers in the whole graph."""
        return torch.searchsorted(self.index, item)


@dataclass(frozen=True)
class Cohort:
    """C clients side by side. A cohort of one is a phone, one of six thousand a simulation."""

    ids: Tensor
    """[C]"""
    items: int
    """How many items exist so far, I."""
    train: Lot
    """What is trained on in this round."""
    own: Lot
    """Every record the device may use to infer, to exclude negatives and to mask."""
    role: str = "train"
    held: Lot | None = None
    """Held-out items, only where something is measured."""
    weight: Tensor = field(default_factory=lambda: torch.ones(0))
    """[C] the weight of each client in the sum."""
    mail: Mail | None = None
    graph: Graph | None = None

    def __len__(self) -> int:
        return len(self.ids)
