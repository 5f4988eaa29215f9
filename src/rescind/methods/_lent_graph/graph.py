"""The bipartite graph of lent records, and LightGCN propagation on it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core import fast, jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.records import Records
from rescind.core.tasks.ranking import draw_negatives
from rescind.core.world import World


def by_kernel(*tables: Tensor) -> bool:
    """Return whether compiled loops can be used: numba is installed, and tables are on the CPU."""
    return fast.compiled() and all(t.device.type == "cpu" for t in tables)


def flat(*tensors: Tensor) -> list[Any]:
    """Return tensors as flat numpy arrays, without a copy if contiguous."""
    return [t.detach().contiguous().numpy().reshape(-1) for t in tensors]


def _like(table: Tensor) -> Tensor:
    return torch.empty(table.shape, dtype=table.dtype, device=table.device)


@dataclass(frozen=True)
class Side:
    """Weighted edges grouped by row: a sparse matrix from one side of the graph to the other."""

    row: Tensor
    """[E] sorted"""
    place: Tensor
    """[E] row of the other side"""
    weight: Tensor
    """[E]"""
    shape: tuple[int, int]

    @cached_property
    def narrow(self) -> Tensor:
        return self.weight.float()

    @cached_property
    def places(self) -> Tensor:
        """Return the indices of a torch sparse matrix. [2, E]"""
        return torch.stack([self.row, self.place])

    @cached_property
    def edges(self) -> tuple[Any, Any]:
        """Return the start of each row's edges, and places padded for prefetching."""
        from rescind.core.fast.rowops import AHEAD

        first = np.zeros(self.shape[0] + 1, np.int64)
        np.cumsum(jagged.counts(self.row, self.shape[0]).numpy(), out=first[1:])
        # int32: memory bandwidth is the limit.
        return first, np.append(self.place.numpy().astype(np.int32), np.zeros(AHEAD, np.int32))

    def plus(self, own: Tensor, share: float, other: Tensor, scale: float, out: Tensor) -> Tensor:
        """Write share * own + scale * (this matrix times other) into `out`. [rows, d]"""
        weight = self.narrow if other.dtype == torch.float32 else self.weight.to(other.dtype)
        if not by_kernel(own, other):
            matrix = torch.sparse_coo_tensor(
                self.places, weight, self.shape, is_coalesced=True, check_invariants=False
            )
            return torch.mul(own, share, out=out).add_(torch.sparse.mm(matrix, other), alpha=scale)
        from rescind.methods._lent_graph.kernels import neighbours

        mine, theirs, weights, filled = flat(own, other, weight, out)
        by, times = (mine.dtype.type(n) for n in (share, scale))
        neighbours(own.shape[1], mine, by, theirs, *self.edges, weights, times, filled)
        return out


@dataclass(frozen=True)
class SharedGraph:
    """Distinct shared pairs, sorted by user, with cached properties."""

    user: Tensor
    """[E] index of the user in `sharers`."""
    item: Tensor
    """[E]"""
    sharers: Tensor
    """[U] clients that lend something, sorted."""
    items: int

    @property
    def users(self) -> int:
        return len(self.sharers)

    @cached_property
    def lot(self) -> Lot:
        """Return the lent items by sharer."""
        return Lot(self.user, self.item, self.users)

    @cached_property
    def cohort(self) -> Cohort:
        """Return the sharers as a cohort, to draw negatives."""
        return Cohort(self.sharers, self.items, self.lot, self.lot)

    @cached_property
    def weight(self) -> Tensor:
        """Return 1 / sqrt(degree of the user x degree of the item) per edge. [E]"""
        by_user = jagged.counts(self.user, self.users).clamp(min=1).double()
        by_item = jagged.counts(self.item, self.items).clamp(min=1).double()
        return torch.rsqrt(by_user[self.user] * by_item[self.item])

    @cached_property
    def matrices(self) -> tuple[Side, Side]:
        """Return the normalised adjacency, users x items and items x users."""
        order = torch.argsort(self.item, stable=True)
        back = (self.item[order], self.user[order], self.weight[order])
        there = (self.user, self.item, self.weight)
        return Side(*there, (self.users, self.items)), Side(*back, (self.items, self.users))

    def propagate(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """Return the mean of layers 0..L of LightGCN: (users [U, d], items [I, d])."""
        wide = torch.promote_types(user.dtype, item.dtype)
        spread: Any = _Propagate.apply
        out: tuple[Tensor, Tensor] = spread(user.to(wide), item.to(wide), self, layers)
        return out

    @cached_property
    def buffers(self) -> list[tuple[Tensor, ...]]:
        """Return reusable tables for propagation; a user removes one while it is in use."""
        return []

    def _spread(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """Compute (x + A x + ... + A^L x) / (L + 1) as s x + A (s x + A (...))."""
        to_user, to_item = self.matrices
        share = scale = 1 / (layers + 1)
        seen, out = (user, item), (_like(user), _like(item))
        if not layers:
            return out[0].copy_(user), out[1].copy_(item)
        # Allocating memory costs as much as a product.
        spare = self.buffers.pop() if self.buffers else ()
        if [t.shape for t in spare] != [user.shape, item.shape] or spare[0].dtype != user.dtype:
            spare = (_like(user), _like(item))
        for left in reversed(range(layers)):
            into = spare if left % 2 else out
            users = to_user.plus(user, share, seen[1], scale, into[0])
            seen = users, to_item.plus(item, share, seen[0], scale, into[1])
            scale = 1.0
        self.buffers.append(spare)
        return seen

    def sample(self, count: int | None, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Draw users, items they lent, and items they did not lend. [n] each

        Pairs are drawn with replacement; None takes every pair once. The server does not know kept
        items, so a negative may be one of them.
        """
        if count is not None and by_kernel(self.user):
            return self._sample(count, clock)
        k = torch.arange(len(self.user) if count is None else count, device=self.user.device)
        edge = k if count is None else clock.integers("graph pairs", k, 0, len(self.user))
        owner, positive = self.user[edge], self.item[edge]
        negative = draw_negatives(clock, self.cohort, owner, k)
        return owner, positive, torch.where(negative < 0, positive, negative)

    def _sample(self, count: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        from rescind.methods._lent_graph.kernels import draw_pairs

        keys = [np.uint64(clock.key(w) % 2**64) for w in ("graph pairs", "negatives")]
        held = flat(self.sharers, self.user, self.item, self.lot.first, self.lot.count)
        owner, positive, negative = drawn = torch.empty(3, count, dtype=torch.int64)
        draw_pairs(*keys, *held, self.items, *drawn.numpy())
        return owner, positive, negative

    def some_items(self, count: int, clock: Clock) -> Tensor:
        return draw(self.lent_items, count, clock)

    @cached_property
    def lent_items(self) -> Tensor:
        return torch.unique(self.item)


def draw(items: Tensor, count: int, clock: Clock) -> Tensor:
    """Draw at most `count` items without replacement. [n]"""
    hashes = clock.bits("contrasted items", items)
    return items[torch.topk(hashes, min(count, len(items)), largest=False).indices]


class _Propagate(torch.autograd.Function):
    """Propagation; the operator is symmetric, so it is its own gradient."""

    @staticmethod
    def forward(ctx: Any, user: Tensor, item: Tensor, graph: SharedGraph, layers: int) -> Any:
        ctx.graph, ctx.layers = graph, layers
        return graph._spread(user, item, layers)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.graph._spread(*grads, ctx.layers), None, None


_KNOWN: weakref.WeakKeyDictionary[Records, SharedGraph] = weakref.WeakKeyDictionary()


def graph_of(world: World) -> SharedGraph:
    """Return the shared graph of a world, cached while the same records are shared."""
    found = _KNOWN.get(world.shared)
    if found is None or found.items != world.sizes.items:
        pairs = torch.unique(world.shared.pairs())
        sharers, user = torch.unique(pairs >> 31, return_inverse=True)
        found = SharedGraph(user, pairs & (2**31 - 1), sharers, world.sizes.items)
        _KNOWN[world.shared] = found
    return found
