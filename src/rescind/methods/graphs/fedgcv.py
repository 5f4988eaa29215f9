"""FedGCV: forget a client of a graph federation by gradient ascent, corrected by the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits import mait
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Graph
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.optim import server_move
from rescind.core.params import Params, add, dot, norm, times
from rescind.core.plan import Batch, Plan
from rescind.core.ranges import must_lie
from rescind.core.records import Records, Withdraw
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.update import Sum
from rescind.core.world import Host, World
from rescind.errors import ConfigError
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET, KEEP
from rescind.methods.graphs._block_model import BlockModel
from rescind.methods.graphs._vgae import VGAE
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class FedGCV(GraphFedAvg):
    """Graph federated unlearning with gradient correction (Ma et al., arXiv 2605.02297).

    Training is FedAvg. To forget a client, in each of `forget_rounds` rounds the leaving client
    sends the gradient g_u of NPO on its nodes, the others that of cross-entropy, g_r. If they
    conflict, g_u is projected off g_r (Eq. 3.3). The weights stay within a ball around the start.
    Then the others run a few repair rounds. The leaving client must be online.

    DEPARTS Eq. (3.4)-(3.6): the correction acts on gradients, as in Eq. (3.3). As printed
    (`literal`) the "residual" w - p_j w_j is nearly .9 w, so a step rescales all weights, which
    hardly changes the output of a ReLU network: nothing is forgotten.

    DEPARTS section 4.1: a step uses all training nodes of a client, not a batch of 128
    (`batch_size`). No client of Cora or CiteSeer has as many.

    DEPARTS section 3.2: the repair rounds have no virtual client. It adds 0 to .5 points and
    reveals the leaving client's edges (fedgcv.md 2.7).
    """

    paper: ClassVar[str] = "Ma et al., arXiv 2605.02297"
    presets: ClassVar[tuple[str, ...]] = ("as_published", "without_correction")
    exact: ClassVar[bool] = False

    objective: Literal["npo", "ascent"] = "npo"
    """Loss of the leaving client: NPO, or minus its cross-entropy."""
    sharpness: float = 1.0
    """Beta of NPO. The paper's 5 is unstable: 40 % for the worst client (fedgcv.md section 3)."""
    correct: bool = True
    """Project the leaving client's step off the others' step if they conflict."""
    retention: float = 0.0
    """Lambda in Eq. (2.6): weight of the others' descent in a step."""
    literal: bool = False
    """Eq. (3.4)-(3.6) as printed, on weights instead of gradients; for comparison."""
    radius: float = 10.0
    """Tau: maximum distance of the model from its start. 10 is .7 of the length of a model of Cora,
    but 2.7 lengths of one of Tolokers, which it ruins: better set `radius_share`."""
    radius_share: float | None = None
    """Tau as a share of the length of the model at the start; replaces `radius`."""
    margin: float = 0.0
    """Weight of max(0, threshold + .5 - mean loss), which pushes the leaving client's loss over
    the membership threshold of the old model; 3 in the paper."""
    forget_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    """Plain steps are clip(forget_rate * scale * step, 10); the scale does not change Adam."""
    forget_rate: float = 0.02
    scale: float = 50.0
    """s_f in section 4.1."""
    clip: float = 10.0
    """c_max in section 4.1: maximum norm of a plain step."""
    forget_dropout: float = 0.3
    forget_rounds: int = 30
    """E_u in section 4.1."""
    repair_rounds: int = 5
    """R_v in section 4.1."""
    virtual: bool = False
    """Add a synthetic stand-in of the leaving client to the repair rounds. It reveals the client's
    edges and labels to the server (`audits/virtual_client.py`); for comparison only."""
    private_virtual: bool = False
    """Like `virtual`, but sample the stand-in from noisy counts that the client sent while it was
    enrolled (`_block_model.py`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = () if self.radius_share is None else ("radius_share",)
        must_lie(self, "(0, inf)", "sharpness", "radius", "clip", *shares)
        must_lie(self, "[0, inf)", "retention", "margin", "forget_rate", "scale")
        must_lie(self, "[0, inf)", "forget_rounds", "repair_rounds")

    @classmethod
    def as_published(cls, **fields: Any) -> FedGCV:
        """Return the settings of section 4.1, without the virtual client."""
        return cls(**{"sharpness": 5.0, "margin": 3.0, "batch_size": 128, **fields})

    @classmethod
    def without_correction(cls, **fields: Any) -> FedGCV:
        """Return the ablation "w/o GRU": gradient ascent with a retention term (Eq. 2.6)."""
        return cls(**{"objective": "ascent", "correct": False, "retention": 1.0, **fields})

    def forget(self, fed: Federation, request: Request) -> Federation:
        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            start = dict(removal.weights(fed.now.state.public))
            if self.margin:
                start["threshold"] = mait.threshold(fed, without=removal.leaving_client(roles))
            one = removal.one_step(self, dropout=self.forget_dropout, batch_size=self.batch_size)
            now = removal.with_reference(fed, start)
            return now.run(self.forget_rounds, method=one, roles=roles)

        if not (self.virtual or self.private_virtual) or not isinstance(request.event, Withdraw):
            return removal.remove_client(fed, request, steps, self.repair_rounds)
        after = removal.remove_client(fed, request, steps, 0)
        if removal.had_no_influence(fed, request):
            return after
        host = _host(fed, request.event.client, self.private_virtual)
        if host is None:
            return after.run(self.repair_rounds, method=fed.method)
        after = after.apply(host).run(self.repair_rounds, method=fed.method)
        return after.apply(Withdraw(host.client))

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Use only the first batch of every client while a client is being forgotten."""
        plan = super().client_plan(public, private, cohort, clock)
        if cohort.role not in (FORGET, KEEP) or len(plan.sizes) <= 1:
            return plan
        first = plan.sizes[0]
        values = {name: value[:first] for name, value in plan.values.items()}
        return Plan(plan.owner[:first], (first,), {}, values)

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Return CE, or for the leaving client -(2 / beta) log sigma(beta (CE - CE before)). [C]"""
        if cohort.role != FORGET:
            return super().client_objective(own, batch, public, cohort, clock)
        now = self.client_entropy(own, batch, cohort, clock)
        start = removal.reference(public)
        if self.objective == "ascent":
            each = -now
        else:
            old = {name: start[name] for name in removal.weights(public)}
            rise = now - self.client_entropy(nodes.same_for_all(old), batch, cohort, None)
            each = -2 / self.sharpness * functional.logsigmoid(self.sharpness * rise)
        loss = jagged.segment_mean(each, batch.owner, batch.clients)
        if self.margin and "threshold" in start:
            mean = jagged.segment_mean(now, batch.owner, batch.clients)
            missing = start["threshold"].to(mean.dtype) + mait.MARGIN - mean
            loss = loss + self.margin * functional.relu(missing)
        return loss

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Average; while a client is being forgotten, take one corrected step inside the ball."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        if self.literal:
            public, own = self.server_literal(state.public, sums), dict(state.own)
        else:
            step = self.server_corrected(sums)
            step = removal.clipped(times(step, self.forget_rate * self.scale), self.clip)
            if self.forget_optimiser == "plain":
                public, own = add(state.public, step), dict(state.own)
            else:
                rate, kind = self.forget_rate, self.forget_optimiser
                public, own = server_move(state.public, state.own, step, kind, rate)
        return state.next(removal.within_ball(state.public, public, self.tau(state.public)), own)

    def tau(self, public: Params) -> float:
        """Return the maximum distance from the start, whose weights are in the broadcast."""
        if self.radius_share is None:
            return self.radius
        start = removal.reference(public)
        return self.radius_share * norm({name: start[name] for name in removal.weights(public)})

    def server_corrected(self, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Project the leaving client's step off the others' descent, Eq. (3.3)."""
        step = sums[FORGET].mean()
        others = sums[KEEP].mean() if KEEP in sums else {}
        step = projected(step, others) if self.correct else step
        return add(step, others, self.retention) if self.retention else step

    def server_literal(self, public: Params, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Apply Eq. (3.4)-(3.6) with w_i = w + rate * (mean step of a role), p by nodes."""
        now, total = removal.weights(public), sum(each.weight for each in sums.values())
        moved = {r: add(now, s.mean(), self.forget_rate) for r, s in sums.items()}
        residual = add(now, moved[FORGET], -sums[FORGET].weight / total)
        others = times(now, -1.0)
        if KEEP in sums:
            others = add(others, moved[KEEP], sums[KEEP].weight / total)
        return {**public, **add(now, projected(residual, others))}


def _host(fed: Federation, client: int, private: bool) -> Host | None:
    """Return a stand-in of a client with the next free id, or None if noise left no node."""
    held, clock = fed.now.vault.holdings, Clock(fed.clock.seed)
    if held.graph is None:
        raise ConfigError("virtual clients need subgraphs, but these clients have no graph.")
    mine = held.graph.keep(held.graph.owner == client).to("cpu")
    graph = _from_release(mine, held.items, clock) if private else _from_subgraph(mine, clock)
    if not len(graph.index):
        return None
    graph = replace(graph, owner=torch.full((len(graph.index),), held.clients))
    labelled = graph.index[graph.label >= 0]
    records = Records.of(torch.full_like(labelled, held.clients), labelled)
    split = torch.zeros(len(labelled), dtype=torch.int8)
    data = Holdings.of(records, split, held.clients + 1, held.items, task="nodes", graph=graph)
    return Host(held.clients, data)


def _from_subgraph(mine: Graph, clock: Clock) -> Graph:
    stand_in = VGAE().stand_in(mine, clock)
    cell = torch.arange(len(mine.index) * mine.features)
    node, feature = cell // mine.features, cell % mine.features
    value = stand_in.features.reshape(-1).to(mine.value.dtype)
    return replace(mine, edge=stand_in.edge, node=node, feature=feature, value=value)


def _from_release(mine: Graph, max_nodes: int, clock: Clock) -> Graph:
    model = BlockModel()
    stand_in = model.sample(model.release(mine), max_nodes, clock)
    index = torch.arange(len(stand_in.label))
    node, feature = stand_in.features.nonzero(as_tuple=True)
    value = torch.ones(len(node), dtype=mine.value.dtype)
    sampled = replace(mine, index=index, edge=stand_in.edge, label=stand_in.label)
    return replace(sampled, node=node, feature=feature, value=value)


def projected(step: Params, others: Params) -> dict[str, Tensor]:
    """Return step - min(<step, others>, 0) / |others|^2 * others."""
    against, size = dot(step, others), dot(others, others)
    return dict(step) if against >= 0 or not size else add(step, others, -against / size)
