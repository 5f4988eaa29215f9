"""Neural collaborative filtering: a private network on a private vector and a public item row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.world import Sizes
from rescind.errors import ConfigError
from rescind.models.lightgcn import uniform
from rescind.models.mf import gaussian

_CELLS = 2**24  # hidden values computed at once: 64 MB of float32; changes speed only


@dataclass(frozen=True)
class NCF(RankingModel):
    """FedNCF (Perifanis and Efraimidis 2022, as F3CRec uses it): a network on [p_u; q_i].

    The published network is one linear layer, w_u . p_u + w_v . q_i + b, so the user vector shifts
    all scores of a user equally and cannot change a ranking (baselines.md 4.2). With hidden
    `layers` (ReLU between them) it is a real neural network.
    """

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)

    dim: int = 32
    """Length of a vector, d."""
    layers: tuple[int, ...] = ()
    """Widths of hidden layers. None as published; (64, 16) makes it nonlinear."""
    spread: float = 1.0
    """Standard deviation of the initial vectors: N(0, 1), f3crec.md section 1."""
    alike: bool = True
    """All devices start with the same network, as copies of one model do (see `PFedRec.alike`).
    With one draw per device, validation N@20 of fine-tuning on ML-100K falls from .227, .107, .115,
    .135 in the four blocks to .218, .088, .096, .125 (rate .05, one seed)."""
    faster: float = 170.0
    """Learning rate of the vectors relative to the network (the authors' default)."""

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.layers):
            raise ConfigError(f"NCF.layers must be widths of at least 1, got {list(self.layers)}.")

    @property
    def kernel(self) -> str:
        """Return 'linear' without hidden layers: the score is then linear in the item row."""
        return "" if self.layers else "linear"

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Return the layout for the linear kernel: [a; v] = weights, shift = bias + a . p_u."""
        d = self.dim
        return ("weight0", d, 2 * d), ("bias0", 0, 1), ("weight0", 0, d), ("user", 0, d)

    def moves(self) -> tuple[Mapping[str, float], ...]:
        """Return one step per batch: vectors move `faster` times as fast as the network."""
        return ({"item": self.faster, "user": self.faster},)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Return user: [C, d]    weight<n>: [C, out, in]    bias<n>: [C, out], U(+-1 / sqrt(in))"""
        values = {"user": gaussian("user", ids, self.dim, self.spread, clock)}
        first = torch.zeros_like(ids) if self.alike else ids
        inside = 2 * self.dim
        for n, out in enumerate((*self.layers, 1)):
            bound = inside**-0.5
            flat = uniform(f"weight{n}", first, out * inside, bound, clock)
            values[f"weight{n}"] = flat.view(len(ids), out, inside)
            values[f"bias{n}"] = uniform(f"bias{n}", first, out, bound, clock)
            inside = out
        return values

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        item = rows["item"]
        if not self.layers:
            weight = own["weight0"][:, 0, self.dim :].index_select(0, owner)
            shift = self._shift(own).squeeze(1)
            return torch.linalg.vecdot(weight, item) + shift.index_select(0, owner)
        clients = len(own["user"])
        order = torch.argsort(owner, stable=True)
        position = torch.empty_like(owner)
        position[order] = jagged.places(owner[order], clients)
        width = int(position.max()) + 1 if len(position) else 0
        padded = item.new_zeros((clients, width, self.dim)).index_put((owner, position), item)
        return self._forward(padded, own)[owner, position]

    def scores(self, public: Params, own: Params) -> Tensor:
        item = public["item"]
        if not self.layers:
            return own["weight0"][:, 0, self.dim :] @ item.T + self._shift(own)
        chunk = max(1, _CELLS // max(1, len(item) * max(self.layers)))
        clients = torch.arange(len(own["user"]), device=item.device)
        parts = [
            self._forward(item.expand(len(ids), *item.shape), {n: v[ids] for n, v in own.items()})
            for ids in torch.split(clients, chunk)
        ]
        return torch.cat(parts) if parts else item.new_zeros((0, len(item)))

    def _shift(self, own: Params) -> Tensor:
        """Return what the user vector and the bias add to the first layer. [C, out]"""
        weight = own["weight0"][:, :, : self.dim]
        return (weight @ own["user"].unsqueeze(2)).squeeze(2) + own["bias0"]

    def _forward(self, item: Tensor, own: Params) -> Tensor:
        """Score items of each client with its network. item: [C, n, d]    -> [C, n]"""
        value = item @ own["weight0"][:, :, self.dim :].mT + self._shift(own).unsqueeze(1)
        for n in range(1, len(self.layers) + 1):
            value = torch.relu(value) @ own[f"weight{n}"].mT + own[f"bias{n}"].unsqueeze(1)
        return value.squeeze(2)
