"""LightGCN on the server: the bipartite graph of what people lent."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rescind import jagged
from rescind.clock import Clock
from rescind.cohort import Cohort, Lot
from rescind.records import Records
from rescind.tasks.ranking import draw_negatives
from rescind.world import World


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
    def weight(self) -> Tensor:
        """1 / sqrt(degree of the user x degree of the item), for each edge. [E]"""
        by_user = jagged.counts(self.user, self.users).clamp(min=1).float()
        by_item = jagged.counts(self.item, self.items).clamp(min=1).float()
        return torch.rsqrt(by_user[self.user] * by_item[self.item])

    @cached_property
    def matrices(self) -> tuple[Any, Any]:
        """The normalised adjacency, users x items and items x users: scipy CSR, or COO on a GPU."""
        shape = (self.users, self.items)
        if self.user.device.type != "cpu":
            places = torch.stack([self.user, self.item])
            there = torch.sparse_coo_tensor(places, self.weight, shape).coalesce()
            return there, there.T.coalesce()
        from scipy.sparse import csr_array

        # Narrow indices: a product is bound by what it reads.
        narrow = (self.user.numpy().astype("int32"), self.item.numpy().astype("int32"))
        matrix = csr_array((self.weight.numpy(), narrow), shape=shape)
        return matrix, csr_array(matrix.T)

    def propagate(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """The mean of layers 0..L of LightGCN: (users [U, d], items [I, d])."""
        out: tuple[Tensor, Tensor] = _Propagate.apply(user, item, self, layers)  # type: ignore[no-untyped-call]
        return out

    def _spread(self, user: Tensor, item: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        to_user, to_item = self.matrices
        total_user, total_item = user.clone(), item.clone()
        for _ in range(layers):
            user, item = _product(to_user, item), _product(to_item, user)
            total_user += user
            total_item += item
        return total_user.div_(layers + 1), total_item.div_(layers + 1)

    def sample(self, many: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Shared pairs drawn with replacement, each with an item its user does not share."""
        k = torch.arange(many, device=self.user.device)
        edge = clock.integers("server pairs", k, 0, len(self.user))
        owner = self.user[edge]
        everybody = Cohort(self.sharers, self.items, self.lot, self.lot)
        negative = draw_negatives(clock.step(2**20), everybody, owner, k)
        return owner, self.item[edge], torch.where(negative < 0, self.item[edge], negative)

    def some_items(self, many: int, clock: Clock) -> Tensor:
        """At most so many of the items somebody lent, drawn without replacement."""
        order = torch.argsort(clock.bits("contrasted items", self.lent_items), stable=True)
        return self.lent_items[order[:many]]

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


def _product(matrix: Any, dense: Tensor) -> Tensor:
    if isinstance(matrix, Tensor):
        return torch.sparse.mm(matrix, dense)
    return torch.from_numpy(matrix @ dense.numpy())


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
