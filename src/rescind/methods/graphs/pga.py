"""Gradient ascent on the leaving client's nodes: with a retention term, and in a ball (PGA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, VALID
from rescind.core.optim import server_move
from rescind.core.params import Params, add, norm, to
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET
from rescind.methods.graphs._ascent import Climbing
from rescind.methods.graphs.fedgcv import FedGCV


@dataclass(frozen=True, kw_only=True)
class GraphAscent(FedGCV):
    """Ascent for the leaving client, descent for the others: Eq. (2.6) of the FedGCV paper.

    The ablation "w/o GRU". It uses FedGCV's ball, because the loss is unbounded.
    """

    paper: ClassVar[str] = "Eq. (2.6) of Ma et al., arXiv 2605.02297"
    presets: ClassVar[tuple[str, ...]] = ()

    objective: Literal["npo", "ascent"] = "ascent"
    correct: bool = False
    retention: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PGA(Climbing):
    """Projected gradient ascent of the client alone (Halimi et al. 2022), then repair rounds.

    Starts at the mean of the others' models, w_ref = (w - p_j w_j) / (1 - p_j), and stays within a
    third of the mean distance of w_ref to random models. Stops early; otherwise accuracy falls to
    24 % (fedgcv.md section 3).
    """

    paper: ClassVar[str] = "Halimi et al. 2022 (PGA)"

    forget_rounds: int = 5
    """Maximum number of ascent steps."""
    enough: float = 2.0
    """Stop when the client's loss is this many times the loss on the others' validation nodes."""
    repair_rounds: int = 5

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Start at the others' mean, ascend the leaving client's loss, then repair."""

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            start = self.others_mean(fed, roles)
            device, sizes = fed.world.members.device, fed.world.sizes
            random = [
                to(fed.method.model.public(sizes, Clock(seed)), device)
                for seed in range(fed.clock.seed + 1, fed.clock.seed + 11)
            ]
            distance = [norm(add(start, other, -1.0)) for other in random]
            radius = torch.tensor(sum(distance) / len(distance) / 3)
            now = removal.with_reference(fed, {**start, "radius": radius}, roles, only=FORGET)
            public = {**now.now.state.public, **start}
            now = now.with_(state=replace(now.now.state, public=public))
            for _ in range(self.forget_rounds):
                if self.forgot_enough(now, removal.leaving_client(roles)):
                    break
                now = now.run(1, method=removal.one_step(self, dropout=0.0), roles=roles)
            return now

        return removal.remove_client(fed, request, steps, self.repair_rounds)

    def others_mean(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """Return (w - p_j w_j) / (1 - p_j), with w_j from the leaving client's next round."""
        neutral = {c: "leaver" if role == FORGET else "others" for c, role in roles.items()}
        sums = removal.round_sums(fed, replace(fed.method, clients_per_round=None), neutral)
        now = removal.weights(fed.now.state.public)
        if "leaver" not in sums or "others" not in sums:  # no training nodes, or no client stays
            return now
        update = {n: v for n, v in sums["leaver"].mean().items() if n in now}
        return add(now, update, -sums["leaver"].weight / sums["others"].weight)

    def forgot_enough(self, fed: Federation, client: int) -> bool:
        """Return whether the client's loss is far above that of nodes not used in training."""
        held = fed.now.vault.holdings
        mine = held.records.client == client
        own = fed.query(held.records[mine & (held.split == TRAIN)], "loss").mean()
        others = fed.query(held.records[~mine & (held.split == VALID)], "loss")
        return len(others) > 0 and float(own) >= self.enough * float(others.mean())

    def server_ascend(self, state: ServerState, step: Params) -> ServerState:
        """Take a step with momentum, then project back into the ball."""
        after, own = server_move(state.public, state.own, step, "momentum", self.forget_rate)
        radius = float(removal.reference(state.public)["radius"])
        return state.next(removal.within_ball(state.public, after, radius), own)
