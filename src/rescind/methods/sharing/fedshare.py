"""FedShare: federated recommendation with personal data sharing (Qu et al., arXiv 2603.11610).

Learning phase (Algorithm 1). Devices train on what they kept to themselves; the server averages
and then refines the item table on the graph of what people lent. Unlearning phase (Algorithm 2):
`FedShareUnlearn`, which is close to a retraining and not equal to one. `FedShare` itself retrains.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.records import Event
from rescind.core.state import Memory, ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods._lent_graph.steps import GraphSteps, grown_rows, prefixed, server_rows, under
from rescind.methods.sharing._forgotten_views import (
    Reading,
    as_long,
    contrastive_forgetting,
    drawn,
    forgotten_views,
    views_of,
)
from rescind.methods.sharing._infonce import infonce
from rescind.methods.sharing._server_rerun import (
    USUAL_PULL,
    moved,
    one_story,
    pull,
    sums_of,
    with_sum,
)
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN, TwoSidedLightGCN

if TYPE_CHECKING:
    from rescind.core.federation import Federation

REFINE = "refine/"
"""What the server's Adam remembers is kept under this name."""
FORGOTTEN = "forgotten"
"""While it forgets, the server remembers under this name what the forgotten graph said."""
MOST_ROUNDS = 1000
FEWER = 5  # times: how many more rounds a retraining takes
ASKED = 2  # exchanges in which devices say how strongly they pull back


@dataclass(frozen=True, kw_only=True)
class FedShare(Method):
    """Devices and the shared graph learn one item table together (Eq. 10-18).

    DEPARTS Eq. (13): a person's own vector stays at zero (`private_rate = 0`). Trained on a few
    rounds of few items it fits those and nothing else: on validation it costs .006 NDCG@20 on
    ML-1M and .013 on ML-100K.

    DEPARTS Eq. (15): a temperature of 0.2 inside the BPR. As printed the loss stays at the level of
    item popularity at any learning rate.

    DEPARTS Eq. (16): the local loss is a sum over pairs and clients count alike. Weighting a summed
    loss by the number of records once more costs 4.5 points of HR@20.
    """

    paper: ClassVar[str] = "Qu et al., arXiv 2603.11610"
    presets: ClassVar[tuple[str, ...]] = ("as_published", "with_softmax")

    model: Model = LightGCN()
    clients_per_round: int | None = 256
    reduce: Literal["mean", "sum"] = "sum"
    temperature: float = 0.2
    negatives: int = 4
    rate: float = 0.15
    private_rate: float = 0.0
    local_includes_shared: bool = False

    layers: int = 3
    """Propagation steps on the shared graph, L in V-A."""
    refine_rate: float = 0.003
    """Learning rate of the server's Adam."""
    refine_temperature: float | None = None
    """Temperature of the server's BPR; None: that of the clients."""
    refine_pairs: int = 8192
    """Shared pairs sampled for the server's BPR in a round."""
    refine_bpr: float = 1.0
    """Weight of the server's BPR; 0 is the ablation "w/o server BPR"."""
    contrast: float = 0.5
    """Weight of InfoNCE, lambda_1 in Eq. (18); 0 is the ablation "w/o CL"."""
    contrast_temperature: float = 0.2
    """Tau in Eq. (17)."""
    contrast_items: int = 1024
    """Items contrasted in a round."""
    view: Literal["graph", "self"] = "graph"
    """What the local view is contrasted with; "self" is the control that leaves the graph out."""
    snapshots: int = 3
    """Item tables kept for unlearning, M in IV-C."""
    keep_sums: bool = False
    """Keep what devices sent, as one table per round: with it the server can go through its own
    steps again when loans are taken back, and nobody has to be online."""

    @classmethod
    def as_published(cls, **fields: Any) -> FedShare:
        """The equations to the letter: no temperature, both sides of Eq. (13), Eq. (16)'s weights.

        The server's InfoNCE keeps its tau, which the paper tunes. It stays at the level of item
        popularity; for the record.
        """
        printed: dict[str, Any] = {"model": TwoSidedLightGCN(), "aggregate": "records"}
        printed |= {"temperature": 1.0, "negatives": 1, "rate": 0.3, "private_rate": 0.01}
        return cls(**{**printed, "refine_rate": 0.001, **fields})

    @classmethod
    def with_softmax(cls, **fields: Any) -> FedShare:
        """The same server over clients that rank all items at once (`methods/softmax.py`)."""
        clients: dict[str, Any] = {"model": Bag(), "loss": "softmax", "reduce": "mean"}
        clients |= {"temperature": 1.0, "aggregate": "roots", "rate": 1.0}
        server: dict[str, Any] = {"server_optimiser": "adam", "server_rate": 0.003}
        server |= {"server_decay": 1000, "refine_rate": 0.001, "refine_temperature": 0.2}
        return cls(**{**clients, **server, **fields})

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """The item table, and a row of the server's own for everybody (only sharers' are used)."""
        state = super().server_init(world, clock)
        dim = state.public["item"].shape[1]
        return replace(state, own={"user": server_rows({}, world, dim, 0.04, clock)})

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """FedAvg, then one step of refinement on the shared graph; the table is remembered."""
        state = replace(state, own=grown_rows(state.own, world, 0.04, clock))
        after = super().server_step(state, sums, world, clock)
        if len(world.shared) and (self.refine_bpr or self.contrast):
            after = self.server_refine(after, world, clock)
        memory = after.memory.keep(
            "item", after.round, {"item": after.public["item"]}, last=self.snapshots
        )
        if self.keep_sums:
            memory = with_sum(memory, after.round, self.server_mean(sums))
        return replace(after, memory=memory)

    def server_graph(self, state: ServerState, world: World) -> SharedGraph:
        """The graph that is learnt from: what people lend. A subclass may see more in it."""
        return graph_of(world)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """One Adam step on BPR + lambda_1 InfoNCE over the shared graph (Eq. 17-18)."""
        graph = self.server_graph(state, world)

        def contrast(local: Tensor, seen: Tensor) -> Tensor:
            chosen = graph.some_items(self.contrast_items, clock)
            other = seen if self.view == "graph" else local
            one, two = local.index_select(0, chosen), other.index_select(0, chosen)
            return self.contrast * infonce(one, two, self.contrast_temperature)

        steps = self._steps
        if self.server_decay is not None:
            steps = replace(steps, rate=steps.rate * self.server_pace(clock.round))
        user, item, moments = steps.run(
            graph,
            state.own["user"],
            state.public["item"],
            under(REFINE, state.own),
            clock,
            contrast if self.contrast else None,
        )
        own = {**state.own, "user": user, **prefixed(REFINE, moments)}
        return replace(state, public={**state.public, "item": item}, own=own)

    @property
    def _steps(self) -> GraphSteps:
        return GraphSteps(
            layers=self.layers,
            pairs=self.refine_pairs,
            rate=self.refine_rate,
            temperature=self.refine_temperature or self.temperature,
            weight=self.refine_bpr,
        )

    def learning_as(self, learner: Method) -> Self:
        """This unlearner with the learning of a federation's own method."""
        if not isinstance(learner, FedShare) or type(learner).server_graph != FedShare.server_graph:
            raise ConfigError(
                f"{type(self).__name__} forgets for FedShare, not for {type(learner).__name__}. "
                f"Choose another unlearner: Retrain works for every method."
            )
        return replace(self, **{f.name: getattr(learner, f.name) for f in fields(FedShare)})


@dataclass(frozen=True, kw_only=True)
class FedShareUnlearn(FedShare):
    """FedShare, and forgetting by contrast instead of training again (Algorithm 2, Eq. 19-25).

    A few more rounds on what remains; in each the server moves items towards their view on the
    remaining graph and away from what the forgotten graph made of them. It learns as the
    federation's own FedShare does: of the fields given here, those of unlearning count.

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

    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FedShareUnlearn"
    presets: ClassVar[tuple[str, ...]] = (*FedShare.presets, "unlearn_as_published")

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
        super().__post_init__()
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

    def learning_as(self, learner: Method) -> Self:
        """This unlearner with the learning of a federation's own method."""
        ours = super().learning_as(learner)
        if ours.damping == "measured" and ours.replay and not ours.keep_sums:
            raise ConfigError(
                "FedShareUnlearn.damping = 'measured' is about a replay of what devices sent, and "
                "this federation kept none of it. Train it with keep_sums = true, or leave damping "
                "out: then there is no replay."
            )
        return ours

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """As always; nobody in the ablation without remaining federated training."""
        if state.memory.named(FORGOTTEN) and not self.remaining_training:
            return torch.zeros(0, dtype=torch.int64, device=world.members.device)
        return super().server_sample(state, world, clock)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """FedShare's; while it forgets, devices' part falls from 1 to 0 along a cosine."""
        found = state.memory.named(FORGOTTEN)
        if not (found and self.settle and self.rounds):
            return super().server_step(state, sums, world, clock)
        done = (state.round - found[-1].round) / self.rounds
        less = replace(self, server_rate=self.server_rate * (1 + math.cos(math.pi * done)) / 2)
        return super(FedShareUnlearn, less).server_step(state, sums, world, clock)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """While it forgets: one Adam step down Eq. (25) in the chosen reading."""
        found = state.memory.named(FORGOTTEN)
        if not found:
            return super().server_refine(state, world, clock)
        graph = self.server_graph(state, world)
        items, views = found[-1].values["items"], found[-1].values["views"]
        weight = self.contrast_forgotten if self.reading == "bpr_in_batch" else 1.0
        # Items that nobody lends any more are in no remaining graph, yet they must forget, too.
        chosen = drawn(
            torch.unique(torch.cat([graph.lent_items, items])), self.contrast_items, clock
        )
        away, has = views_of(chosen, items, views)

        def contrast(local: Tensor, seen: Tensor) -> Tensor:
            one, two = local.index_select(0, chosen), seen.index_select(0, chosen)
            tau = self.contrast_temperature
            return weight * contrastive_forgetting(one, two, away, has, tau, self.reading)

        bpr = self.refine_bpr if self.reading == "bpr_in_batch" else 0.0
        user, item, moments = replace(self._steps, rate=self.unlearn_rate, weight=bpr).run(
            graph,
            state.own["user"],
            state.public["item"],
            under(REFINE, state.own),
            clock,
            contrast,
        )
        own = {**state.own, "user": user, **prefixed(REFINE, moments)}
        return replace(state, public={**state.public, "item": item}, own=own)

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Algorithm 2: views of what goes, then rounds on what stays; the views go at the end."""
        if self.reading == "as_written":
            warnings.warn(
                "Eq. (25) as written has no stopping point: more rounds or a larger rate forget "
                "more than a retraining would, and ruin the model; 'bpr_in_batch' does not.",
                stacklevel=2,
            )
        rounds = self.rounds or max(1, fed.now.state.round // FEWER)
        method = replace(self.learning_as(fed.method), rounds=rounds)
        after = fed.apply(event)
        state = method.server_forgetting(fed.now.state, fed.world, after.world, fed.clock)
        sums = sums_of(fed.now.state.memory, state.round) if one_story(fed) else None
        if method.replay and sums and len(after.world.shared) < len(fed.world.shared):
            damping = method.damping
            if damping == "measured":
                damping = pull(method, fed, after, state, sums)
                rounds = max(1, rounds - ASKED)
                method = replace(method, rounds=rounds)
            state = moved(state, method, fed, after, event, sums, damping)
        after = after.with_(state=state).run(rounds, method=method)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != FORGOTTEN))
        after = after.with_(state=replace(after.now.state, memory=memory))
        first = fed.past.influence(event, fed.now.state.round) if fed.past else None
        if after.past is None or first is None:
            return after
        # A point of these rounds is no way back to a world without the records.
        return replace(after, past=after.past.before(first))

    def server_forgetting(
        self, state: ServerState, before: World, after: World, clock: Clock
    ) -> ServerState:
        """Forgotten views in memory; rows of those who take back, and all moments, begin anew."""
        gone = before.shared[~before.shared.among(after.shared)]
        own = grown_rows(state.own, before, 0.04, clock)
        graph = graph_of(replace(before, shared=gone))
        tables = [s.values["item"] for s in state.memory.named("item")]
        tables = [as_long(t, state.public["item"]) for t in tables] or [state.public["item"]]
        tables = tables if self.forgotten_graph else []
        views = forgotten_views(graph, own["user"], tables, self.layers, self.own_layer)
        memory = Memory(tuple(s for s in state.memory if s.name != "item"))
        memory = memory.keep(FORGOTTEN, state.round, {"items": graph.lent_items, "views": views})
        first = server_rows({}, before, own["user"].shape[1], 0.04, clock)
        rows = own["user"].index_copy(0, graph.sharers, first[graph.sharers].to(own["user"]))
        own = {n: v for n, v in own.items() if not n.startswith(REFINE)} | {"user": rows}
        return replace(state, own=own, memory=memory)
