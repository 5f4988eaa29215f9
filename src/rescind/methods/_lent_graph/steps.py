"""Training steps of LightGCN on the graph of lent records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.optim import FIRST, SECOND, TINY, server_move
from rescind.core.params import Params
from rescind.core.versions import Versions
from rescind.core.world import World
from rescind.methods._lent_graph.graph import SharedGraph, by_kernel, flat
from rescind.models.lightgcn import uniform

NEGATIVES = 2**20
"""First clock step of the server's negatives, above all steps of devices."""

Term = Callable[[Tensor, Tensor], Tensor]
"""Extra loss term: a function of the items before and after propagation."""


@dataclass(frozen=True)
class GraphSteps:
    """Settings of LightGCN training on a graph."""

    layers: int = 3
    """Propagation steps; 0 is matrix factorisation."""
    steps: int = 1
    """Number of steps."""
    pairs: int | None = None
    """Pairs drawn for a step, with replacement; None takes every pair once."""
    optimiser: Literal["plain", "adam"] = "adam"
    """Optimiser; "plain" is gradient descent."""
    rate: float = 0.001
    """Learning rate of both tables."""
    temperature: float = 0.2
    """Scores are divided by it inside the loss."""
    score: Literal["cosine", "dot"] = "cosine"
    """How a user and an item are compared."""
    decay: float = 0.0
    """L2 on the rows of the drawn pairs, as a mean over pairs."""
    weight: float = 1.0
    """Weight of the pair loss; 0 disables it."""

    @classmethod
    def of(cls, method: Any, **more: Any) -> GraphSteps:
        """Read the settings of a method with fields `layers`, `temperature` and `graph_*`."""
        named = {n: getattr(method, f"graph_{n}") for n in ("steps", "pairs", "optimiser", "rate")}
        return cls(layers=method.layers, temperature=method.temperature, **named, **more)

    def draw(self, graph: SharedGraph, step: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the pairs of a step: users, lent items, and other items. [n] each"""
        return graph.sample(self.pairs, clock.step(NEGATIVES + step))

    def loss(self, user: Tensor, item: Tensor, drawn: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the mean of softplus(-(s_positive - s_negative) / temperature), plus decay."""
        if by_kernel(user, item) and not self.decay:
            pairs: Any = _Pairs.apply
            loss: Tensor = pairs(user, item, drawn, self.temperature, self.score == "cosine")
            return loss
        return self.plain_loss(user, item, drawn)

    def plain_loss(
        self, user: Tensor, item: Tensor, drawn: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Compute `loss` by autograd: on any device, and with decay."""
        owner, positive, negative = drawn
        if self.score == "cosine":
            user, item = functional.normalize(user, dim=-1), functional.normalize(item, dim=-1)
        one = user.index_select(0, owner)
        near, far = (item.index_select(0, other) for other in (positive, negative))
        gap = torch.linalg.vecdot(one, far) - torch.linalg.vecdot(one, near)
        loss = functional.softplus(gap / self.temperature).mean()
        if self.decay:
            loss = loss + self.decay * sum(r.square().sum(-1).mean() for r in (one, near, far))
        return loss

    def run(
        self,
        graph: SharedGraph,
        user: Tensor,
        item: Tensor,
        moments: Params,
        clock: Clock,
        more: Term | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Take the steps on layer 0 of both sides. Return (users, items, moments).

        user: [clients, d]; only sharers' rows are used    more: extra loss term
        """
        rows = {
            n: grown(v, user).index_select(0, graph.sharers) if _of_users(n, v) else v
            for n, v in moments.items()
        }
        mine = user.index_select(0, graph.sharers)
        mine, item, kept = self.run_rows(graph, mine, item, rows, clock, more)
        for name, value in kept.items():
            if _of_users(name, value):
                kept[name] = grown(moments.get(name), user).index_copy(0, graph.sharers, value)
        return user.index_copy(0, graph.sharers, mine), item, kept

    def run_rows(
        self,
        graph: SharedGraph,
        user: Tensor,
        item: Tensor,
        moments: Params,
        clock: Clock,
        more: Term | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Take the steps as in `run`. user, moments of users: [sharers, d]"""
        tables, kept = {"user": user, "item": item}, dict(moments)
        for step in range(self.steps):
            leaves = {n: v.detach().requires_grad_() for n, v in tables.items()}
            seen = graph.propagate(leaves["user"], leaves["item"], self.layers)
            loss = item.new_zeros(())
            if self.weight:
                loss = loss + self.weight * self.loss(*seen, self.draw(graph, step, clock))
            if more is not None:
                loss = loss + more(leaves["item"], seen[1])
            down = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            grads = {n: g for n, g in zip(leaves, down, strict=True) if g is not None}
            tables, kept = moved_down(tables, kept, grads, self.optimiser, self.rate)
        return tables["user"], tables["item"], kept


class _Pairs(torch.autograd.Function):
    """The pair loss and its gradient in one compiled loop."""

    @staticmethod
    def forward(
        ctx: Any, user: Tensor, item: Tensor, drawn: Any, temperature: float, cosine: bool
    ) -> Tensor:
        from rescind.methods._lent_graph.kernels import pair_loss

        ctx.down = [torch.zeros_like(t) for t in (user, item)]
        arrays = flat(user, item, *drawn)
        scale = arrays[0].dtype.type(1 / temperature)
        loss = pair_loss(user.shape[1], *arrays, scale, cosine, *flat(*ctx.down))
        return user.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        down = ctx.down if float(grads[0]) == 1 else [grads[0] * g for g in ctx.down]
        return *down, None, None, None


def moved_down(
    tables: Params, moments: Params, down: Params, optimiser: Literal["plain", "adam"], rate: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Take one step down a gradient: `server_move`, with Adam in a compiled loop."""
    if optimiser != "adam" or not by_kernel(*tables.values()):
        direction = {n: -g for n, g in down.items()}
        return server_move(tables, moments, direction, optimiser, rate)
    from rescind.methods._lent_graph.kernels import adam

    after, kept = dict(tables), dict(moments)
    for name, grad in down.items():
        one, two, count = (f"server/{part}/{name}" for part in ("first", "second", "steps"))
        steps = kept.get(count, torch.zeros(())) + 1
        unbiased = (rate / (1 - FIRST ** float(steps)), (1 - SECOND ** float(steps)) ** -0.5)
        before = (tables[name], *(grown(kept.get(n), tables[name]) for n in (one, two)), grad)
        made = [torch.empty_like(tables[name]) for _ in range(3)]
        arrays, numbers = flat(*before), (FIRST, SECOND, 1 - FIRST, 1 - SECOND, *unbiased, TINY)
        adam(*arrays, tuple(arrays[0].dtype.type(n) for n in numbers), *flat(*made))
        after[name], kept[one], kept[two] = made
        kept[count] = steps
    return after, kept


def grown(known: Tensor | None, like: Tensor) -> Tensor:
    """Extend a table with zero rows to the length of `like`."""
    if known is not None and len(known) == len(like):
        return known
    out = torch.zeros_like(like)
    if known is not None:
        out[: len(known)] = known
    return out


def _of_users(name: str, value: Tensor) -> bool:
    return name.endswith("/user") and value.dim() == 2


def of_users(name: str) -> bool:
    """Return whether a value of the server has rows of clients: its users, or their moments."""
    return name == "user" or name.endswith(("/first/user", "/second/user"))


def server_rows(own: Params, world: World, dim: int, spread: float, clock: Clock) -> Tensor:
    """Return the server's row of each client, initialised for new clients. [clients, d]"""
    known = own.get("user")
    have = 0 if known is None else len(known)
    ids = torch.arange(have, world.sizes.clients, device=world.members.device)
    new = uniform("server user", ids, dim, spread, clock.at(0))
    return new if known is None else torch.cat([known, new.to(known)])


def grown_rows(own: Params, world: World, spread: float, clock: Clock) -> Params:
    """Extend the server's values to new clients: initial rows and zero moments."""
    if isinstance(own, Versions) and len(own.rows("user")) == world.sizes.clients:
        return own
    user = own["user"]
    if len(user) == world.sizes.clients:
        return own
    out = {**own, "user": server_rows(own, world, user.shape[1], spread, clock)}
    for name, value in own.items():
        if _of_users(name, value):
            out[name] = grown(value, out["user"])
    return out


def under(prefix: str, own: Params) -> dict[str, Tensor]:
    """Return the values with this prefix, names without it."""
    return {n.removeprefix(prefix): v for n, v in own.items() if n.startswith(prefix)}


def prefixed(prefix: str, values: Params) -> dict[str, Tensor]:
    return {f"{prefix}{n}": v for n, v in values.items()}
