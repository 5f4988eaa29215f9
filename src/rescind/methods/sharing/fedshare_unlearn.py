"""Unlearning of FedShare by contrast with forgotten views (Algorithm 2)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.method import Method, Unlearner
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import Memory, ServerState
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import draw, graph_of
from rescind.methods._lent_graph.steps import grown_rows, server_rows
from rescind.methods.sharing import _forgotten_views as forgotten
from rescind.methods.sharing._forgotten_views import Reading, contrastive_forgetting
from rescind.methods.sharing._server_rerun import USUAL_PULL, moved, one_story, pull, sums_of
from rescind.methods.sharing.fedshare import REFINE, FedShare, learnt_by, refined
from rescind.methods.unlearning.purge_only import without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation

FORGOTTEN = "forgotten"
"""Name of the forgotten views in the server's memory during unlearning."""
MOST = 1000
FEWER = 5  # retraining takes this many times more rounds
ASKED = 2  # exchanges with devices to measure the damping


@dataclass(frozen=True, kw_only=True)
class FedShareUnlearn(Unlearner):
    """Unlearning of FedShare by contrast instead of retraining (Algorithm 2, Eq. 19-25).

    A few more rounds on the remaining records; in each the server moves items towards their view on
    the remaining graph and away from their views on the forgotten graph.

    DEPARTS Algorithm 2: if the means of updates were kept (`keep_sums`), the server first replays
    its own steps without the records (`_server_rerun`), and the rounds start there. Without the
    replay the rounds move the table by a tenth of its length, and an old row of a user still finds
    its records: AUC .560, retraining .518 (ML-100K), .575 and .553 (ML-1M).

    DEPARTS Algorithm 2: device updates count less from round to round (`settle`). A round has 256
    users: on validation of ML-1M the last of 28 rounds has NDCG@20 .2122, the mean of their tables
    .2214, with `settle` .2229, and retraining .2177.

    DEPARTS Eq. (25): BPR on the remaining graph, and a tenth of the contrast with in-batch and
    forgotten negatives. As written the loss has no stopping point and over-forgets, which is also
    a trace (calibrated AUC .45-.46 on ML-100K, retraining .50).
    """

    paper: ClassVar[str] = FedShare.paper
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FedShareUnlearn"
    presets: ClassVar[tuple[str, ...]] = ("unlearn_as_published",)

    rounds: int | None = None
    """Rounds of unlearning, T_un. Default: a fifth of the training rounds."""
    settle: bool = True
    """Reduce the weight of device updates from round to round, so that the table converges."""
    reading: Reading = "bpr_in_batch"
    """How Eq. (25) is read."""
    contrast_forgotten: float = 0.1
    """Weight of the contrast with reading "bpr_in_batch"; the others have no BPR."""
    unlearn_rate: float = 0.001
    """Learning rate of the server's Adam during unlearning; its moments are reset."""
    own_layer: bool = True
    """Include the item's own layer 0 in a forgotten view, as in Eq. (14)."""
    forgotten_graph: bool = True
    """False is the ablation "w/o forgotten graph"."""
    remaining_training: bool = True
    """False is the ablation "w/o remaining FL": no device has to be online."""
    replay: bool = True
    """Start with a replay of the server's steps, if the means of updates were kept."""
    damping: float | Literal["measured"] = USUAL_PULL
    """Damping of the replay. "measured" asks the clients of one round (`_server_rerun.pull`), which
    counts as two rounds: for data unlike MovieLens."""

    @classmethod
    def unlearn_as_published(cls, **given: Any) -> FedShareUnlearn:
        """Return the unlearner with Eq. (25) as printed."""
        return cls(**{"reading": "as_written", **given})

    def __post_init__(self) -> None:
        if self.rounds is not None:
            must_lie(self, f"[1, {MOST}]", "rounds")
        must_lie(self, "[0, inf)", "contrast_forgotten")
        must_lie(self, "(0, inf)", "unlearn_rate")
        if self.damping == "measured":
            if not self.remaining_training:
                raise ConfigError("damping = 'measured' asks devices. Set remaining_training.")
        elif not (isinstance(self.damping, int | float) and 0 <= self.damping <= 1):
            raise ConfigError(f"damping must be 0 to 1 or 'measured', got {self.damping}.")

    def forget(self, fed: Federation, request: Request) -> Federation:
        if self.reading == "as_written":
            words = "Eq. (25) as written has no stopping point. Use reading = 'bpr_in_batch'."
            warnings.warn(words, stacklevel=2)
        rounds = self.rounds or max(1, fed.now.state.round // FEWER)
        method = self.forgetting(fed.method, rounds)
        after = fed.apply(request.event)
        state = method.server_forgetting(fed.now.state, fed.world, after.world, fed.clock)
        sums = sums_of(fed.now.state.memory, state.round) if one_story(fed) else None
        if self.replay and sums and len(after.world.shared) < len(fed.world.shared):
            damping = self.damping
            if damping == "measured":
                damping = pull(method, fed, after, state, sums)
                rounds = max(1, rounds - ASKED)
                method = replace(method, rounds=rounds)
            state = moved(state, method, fed, after, request, sums, damping)
        after = after.with_(state=state).run(rounds, method=method)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != FORGOTTEN))
        after = after.with_(state=replace(after.now.state, memory=memory))
        return without_restore_points(after, request)

    def forgetting(self, learner: Method, rounds: int) -> _Forgetting:
        ours = _Forgetting(**learnt_by(learner, type(self).__name__), unlearner=self, rounds=rounds)
        if self.damping == "measured" and self.replay and not ours.keep_sums:
            raise ConfigError(
                "damping = 'measured' needs stored means of updates, and this federation has none. "
                "Train it with keep_sums = true."
            )
        return ours


@dataclass(frozen=True, kw_only=True)
class _Forgetting(FedShare):
    """FedShare during unlearning; the client side is unchanged."""

    unlearner: FedShareUnlearn
    rounds: int

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Sample as FedShare; no client in the ablation without remaining training."""
        if state.memory.named(FORGOTTEN) and not self.unlearner.remaining_training:
            return torch.zeros(0, dtype=torch.int64, device=world.members.device)
        return super().server_sample(state, world, clock)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Take FedShare's step; in unlearning the client weight falls to 0 along a cosine."""
        found = state.memory.named(FORGOTTEN)
        if not (found and self.unlearner.settle):
            return super().server_step(state, sums, world, clock)
        done = (state.round - found[-1].round) / self.rounds
        damped = replace(self, server_rate=self.server_rate * (1 + math.cos(math.pi * done)) / 2)
        return super(_Forgetting, damped).server_step(state, sums, world, clock)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        found = state.memory.named(FORGOTTEN)
        if not found:
            return super().server_refine(state, world, clock)
        graph, reading = self.server_graph(state, world), self.unlearner.reading
        items, views = found[-1].values["items"], found[-1].values["views"]
        weight, bpr = 1.0, 0.0
        if reading == "bpr_in_batch":
            weight, bpr = self.unlearner.contrast_forgotten, self.refine_bpr
        # Items without remaining lenders must forget, too.
        lent = torch.unique(torch.cat([graph.lent_items, items]))
        chosen = draw(lent, self.contrast_items, clock)
        away, has = forgotten.views_of(chosen, items, views)

        def contrast(local: Tensor, seen: Tensor) -> Tensor:
            one, two = local.index_select(0, chosen), seen.index_select(0, chosen)
            tau = self.contrast_temperature
            return weight * contrastive_forgetting(one, two, away, has, tau, reading)

        steps = replace(self.steps, rate=self.unlearner.unlearn_rate, weight=bpr)
        return refined(state, graph, steps, clock, contrast)

    def server_forgetting(
        self, state: ServerState, before: World, after: World, clock: Clock
    ) -> ServerState:
        """Store the forgotten views; reset all moments and the rows of affected users."""
        gone = before.shared[~before.shared.among(after.shared)]
        own = grown_rows(state.own, before, 0.04, clock)
        graph = graph_of(replace(before, shared=gone))
        item, snapshots = state.public["item"], state.memory.named("item")
        tables = [forgotten.extend(s.values["item"], item) for s in snapshots] or [item]
        tables = tables if self.unlearner.forgotten_graph else []
        user, own_layer = own["user"], self.unlearner.own_layer
        views = forgotten.forgotten_views(graph, user, tables, self.layers, own_layer)
        memory = Memory(tuple(s for s in state.memory if s.name != "item"))
        memory = memory.keep(FORGOTTEN, state.round, {"items": graph.lent_items, "views": views})
        first = server_rows({}, before, user.shape[1], 0.04, clock)
        rows = user.index_copy(0, graph.sharers, first[graph.sharers].to(user))
        own = {n: v for n, v in own.items() if not n.startswith(REFINE)} | {"user": rows}
        return replace(state, own=own, memory=memory)
