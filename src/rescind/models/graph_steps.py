"""Learning on the graph of what people lent: pairs, their loss, and steps down it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.clock import Clock
from rescind.cohort import Cohort
from rescind.models.lightgcn import uniform
from rescind.models.shared_graph import SharedGraph
from rescind.optim import server_move
from rescind.params import Params
from rescind.tasks.ranking import draw_negatives
from rescind.world import World

NEGATIVES = 2**20
"""The first clock step of the server's negatives: beyond the steps that devices use."""


@dataclass(frozen=True)
class GraphSteps:
    """How LightGCN learns from a graph: so many steps on so many pairs."""

    layers: int = 3
    """Propagation steps; 0 is matrix factorisation."""
    steps: int = 1
    """Steps taken one after another."""
    pairs: int | None = None
    """Pairs drawn for a step, with replacement; None takes every pair once."""
    optimiser: Literal["plain", "adam"] = "adam"
    """By which rule; "plain" is gradient descent."""
    rate: float = 0.001
    """Learning rate of both tables."""
    temperature: float = 0.2
    """Scores are divided by it inside the loss."""
    score: Literal["cosine", "dot"] = "cosine"
    """How a user and an item are compared."""
    decay: float = 0.0
    """L2 on the rows of the drawn pairs, as a mean over pairs."""

    def draw(self, graph: SharedGraph, step: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Users, items they lent, and items they did not. [n] each

        The server does not know what people kept, so a negative may be something they have.
        """
        device = graph.user.device
        many = len(graph.user) if self.pairs is None else self.pairs
        k = torch.arange(many, device=device)
        now = clock.step(NEGATIVES + step)
        edge = k if self.pairs is None else now.integers("graph pairs", k, 0, len(graph.user))
        owner, positive = graph.user[edge], graph.item[edge]
        everybody = Cohort(graph.sharers, graph.items, graph.lot, graph.lot)
        negative = draw_negatives(now, everybody, owner, k)
        return owner, positive, torch.where(negative < 0, positive, negative)

    def loss(self, user: Tensor, item: Tensor, drawn: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Mean over pairs of softplus(-(s_positive - s_negative) / temperature), plus decay."""
        owner, positive, negative = drawn
        if self.score == "cosine":
            user, item = functional.normalize(user, dim=-1), functional.normalize(item, dim=-1)
        one, near = user.index_select(0, owner), item.index_select(0, positive)
        far = item.index_select(0, negative)
        gap = torch.linalg.vecdot(one, far) - torch.linalg.vecdot(one, near)
        loss = functional.softplus(gap / self.temperature).mean()
        if self.decay:
            loss = loss + self.decay * sum(r.square().sum(-1).mean() for r in (one, near, far))
        return loss

    def run(
        self, graph: SharedGraph, user: Tensor, item: Tensor, moments: Params, clock: Clock
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(users, items, moments) after the steps. Layer 0 of both sides is what moves.

        user: [clients, d], of which only the sharers' rows are read and moved
        """
        tables = {"user": user.index_select(0, graph.sharers), "item": item}
        kept = {n: v.index_select(0, graph.sharers) if _of_users(n, v) else v
                for n, v in moments.items()}  # fmt: skip
        for step in range(self.steps):
            leaves = {n: v.detach().requires_grad_() for n, v in tables.items()}
            seen = graph.propagate(leaves["user"], leaves["item"], self.layers)
            loss = self.loss(*seen, self.draw(graph, step, clock))
            down = torch.autograd.grad(loss, list(leaves.values()))
            direction = {n: -g for n, g in zip(leaves, down, strict=True)}
            tables, kept = server_move(tables, kept, direction, self.optimiser, self.rate)
        for name, value in kept.items():
            if _of_users(name, value):
                whole = torch.zeros_like(user)
                if name in moments:
                    whole[: len(moments[name])] = moments[name]
                kept[name] = whole.index_copy_(0, graph.sharers, value)
        return user.index_copy(0, graph.sharers, tables["user"]), tables["item"], kept


def _of_users(name: str, value: Tensor) -> bool:
    """Whether a moment of the optimiser has a row per client."""
    return name.endswith("/user") and value.dim() == 2


def server_rows(own: Params, world: World, dim: int, spread: float, clock: Clock) -> Tensor:
    """The server's row for everybody, first values for whoever is new. [clients, d]

    Only sharers' rows are used. Each comes from its own number, so none moves when others come.
    """
    known = own.get("user")
    have = 0 if known is None else len(known)
    ids = torch.arange(have, world.sizes.clients, device=world.members.device)
    new = uniform("server user", ids, dim, spread, clock.at(0))
    return new if known is None else torch.cat([known, new.to(known)])


def grown_rows(own: Params, world: World, spread: float, clock: Clock) -> dict[str, Tensor]:
    """The server's own values with room for newcomers: their rows, and zeros for their moments."""
    user = own["user"]
    if len(user) == world.sizes.clients:
        return dict(own)
    out = {**own, "user": server_rows(own, world, user.shape[1], spread, clock)}
    for name, value in own.items():
        if _of_users(name, value):
            out[name] = torch.zeros_like(out["user"])
            out[name][: len(value)] = value
    return out


def under(prefix: str, own: Params) -> dict[str, Tensor]:
    """The values whose names begin so, without the prefix."""
    return {n.removeprefix(prefix): v for n, v in own.items() if n.startswith(prefix)}


def prefixed(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values with the prefix before their names."""
    return {f"{prefix}{n}": v for n, v in values.items()}
