"""FedShare: federated recommendation with personal data sharing (Qu et al., arXiv 2603.11610).

Learning (Algorithm 1): devices train on kept records; the server averages, then refines the item
table on the graph of lent records. Unlearning (Algorithm 2): `FedShareUnlearn`, which approximates
retraining. `FedShare` itself retrains.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.gradient import RankingMethod
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.versions import Versions
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph import steps as graph_steps
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods._lent_graph.steps import (
    GraphSteps,
    Term,
    grown_rows,
    of_users,
    server_rows,
)
from rescind.methods.sharing._infonce import infonce
from rescind.methods.sharing._server_rerun import with_sum
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN, TwoSidedLightGCN

REFINE = "refine/"
"""Prefix of the moments of the server's Adam."""


@dataclass(frozen=True, kw_only=True)
class FedShare(RankingMethod):
    """One item table, trained by devices and on the shared graph (Eq. 10-18).

    DEPARTS Eq. (13): a user's own vector stays at zero (`private_rate = 0`). Trained on a few
    rounds of few items it overfits: on validation it costs .006 NDCG@20 on ML-1M and .013 on
    ML-100K.

    DEPARTS Eq. (15): a temperature of 0.2 inside the BPR. As printed the loss stays at the level of
    item popularity at any learning rate.

    DEPARTS Eq. (16): the local loss is a sum over pairs, and clients have equal weight. Weighting
    the summed loss by the number of records costs 4.5 points of HR@20.
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
    """Temperature of the server's BPR. Default: that of the clients."""
    refine_pairs: int = 8192
    """Shared pairs sampled per round for the server's BPR."""
    refine_bpr: float = 1.0
    """Weight of the server's BPR; 0 is the ablation "w/o server BPR"."""
    contrast: float = 0.5
    """Weight of InfoNCE, lambda_1 in Eq. (18); 0 is the ablation "w/o CL"."""
    contrast_temperature: float = 0.2
    """Tau in Eq. (17)."""
    contrast_items: int = 1024
    """Items contrasted per round."""
    view: Literal["graph", "self"] = "graph"
    """What the local view is contrasted with; "self" is the control without the graph."""
    snapshots: int = 3
    """Item tables kept for unlearning, M in IV-C."""
    keep_sums: bool = False
    """Keep the mean update of each round, so that the server can replay its steps without some
    loans while devices are offline."""

    @classmethod
    def as_published(cls, **fields: Any) -> FedShare:
        """Return FedShare as printed: no temperature, both sides of Eq. (13), Eq. (16)'s weights.

        InfoNCE keeps its tau, which the paper tunes. Quality stays at the level of item popularity.
        """
        printed: dict[str, Any] = {"model": TwoSidedLightGCN(), "aggregate": "records"}
        printed |= {"temperature": 1.0, "negatives": 1, "rate": 0.3, "private_rate": 0.01}
        return cls(**{**printed, "refine_rate": 0.001, **fields})

    @classmethod
    def with_softmax(cls, **fields: Any) -> FedShare:
        """Return FedShare with the softmax loss on clients (`methods/baselines/softmax.py`)."""
        clients: dict[str, Any] = {"model": Bag(), "loss": "softmax", "reduce": "mean"}
        clients |= {"temperature": 1.0, "aggregate": "roots", "rate": 1.0}
        server: dict[str, Any] = {"server_optimiser": "adam", "server_rate": 0.003}
        server |= {"server_decay": 1000, "refine_rate": 0.001, "refine_temperature": 0.2}
        return cls(**{**clients, **server, **fields})

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """Return the item table, and a server row per client (only sharers' are used)."""
        state = super().server_init(world, clock)
        dim = state.public["item"].shape[1]
        return replace(state, own={"user": server_rows({}, world, dim, 0.04, clock)})

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        state = replace(state, own=grown_rows(state.own, world, 0.04, clock))
        after = super().server_step(state, sums, world, clock)
        if len(world.shared) and (self.refine_bpr or self.contrast):
            after = self.server_refine(after, world, clock)
        table = {"item": after.public["item"]}
        memory = after.memory.keep("item", after.round, table, last=self.snapshots)
        if self.keep_sums:
            memory = with_sum(memory, after.round, self.server_mean(sums))
        return replace(after, memory=memory)

    def server_graph(self, state: ServerState, world: World) -> SharedGraph:
        """Return the graph to learn from. Subclasses may add edges."""
        return graph_of(world)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Take one Adam step on BPR + lambda_1 InfoNCE over the shared graph (Eq. 17-18)."""
        graph = self.server_graph(state, world)

        def contrast(local: Tensor, seen: Tensor) -> Tensor:
            chosen = graph.some_items(self.contrast_items, clock)
            other = seen if self.view == "graph" else local
            one, two = local.index_select(0, chosen), other.index_select(0, chosen)
            return self.contrast * infonce(one, two, self.contrast_temperature)

        steps = self.steps
        if self.server_decay is not None:
            steps = replace(steps, rate=steps.rate * self.server_pace(clock.round))
        return refined(state, graph, steps, clock, contrast if self.contrast else None)

    @property
    def steps(self) -> GraphSteps:
        return GraphSteps(
            layers=self.layers,
            pairs=self.refine_pairs,
            rate=self.refine_rate,
            temperature=self.refine_temperature or self.temperature,
            weight=self.refine_bpr,
        )

    def learning_as(self, learner: Method) -> Self:
        """Return this method with the learning settings of a federation's own method."""
        return replace(self, **learnt_by(learner, type(self).__name__))


def refined(
    state: ServerState, graph: SharedGraph, steps: GraphSteps, clock: Clock, term: Term | None
) -> ServerState:
    own, item, ids = Versions.of(state.own), state.public["item"], graph.sharers
    mine = {name: own.rows(name).read(ids) if of_users(name) else own[name] for name in own}
    moments = graph_steps.under(REFINE, mine)
    user, item, moments = steps.run_rows(graph, mine["user"], item, moments, clock, term)
    moved = {"user": user, **graph_steps.prefixed(REFINE, moments)}
    rows = {name: value for name, value in moved.items() if of_users(name)}
    own = own.with_({name: value for name, value in moved.items() if name not in rows})
    own = own.write(ids, rows, len(own.rows("user")))
    return replace(state, public={**state.public, "item": item}, own=own)


def fedshare_of(learner: Method, unlearner: str) -> FedShare:
    """Return a federation's method if it is FedShare, or raise."""
    if not isinstance(learner, FedShare) or type(learner).server_graph != FedShare.server_graph:
        raise ConfigError(
            f"{unlearner} works for FedShare, not for {type(learner).__name__}. Use Retrain."
        )
    return learner


def learnt_by(learner: Method, unlearner: str) -> dict[str, Any]:
    method = fedshare_of(learner, unlearner)
    return {f.name: getattr(method, f.name) for f in fields(FedShare)}
