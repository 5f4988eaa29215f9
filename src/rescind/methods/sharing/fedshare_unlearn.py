"""Forgetting for FedShare: by contrast with what the forgotten graph said (Algorithm 2)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.method import Method, Unlearner
from rescind.core.request import Request
from rescind.core.state import Memory, ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import grown_rows, prefixed, server_rows, under
from rescind.methods.sharing._forgotten_views import (
    Reading,
    as_long,
    contrastive_forgetting,
    drawn,
    forgotten_views,
    views_of,
)
from rescind.methods.sharing._server_rerun import (
    USUAL_PULL,
    moved,
    one_story,
    pull,
    sums_of,
)
from rescind.methods.sharing.fedshare import REFINE, FedShare, learnt_by
from rescind.methods.unlearning.purge_only import without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation


FORGOTTEN = "forgotten"
"""While it forgets, the server remembers under this name what the forgotten graph said."""
MOST_ROUNDS = 1000
FEWER = 5  # times: how many more rounds a retraining takes
ASKED = 2  # exchanges in which devices say how strongly they pull back


@dataclass(frozen=True, kw_only=True)
class FedShareUnlearn(Unlearner):
    """Forget by contrast instead of training again (Algorithm 2, Eq. 19-25), for FedShare.

    A few more rounds on what remains; in each the server moves items towards their view on the
    remaining graph and away from what the forgotten graph made of them.

    DEPARTS Algorithm 2: where the sums of devices were kept (`keep_sums`), the server first goes
    through its own steps again without the loans (`server_path`), and the rounds begin there. From
    the table as it is they move it by a tenth of its length and leave nearly all that an old row of
    a person finds in it: AUC .560 where a retraining has .518 (ML-100K), .575 and .553 (ML-1M).

    DEPARTS Algorithm 2: what devices send counts less from round to round (`settle`). A round is
    that of 256 people: on validation of ML-1M the last of 28 has NDCG@20 .2122, the mean of their
    tables .2214, one that comes to rest .2229, and a retraining .2177.

    DEPARTS Eq. (25): BPR on the remaining graph, and a tenth of the contrast with in-batch and
    forgotten negatives. As written the loss has no stopping point and over-forgets, which is a
    trace, too (calibrated AUC .45-.46 on ML-100K where a retraining has .50).
    """

    paper: ClassVar[str] = FedShare.paper
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FedShareUnlearn"
    presets: ClassVar[tuple[str, ...]] = ("unlearn_as_published",)

    rounds: int | None = None
    """Rounds of unlearning, T_un; None: a fifth of those that were learnt."""
    settle: bool = True
    """What devices send counts less from round to round, so that the table comes to rest."""
    reading: Reading = "bpr_in_batch"
    """How Eq. (25) is read."""
    contrast_forgotten: float = 0.1
    """Weight of the contrast beside BPR; the other readings are contrast alone."""
    unlearn_rate: float = 0.001
    """Learning rate of the server's Adam while it forgets; its moments begin anew."""
    own_layer: bool = True
    """Whether a forgotten view holds the item's own layer 0, as Eq. (14) has it."""
    forgotten_graph: bool = True
    """False is the ablation "w/o forgotten graph"."""
    remaining_training: bool = True
    """False is the ablation "w/o remaining FL": no device has to be online."""
    replay: bool = True
    """Begin with the server's own steps again, where the sums of devices were kept."""
    damping: float | Literal["measured"] = USUAL_PULL
    """How strongly devices pull back in them. "measured" asks the people of one round
    (`server_path.pull`), which counts as two rounds: for data unlike MovieLens."""

    @classmethod
    def unlearn_as_published(cls, **given: Any) -> FedShareUnlearn:
        """Eq. (25) to the letter, after the learning that works."""
        return cls(**{"reading": "as_written", **given})

    def __post_init__(self) -> None:
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise ConfigError(
                f"FedShareUnlearn.rounds is 1 to {MOST_ROUNDS}, got {self.rounds}; or leave it out."
            )
        if not (0 <= self.contrast_forgotten < math.inf and 0 < self.unlearn_rate < math.inf):
            raise ConfigError(
                f"FedShareUnlearn.contrast_forgotten is 0 or above and unlearn_rate above 0; "
                f"got {self.contrast_forgotten} and {self.unlearn_rate}."
            )
        if self.damping == "measured":
            if not self.remaining_training:
                raise ConfigError(
                    "FedShareUnlearn.damping = 'measured' asks devices, and remaining_training = "
                    "false leaves them alone. Give a number from 0 to 1."
                )
        elif not (isinstance(self.damping, int | float) and 0 <= self.damping <= 1):
            raise ConfigError(
                f"FedShareUnlearn.damping is 0 to 1 or 'measured', got {self.damping}."
            )

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Algorithm 2: views of what goes, then rounds on what stays; the views go at the end."""
        if self.reading == "as_written":
            warnings.warn(
                "Eq. (25) as written has no stopping point: more rounds or a larger rate forget "
                "more than a retraining would, and ruin the model; 'bpr_in_batch' does not.",
                stacklevel=2,
            )
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
        """Return the rounds of Algorithm 2, with the learning of a federation's own method."""
        ours = _Forgetting(**learnt_by(learner, type(self).__name__), unlearner=self, rounds=rounds)
        if self.damping == "measured" and self.replay and not ours.keep_sums:
            raise ConfigError(
                "FedShareUnlearn.damping = 'measured' is about a replay of what devices sent, and "
                "this federation kept none of it. Train it with keep_sums = true, or leave damping "
                "out: then there is no replay."
            )
        return ours


@dataclass(frozen=True, kw_only=True)
class _Forgetting(FedShare):
    """FedShare's rounds while it forgets. On devices it is FedShare."""

    unlearner: FedShareUnlearn
    rounds: int

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """As always; nobody in the ablation without remaining federated training."""
        if state.memory.named(FORGOTTEN) and not self.unlearner.remaining_training:
            return torch.zeros(0, dtype=torch.int64, device=world.members.device)
        return super().server_sample(state, world, clock)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """FedShare's; while it forgets, devices' part falls from 1 to 0 along a cosine."""
        found = state.memory.named(FORGOTTEN)
        if not (found and self.unlearner.settle):
            return super().server_step(state, sums, world, clock)
        done = (state.round - found[-1].round) / self.rounds
        less = replace(self, server_rate=self.server_rate * (1 + math.cos(math.pi * done)) / 2)
        return super(_Forgetting, less).server_step(state, sums, world, clock)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """While it forgets: one Adam step down Eq. (25) in the chosen reading."""
        found = state.memory.named(FORGOTTEN)
        if not found:
            return super().server_refine(state, world, clock)
        graph = self.server_graph(state, world)
        items, views = found[-1].values["items"], found[-1].values["views"]
        weight = (
            self.unlearner.contrast_forgotten if self.unlearner.reading == "bpr_in_batch" else 1.0
        )
        # Items that nobody lends any more are in no remaining graph, yet they must forget, too.
        chosen = drawn(
            torch.unique(torch.cat([graph.lent_items, items])), self.contrast_items, clock
        )
        away, has = views_of(chosen, items, views)

        def contrast(local: Tensor, seen: Tensor) -> Tensor:
            one, two = local.index_select(0, chosen), seen.index_select(0, chosen)
            tau = self.contrast_temperature
            return weight * contrastive_forgetting(one, two, away, has, tau, self.unlearner.reading)

        bpr = self.refine_bpr if self.unlearner.reading == "bpr_in_batch" else 0.0
        user, item, moments = replace(self.steps, rate=self.unlearner.unlearn_rate, weight=bpr).run(
            graph,
            state.own["user"],
            state.public["item"],
            under(REFINE, state.own),
            clock,
            contrast,
        )
        own = {**state.own, "user": user, **prefixed(REFINE, moments)}
        return replace(state, public={**state.public, "item": item}, own=own)

    def server_forgetting(
        self, state: ServerState, before: World, after: World, clock: Clock
    ) -> ServerState:
        """Forgotten views in memory; rows of those who take back, and all moments, begin anew."""
        gone = before.shared[~before.shared.among(after.shared)]
        own = grown_rows(state.own, before, 0.04, clock)
        graph = graph_of(replace(before, shared=gone))
        tables = [s.values["item"] for s in state.memory.named("item")]
        tables = [as_long(t, state.public["item"]) for t in tables] or [state.public["item"]]
        tables = tables if self.unlearner.forgotten_graph else []
        views = forgotten_views(graph, own["user"], tables, self.layers, self.unlearner.own_layer)
        memory = Memory(tuple(s for s in state.memory if s.name != "item"))
        memory = memory.keep(FORGOTTEN, state.round, {"items": graph.lent_items, "views": views})
        first = server_rows({}, before, own["user"].shape[1], 0.04, clock)
        rows = own["user"].index_copy(0, graph.sharers, first[graph.sharers].to(own["user"]))
        own = {n: v for n, v in own.items() if not n.startswith(REFINE)} | {"user": rows}
        return replace(state, own=own, memory=memory)
