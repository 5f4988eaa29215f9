"""FedGCV: a client leaves a graph federation; its ascent is corrected by the others' descent."""

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
from rescind.core.params import Params, add, dot, times
from rescind.core.plan import Batch, Plan
from rescind.core.records import Records, Withdraw
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.update import Sum
from rescind.core.world import Host, World
from rescind.errors import ConfigError
from rescind.methods._client_removal import (
    FORGET,
    KEEP,
    clipped,
    forgotten,
    had_no_influence,
    leaver,
    one_step,
    reference,
    referring,
    weights,
)
from rescind.methods.graphs._block_model import BlockModel
from rescind.methods.graphs._vgae import VGAE
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class FedGCV(GraphFedAvg):
    """Graph federated unlearning with gradient correction (Ma et al., arXiv 2605.02297).

    Learning is FedAvg. To forget a client, in each of `forget_rounds` rounds the leaver sends the
    gradient g_u of NPO on its nodes, the others that of cross-entropy, g_r; where they conflict,
    g_u is projected off g_r (Eq. 3.3); the server steps and stays within `radius` of where it
    began. Then the others repair for a few rounds. The leaver must be online while it is forgotten.

    DEPARTS Eq. (3.4)-(3.6): the correction acts on gradients, as Eq. (3.3) has it. To the letter
    (`literal`) the "residual" w - p_j w_j is nearly .9 w, so a step rescales all weights, which
    hardly changes what a ReLU network answers: nothing is forgotten.

    DEPARTS section 4.1: a step is on all training nodes of a client, not on batches of 128
    (`batch_size`, drawn anew in every round): no client of Cora or CiteSeer has as many, so there
    it is the same.

    DEPARTS section 3.2: the repair rounds have no virtual client. It adds 0 to .5 points over
    the same rounds without it and gives away the leaver's edges (fedgcv.md 2.7).
    """

    paper: ClassVar[str] = "Ma et al., arXiv 2605.02297"
    presets: ClassVar[tuple[str, ...]] = ("as_published", "without_correction")
    exact: ClassVar[bool] = False

    objective: Literal["npo", "ascent"] = "npo"
    """What the leaver minimises: NPO, or minus its cross-entropy."""
    sharpness: float = 1.0
    """Beta of NPO. The paper's 5 is unstable: worst leaver at 40 % (fedgcv.md section 3)."""
    correct: bool = True
    """Project the leaver's step off the others' where they conflict; False: leave it as it is."""
    retention: float = 0.0
    """Lambda in Eq. (2.6): how much of the others' descent is added to a step."""
    literal: bool = False
    """Eq. (3.4)-(3.6) as printed, on weights instead of gradients; for comparison."""
    radius: float = 10.0
    """Tau: how far the model may go from where forgetting began."""
    margin: float = 0.0
    """Weight of max(0, threshold + .5 - mean loss), which pushes the leaver's loss over the
    membership threshold of the model before; the paper's is 3."""
    forget_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    """Plain steps are clip(forget_rate * scale * step, 10); Adam does not feel the scale."""
    forget_rate: float = 0.02
    scale: float = 50.0
    """s_f in section 4.1."""
    clip: float = 10.0
    """c_max in section 4.1: the longest plain step."""
    forget_dropout: float = 0.3
    forget_rounds: int = 30
    """E_u in section 4.1."""
    repair_rounds: int = 5
    """R_v in section 4.1."""
    virtual: bool = False
    """Let a synthetic stand-in of the leaver take part in the repair. It gives the leaver's edges
    and labels to the server (`audits/stand_in.py`); for comparison only."""
    private_virtual: bool = False
    """The stand-in is drawn from noisy counts that the leaver gave while it was enrolled
    (`models/block_model.py`), instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low = {"sharpness": self.sharpness, "radius": self.radius, "clip": self.clip}
        for field, value in low.items():
            if not 0 < value < float("inf"):
                raise ConfigError(f"{type(self).__name__}.{field} must be above 0, got {value}.")
        rest = ("retention", "margin", "forget_rate", "scale", "forget_rounds", "repair_rounds")
        for field in rest:
            if not 0 <= getattr(self, field) < float("inf"):
                raise ConfigError(
                    f"{type(self).__name__}.{field} must be 0 or above and finite, "
                    f"got {getattr(self, field)}."
                )

    @classmethod
    def as_published(cls, **fields: Any) -> FedGCV:
        """Section 4.1: beta 5, batches of 128 nodes, the margin; without the virtual client."""
        return cls(**{"sharpness": 5.0, "margin": 3.0, "batch_size": 128, **fields})

    @classmethod
    def without_correction(cls, **fields: Any) -> FedGCV:
        """The ablation "w/o GRU": plain gradient ascent with a retention term (Eq. 2.6)."""
        return cls(**{"objective": "ascent", "correct": False, "retention": 1.0, **fields})

    # -- the story -------------------------------------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Corrected steps with the leaver online, then repair rounds without it."""

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            began = dict(weights(fed.now.state.public))
            if self.margin:
                began["threshold"] = mait.threshold(fed, without=leaver(roles))
            one = one_step(self, dropout=self.forget_dropout, batch_size=self.batch_size)
            return referring(fed, began).run(self.forget_rounds, method=one, roles=roles)

        if not (self.virtual or self.private_virtual) or not isinstance(request.event, Withdraw):
            return forgotten(fed, request, steps, self.repair_rounds)
        after = forgotten(fed, request, steps, 0)
        if had_no_influence(fed, request):  # nothing to stand in for
            return after
        host = (drawn if self.private_virtual else hosted)(fed, request.event.client)
        if host is None:
            return after.run(self.repair_rounds, method=fed.method)
        after = after.apply(host).run(self.repair_rounds, method=fed.method)
        return after.apply(Withdraw(host.client))

    # -- client side -----------------------------------------------------------------------------

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """While somebody is forgotten, one batch of every client: the first of those drawn."""
        plan = super().client_plan(public, private, cohort, clock)
        if cohort.role not in (FORGET, KEEP) or len(plan.sizes) <= 1:
            return plan
        first = plan.sizes[0]
        values = {name: value[:first] for name, value in plan.values.items()}
        return Plan(plan.owner[:first], (first,), {}, values)

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """The leaver: -(2 / beta) log sigma(beta (CE - CE before)). The others: CE. [C]"""
        if cohort.role != FORGET:
            return super().client_objective(own, batch, public, cohort, clock)
        now = self.client_entropy(own, batch, cohort, clock)
        before = reference(public)
        if self.objective == "ascent":
            each = -now
        else:
            first = {name: before[name] for name in weights(public)}
            far = now - self.client_entropy(nodes.same_for_all(first), batch, cohort, None)
            each = -2 / self.sharpness * functional.logsigmoid(self.sharpness * far)
        loss = jagged.segment_mean(each, batch.owner, batch.clients)
        if self.margin and "threshold" in before:
            mean = jagged.segment_mean(now, batch.owner, batch.clients)
            short = before["threshold"].to(mean.dtype) + mait.MARGIN - mean
            loss = loss + self.margin * functional.relu(short)
        return loss

    # -- server side -----------------------------------------------------------------------------

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Plain averaging; while a client is being forgotten, one corrected step in the ball."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        if self.literal:
            public, own = self.server_literal(state.public, sums), dict(state.own)
        else:
            step = self.server_corrected(sums)
            step = clipped(times(step, self.forget_rate * self.scale), self.clip)
            if self.forget_optimiser == "plain":
                public, own = add(state.public, step), dict(state.own)
            else:
                rate, kind = self.forget_rate, self.forget_optimiser
                public, own = server_move(state.public, state.own, step, kind, rate)
        return state.next(self.server_in_ball(state.public, public), own)

    def server_corrected(self, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Eq. (3.3): the leaver's step, less what goes against the others' descent."""
        step = sums[FORGET].mean()
        others = sums[KEEP].mean() if KEEP in sums else {}
        step = projected(step, others) if self.correct else step
        return add(step, others, self.retention) if self.retention else step

    def server_literal(self, public: Params, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Eq. (3.4)-(3.6) with w_i = w + rate * (the mean step of a role), p by nodes."""
        now, total = weights(public), sum(each.weight for each in sums.values())
        moved = {r: add(now, s.mean(), self.forget_rate) for r, s in sums.items()}
        residual = add(now, moved[FORGET], -sums[FORGET].weight / total)
        others = times(now, -1.0)
        if KEEP in sums:
            others = add(others, moved[KEEP], sums[KEEP].weight / total)
        return {**public, **add(now, projected(residual, others))}

    def server_in_ball(self, before: Params, after: Params) -> dict[str, Tensor]:
        """The nearest weights within `radius` of where forgetting began."""
        began = reference(before)
        gone = {n: v - began[n] for n, v in weights(after).items()}
        inside = clipped(gone, self.radius)
        return {**after, **{n: began[n] + v for n, v in inside.items()}}


def hosted(fed: Federation, client: int) -> Host:
    """A stand-in made of a client's subgraph, with its labels, under the next free number."""
    held = fed.now.vault.holdings
    mine = held.graph.keep(held.graph.owner == client) if held.graph is not None else None
    if mine is None:
        raise ConfigError("a virtual client stands for a subgraph; these clients hold no graph.")
    double = VGAE().stand_in(mine.to("cpu"), Clock(fed.clock.seed))
    number, nodes_ = held.clients, len(mine.index)
    every = torch.arange(nodes_ * mine.features)
    graph = replace(
        mine.to("cpu"),
        owner=torch.full((nodes_,), number),
        edge=double.edge,
        node=every // mine.features,
        feature=every % mine.features,
        value=double.features.reshape(-1).to(mine.value.dtype),
    )
    labelled = graph.index[graph.label >= 0]
    records = Records.of(torch.full_like(labelled, number), labelled)
    split = torch.zeros(len(labelled), dtype=torch.int8)
    data = Holdings.of(records, split, number + 1, held.items, task="nodes", graph=graph)
    return Host(number, data)


def drawn(fed: Federation, client: int) -> Host | None:
    """A stand-in drawn from a private release of a client's subgraph, under a free number.

    None where noise left no node of a small one: then nobody stands in.
    """
    held = fed.now.vault.holdings
    if held.graph is None:
        raise ConfigError("a virtual client stands for a subgraph; these clients hold no graph.")
    mine = held.graph.keep(held.graph.owner == client).to("cpu")
    model = BlockModel()
    double = model.drawn(model.release(mine), held.items, Clock(fed.clock.seed))
    number, many = held.clients, len(double.label)
    if not many:
        return None
    node, feature = double.features.nonzero(as_tuple=True)
    graph = Graph(
        owner=torch.full((many,), number),
        index=torch.arange(many),
        edge=double.edge,
        node=node,
        feature=feature,
        value=torch.ones(len(node), dtype=mine.value.dtype),
        label=double.label,
        features=mine.features,
        classes=mine.classes,
    )
    records = Records.of(torch.full((many,), number), torch.arange(many))
    split = torch.zeros(many, dtype=torch.int8)
    return Host(
        number, Holdings.of(records, split, number + 1, held.items, task="nodes", graph=graph)
    )


def projected(step: Params, others: Params) -> dict[str, Tensor]:
    """step - min(<step, others>, 0) / |others|^2 * others"""
    against, size = dot(step, others), dot(others, others)
    return dict(step) if against >= 0 or not size else add(step, others, -against / size)
