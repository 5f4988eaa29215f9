"""Unlearning by subtraction and distillation: the server subtracts all updates of a client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan
from rescind.core.request import Request
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.tasks.nodes import NodeModel
from rescind.core.update import Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import KEEP
from rescind.methods.graphs.fedavg import GraphFedAvg

SENT = "sent/{}/user"
"""Sum of each client's weighted updates so far: [clients, ...]. The platform clears the row of a
client under this name when the client leaves."""
COUNTS = "counts"
"""Entry of an update: the client's weight."""


@dataclass(frozen=True, kw_only=True)
class ULKD(GraphFedAvg):
    """Federated unlearning with knowledge distillation (Wu, Zhu, Mitra 2022).

    FedAvg whose server stores the sum of each client's weighted updates. To forget: subtract,
    w - p_j sum_r (w_j^r - w^r); distil the old model into the new one on the remaining clients'
    graphs, without labels; run plain rounds. The leaving client is offline. The server sees single
    updates.
    """

    paper: ClassVar[str] = "Wu, Zhu, Mitra 2022 (ULKD)"
    exact: ClassVar[bool] = False
    individual: ClassVar[bool] = True

    heat: float = 3.0
    """Temperature of the distillation."""
    forget_rate: float = 0.01
    """Learning rate of Adam in the distillation."""
    forget_rounds: int = 60
    """Distillation steps."""
    repair_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_optimiser != "plain":
            raise ConfigError(f"{type(self).__name__} needs server_optimiser = 'plain'.")

    def server_init(self, world: World, clock: Clock) -> ServerState:
        state = super().server_init(world, clock)
        clients = world.sizes.clients
        sent = {SENT.format(n): v.new_zeros(clients, *v.shape) for n, v in state.public.items()}
        return replace(state, own=sent)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Train as usual and send each client's weight, which single updates do not contain."""
        update, private = super().client_train(public, private, cohort, clock)
        counts = cohort.weight.to(next(iter(public.values())).dtype).view(-1, 1)
        return Update(update.clients, {**update.entries, COUNTS: counts}), private

    client_sum = Method.client_sum

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Average, and add each client's part to its stored sum."""
        plain = {
            role: replace(each, totals={n: v for n, v in each.totals.items() if n != COUNTS})
            for role, each in sums.items()
        }
        after = super().server_step(state, plain, world, clock)
        total = sum(each.weight for each in sums.values())
        clients = max([world.sizes.clients, *(client + 1 for client, _ in world.hosted)])
        own = {n: _with_rows(v, clients) for n, v in after.own.items()}
        for ids, update in (part for each in sums.values() for part in each.parts):
            fraction = cast(Tensor, update.entries[COUNTS]).view(-1) / total
            for name, value in update.entries.items():
                if SENT.format(name) in own and isinstance(value, Tensor):
                    factor = fraction.view(-1, *[1] * (value.dim() - 1)) * self.server_rate
                    own[SENT.format(name)].index_add_(0, ids, value * factor)
        return replace(after, own=own)

    def forget(self, fed: Federation, request: Request) -> Federation:
        sent = fed.now.state.own

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            old = removal.weights(fed.now.state.public)
            if any(SENT.format(name) not in sent for name in old):
                raise ConfigError("this federation did not keep updates. Train it with ULKD.")
            client = removal.leaving_client(roles)
            less = {n: v - sent[SENT.format(n)][client] for n, v in old.items()}
            now = removal.with_reference(fed, old, roles, only=KEEP)
            now = now.with_(state=replace(now.now.state, public={**now.now.state.public, **less}))
            distil = _Distil(model=self.model, heat=self.heat, server_rate=self.forget_rate)
            distil = removal.one_step(distil, dropout=0.0)
            return now.run(self.forget_rounds, method=distil, roles=roles)

        return removal.remove_client(fed, request, steps, self.repair_rounds)


@dataclass(frozen=True, kw_only=True)
class _Distil(GraphFedAvg):
    """Distillation of the old model: KL divergence at a temperature over all nodes, no labels."""

    heat: float = 3.0
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        return removal.only_online(super().server_sample(state, world, clock), state.own)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Plan all nodes, labelled or not."""
        order = torch.argsort(nodes.graph_of(cohort).owner, stable=True)
        owner = nodes.graph_of(cohort).owner[order]
        return Plan.of(owner, len(cohort), None, None, {}, {"node": order})

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Return the node mean of heat^2 KL(softmax(old / heat) | softmax(new / heat)). [C]"""
        graph, model = nodes.graph_of(cohort), cast(NodeModel, self.model)
        place = batch.values["node"]
        old = model.logits(nodes.same_for_all(removal.reference(public)), graph)[place] / self.heat
        new = model.logits(own, graph)[place] / self.heat
        log_old = torch.log_softmax(old, 1)
        each = (log_old.exp() * (log_old - torch.log_softmax(new, 1))).sum(1) * self.heat**2
        return jagged.segment_mean(each, batch.owner, batch.clients)


def _with_rows(sent: Tensor, clients: int) -> Tensor:
    """Return a copy with zero rows added for new clients."""
    copy = sent.new_zeros(max(clients, len(sent)), *sent.shape[1:])
    copy[: len(sent)] = sent
    return copy
