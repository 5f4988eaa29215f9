"""Gradient ascent on the leaver's nodes: with a retention term, and projected on a ball (PGA)."""

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
from rescind.methods._client_removal import (
    FORGET,
    clipped,
    forgotten,
    leaver,
    one_step,
    reference,
    referring,
    watched,
    weights,
)
from rescind.methods.graphs._ascent import Climbing
from rescind.methods.graphs.fedgcv import FedGCV


@dataclass(frozen=True, kw_only=True)
class GraphAscent(FedGCV):
    """Ascent on the leaver, descent on the others: Eq. (2.6) of the FedGCV paper.

    What the ablation "w/o GRU" runs. The ball is FedGCV's: the loss has no upper end.
    """

    paper: ClassVar[str] = "Eq. (2.6) of Ma et al., arXiv 2605.02297"
    presets: ClassVar[tuple[str, ...]] = ()

    objective: Literal["npo", "ascent"] = "ascent"
    correct: bool = False
    retention: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PGA(Climbing):
    """Projected gradient ascent (Halimi et al. 2022), the leaver alone, then rounds of the others.

    Begins at the mean of the others' models, w_ref = (w - p_j w_j) / (1 - p_j), and stays within a
    third of the mean distance of w_ref to random models. Stops early: without, accuracy falls to
    24 % (fedgcv.md section 3).
    """

    paper: ClassVar[str] = "Halimi et al. 2022 (PGA)"

    forget_rounds: int = 5
    """At most so many steps of ascent."""
    enough: float = 2.0
    """Stop when the leaver's loss is so many times the others' on their validation nodes."""
    repair_rounds: int = 5

    def forget(self, fed: Federation, request: Request) -> Federation:
        """From the others' mean, up the leaver's loss, then repair."""

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            start = self.others_mean(fed, roles)
            device, sizes = fed.world.members.device, fed.world.sizes
            others = [
                to(fed.method.model.public(sizes, Clock(number)), device)
                for number in range(fed.clock.seed + 1, fed.clock.seed + 11)
            ]
            far = [norm(add(start, other, -1.0)) for other in others]
            began = {**start, "radius": torch.tensor(sum(far) / len(far) / 3)}
            now = referring(fed, began, roles, only=FORGET)
            now = now.with_(state=moved_to(now.now.state, start))
            for _ in range(self.forget_rounds):
                if self.lost(now, leaver(roles)):
                    break
                now = now.run(1, method=one_step(self, dropout=0.0), roles=roles)
            return now

        return forgotten(fed, request, steps, self.repair_rounds)

    def others_mean(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """(w - p_j w_j) / (1 - p_j), with w_j what the leaver's next round gives."""
        neutral = {c: "leaver" if role == FORGET else "others" for c, role in roles.items()}
        sums = watched(fed, replace(fed.method, clients_per_round=None), neutral)
        now = weights(fed.now.state.public)
        if "leaver" not in sums or "others" not in sums:  # nothing to train on, or nobody stays
            return now
        moved = {n: v for n, v in sums["leaver"].mean().items() if n in now}
        return add(now, moved, -sums["leaver"].weight / sums["others"].weight)

    def lost(self, fed: Federation, client: int) -> bool:
        """Whether the leaver's nodes are far worse than nodes nobody trained on."""
        held = fed.now.vault.holdings
        mine = held.records.client == client
        own = fed.query(held.records[mine & (held.split == TRAIN)], "loss").mean()
        others = fed.query(held.records[~mine & (held.split == VALID)], "loss")
        return len(others) > 0 and float(own) >= self.enough * float(others.mean())

    def server_climb(self, state: ServerState, step: Params) -> ServerState:
        """A step with momentum, back onto the ball."""
        after, own = server_move(state.public, state.own, step, "momentum", self.forget_rate)
        began = reference(state.public)
        gone = clipped({n: v - began[n] for n, v in weights(after).items()}, float(began["radius"]))
        return state.next({**after, **{n: began[n] + v for n, v in gone.items()}}, own)


def moved_to(state: ServerState, public: Params) -> ServerState:
    """The state with other weights."""
    return ServerState({**state.public, **public}, state.own, state.memory, state.round)
