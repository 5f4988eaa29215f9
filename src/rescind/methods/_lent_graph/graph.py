"""LightGCN on the server: the bipartite graph of what people lent."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.fast import dispatch as fused
from rescind.core.records import Records
from rescind.core.tasks.ranking import draw_negatives
from rescind.core.world import World


def by_kernel(*tables: Tensor) -> bool:
    """Whether compiled loops can work on these: numba is there, and they are on a CPU."""
    return fused.compiled() and all(t.device.type == "cpu" for t in tables)


def flat(*tensors: Tensor) -> list[Any]:
    """Tensors as one-dimensional numpy arrays, without copies where they lie in one piece."""
    return [t.detach().contiguous().numpy().reshape(-1) for t in tensors]


def _like(table: Tensor) -> Tensor:
    return torch.empty(table.shape, dtype=table.dtype, device=table.device)


@dataclass(frozen=True)
class Side:
    """Weighted edges by the row they end in: what one side of the graph sees of the other."""

    row: Tensor
    """[E] sorted"""
    place: Tensor
    """[E] the row of the other side"""
    weight: Tensor
    """[E]"""
    shape: tuple[int, int]

    @cached_property
    def narrow(self) -> Tensor:
        """The weights in the width of the usual tables."""
        return self.weight.float()

    @cached_property
    def places(self) -> Tensor:
        """[2, E] as torch wants a sparse matrix."""
        return torch.stack([self.row, self.place])

    @cached_property
    def edges(self) -> tuple[Any, Any]:
        """For the kernel: where each row's edges begin, and places with room to look ahead."""
        from rescind.core.fast.rowops import AHEAD

        first = np.zeros(self.shape[0] + 1, np.int64)
        np.cumsum(jagged.counts(self.row, self.shape[0]).numpy(), out=first[1:])
        # Narrow numbers: a product is bound by what it reads.
        return first, np.append(self.place.numpy().astype(np.int32), np.zeros(AHEAD, np.int32))

    def plus(self, own: Tensor, share: float, other: Tensor, scale: float, out: Tensor) -> Tensor:
        """share * own + scale * (this matrix times other), written into `out`. [rows, d]"""
        weight = self.narrow if other.dtype == torch.float32 else self.weight.to(other.dtype)
        if not by_kernel(own, other):
            there = torch.sparse_coo_tensor(
                self.places, weight, self.shape, is_coalesced=True, check_invariants=False
            )
            return torch.mul(own, share, out=out).add_(torch.sparse.mm(there, other), alpha=scale)
        from rescind.methods._lent_graph.kernels import neighbours

        mine, theirs, weights, filled = flat(own, other, weight, out)
        by, times = (mine.dtype.type(n) for n in (share, scale))
        neighbours(own.shape[1], mine, by, theirs, *self.edges, weights, times, filled)
        return out


@dataclass(frozen=True)
class SharedGraph:
    """Distinct shared pairs, sorted by user, and what is computed from them once."""

    user: Tensor
    """[E] the place of the user in `sharers`."""
    item: Tensor
    """[E]"""
    sharers: Tensor
    """[U] the clients that lend something, sorted: the server has rows for nobody else."""
    items: int

    @property
    def users(self) -> int:
        """How many people lend something."""
        return len(self.sharers)

    @cached_property
    def lot(self) -> Lot:
        """What everybody lent, as a lot of the sharers."""
        return Lot(self.user, self.item, self.users)

    @cached_property
    def everybody(self) -> Cohort:
        """The sharers as a cohort that owns what it lent, for drawing what it did not."""
        return Cohort(self.sharers, self.items, self.lot, self.lot)

    @cached_property
    def weight(self) -> Tensor:
        """1 / sqrt(degree of the user x degree of the item), for each edge. [E]"""
        by_user = jagged.counts(self.user, self.users).clamp(min=1).double()
        by_item = jagged.counts(self.item, self.items).clamp(min=1).double()
        return torch.rsqrt(by_user[self.user] * by_item[self.item])

    @cached_property
    def matrices(self) -> tuple[Side, Side]:
        """The normalised adjacency, users x items and items x users."""
        order = torch.argsort(self.item, stable=True)
        back = (self.item[order], self.user[order], self.weight[order])
        there = (self.user, self.item, self.weight)
        return Side(*there, (self.users, self.items)), Side(*back, (self.items, self.users))

    def propagate(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """The mean of layers 0..L of LightGCN: (users [U, d], items [I, d])."""
        wide = torch.promote_types(user.dtype, item.dtype)
        out: tuple[Tensor, Tensor]
        out = _Propagate.apply(user.to(wide), item.to(wide), self, layers)  # type: ignore[no-untyped-call]
        return out

    @cached_property
    def rooms(self) -> list[tuple[Tensor, ...]]:
        """Tables that propagation writes its layers into; whoever uses one takes it out."""
        return []

    def _spread(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """(x + A x + ... + A^L x) / (L + 1) as s x + A (s x + A (...)): no layer is kept."""
        to_user, to_item = self.matrices
        share = scale = 1 / (layers + 1)
        seen, out = (user, item), (_like(user), _like(item))
        if not layers:
            return out[0].copy_(user), out[1].copy_(item)
        # Memory that was given back to the system costs as much as a product to get again.
        spare = self.rooms.pop() if self.rooms else ()
        if [t.shape for t in spare] != [user.shape, item.shape] or spare[0].dtype != user.dtype:
            spare = (_like(user), _like(item))
        for left in reversed(range(layers)):
            room = spare if left % 2 else out
            seen = (
                to_user.plus(user, share, seen[1], scale, room[0]),
                to_item.plus(item, share, seen[0], scale, room[1]),
            )
            scale = 1.0
        self.rooms.append(spare)
        return seen

    def sample(self, many: int | None, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Users, items they lent, and items they did not. [n] each

        Pairs are drawn with replacement; None takes every pair once. The server does not know what
        people kept, so a negative may be something they have.
        """
        if many is not None and by_kernel(self.user):
            return self._sample(many, clock)
        k = torch.arange(len(self.user) if many is None else many, device=self.user.device)
        edge = k if many is None else clock.integers("graph pairs", k, 0, len(self.user))
        owner, positive = self.user[edge], self.item[edge]
        negative = draw_negatives(clock, self.everybody, owner, k)
        return owner, positive, torch.where(negative < 0, positive, negative)

    def _sample(self, many: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """The same by a compiled loop."""
        from rescind.methods._lent_graph.kernels import draw_pairs

        keys = [np.uint64(clock.key(w) % 2**64) for w in ("graph pairs", "negatives")]
        held = flat(self.sharers, self.user, self.item, self.lot.first, self.lot.count)
        owner, positive, negative = drawn = torch.empty(3, many, dtype=torch.int64)
        draw_pairs(*keys, *held, self.items, *drawn.numpy())
        return owner, positive, negative

    def some_items(self, many: int, clock: Clock) -> Tensor:
        """At most so many of the items somebody lent, drawn without replacement."""
        hashes = clock.bits("contrasted items", self.lent_items)
        chosen = torch.topk(hashes, min(many, len(hashes)), largest=False).indices
        return self.lent_items[chosen]

    @cached_property
    def lent_items(self) -> Tensor:
        """The items somebody lent, each once."""
        return torch.unique(self.item)


class _Propagate(torch.autograd.Function):
    """The operator is symmetric, so its gradient is the operator itself."""

    @staticmethod
    def forward(ctx: Any, user: Tensor, item: Tensor, graph: SharedGraph, layers: int) -> Any:
        ctx.graph, ctx.layers = graph, layers
        return graph._spread(user, item, layers)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        back_user, back_item = ctx.graph._spread(grads[0], grads[1], ctx.layers)
        return back_user, back_item, None, None


_KNOWN: weakref.WeakKeyDictionary[Records, SharedGraph] = weakref.WeakKeyDictionary()


def graph_of(world: World) -> SharedGraph:
    """The shared graph of a world; made once for as long as the same records are shared."""
    found = _KNOWN.get(world.shared)
    if found is None or found.items != world.sizes.items:
        pairs = torch.unique(world.shared.pairs())
        sharers, user = torch.unique(pairs >> 31, return_inverse=True)
        found = SharedGraph(user, pairs & (2**31 - 1), sharers, world.sizes.items)
        _KNOWN[world.shared] = found
    return found
