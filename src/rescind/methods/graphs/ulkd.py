"""Unlearning by subtraction and distillation: the server takes back what a client ever sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.tasks.nodes import NodeModel
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._client_removal import (
    KEEP,
    asked,
    forgotten,
    leaver,
    one_step,
    reference,
    referring,
    weights,
)
from rescind.methods.graphs.fedavg import GraphFedAvg

SENT = "sent/{}/user"
"""What each client's updates have moved the model by so far, p_j summed: [clients, ...]. A row per
client under this name is wiped by the platform when its client leaves."""
COUNTS = "counts"
"""The name under which a client tells its weight beside its update."""


@dataclass(frozen=True, kw_only=True)
class ULKD(GraphFedAvg):
    """Federated unlearning with knowledge distillation (Wu, Zhu, Mitra 2022).

    FedAvg whose server remembers, for each client, the sum of what its updates moved the model by.
    To forget: w - p_j sum_r (w_j^r - w^r), then the old model teaches the new one on graphs
    without labels (those of the clients that stay), then plain rounds. The leaver is offline. The
    server sees single updates.
    """

    paper: ClassVar[str] = "Wu, Zhu, Mitra 2022 (ULKD)"
    exact: ClassVar[bool] = False
    individual: ClassVar[bool] = True

    heat: float = 3.0
    """Temperature of the distillation."""
    forget_rate: float = 0.01
    """Of Adam, in the distillation."""
    forget_rounds: int = 60
    """Steps of distillation."""
    repair_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_optimiser != "plain":
            raise ConfigError(
                f"{type(self).__name__} takes back what was added, so the server must add plainly: "
                f"server_optimiser = 'plain', not '{self.server_optimiser}'."
            )

    # -- learning: remember who sent what --------------------------------------------------------

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """The model, and nothing sent by anybody."""
        state = super().server_init(world, clock)
        many = world.sizes.clients
        sent = {SENT.format(n): v.new_zeros(many, *v.shape) for n, v in state.public.items()}
        return replace(state, own=sent)

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """As always, and how much each client counts: single updates come without weights."""
        update, private = super().client_train(public, private, cohort, clock)
        counts = cohort.weight.to(next(iter(public.values())).dtype).view(-1, 1)
        return Update(update.clients, {**update.entries, COUNTS: counts}), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`."""
        update, private = self.client_train(public, private, cohort, clock)
        return update.fold(cohort.weight), private

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The mean, and a note of everybody's part in it."""
        plain = {
            role: replace(each, totals={n: v for n, v in each.totals.items() if n != COUNTS})
            for role, each in sums.items()
        }
        after = super().server_step(state, plain, world, clock)
        total = sum(each.weight for each in sums.values())
        most = max([world.sizes.clients, *(number + 1 for number, _ in world.hosted)])
        own = {n: grown(v, most) for n, v in after.own.items()}
        for ids, update in (part for each in sums.values() for part in each.parts):
            share = cast(Tensor, update.entries[COUNTS]).view(-1) / total
            for name, value in update.entries.items():
                if SENT.format(name) in own and isinstance(value, Tensor):
                    each_share = share.view(-1, *[1] * (value.dim() - 1)) * self.server_rate
                    own[SENT.format(name)].index_add_(0, ids, value * each_share)
        return replace(after, own=own)

    # -- forgetting: take it back, and teach -----------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract, distil, go on."""
        kept = fed.now.state.own

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            old = weights(fed.now.state.public)
            missing = [name for name in old if SENT.format(name) not in kept]
            if missing:
                raise ConfigError(
                    f"{type(self).__name__} takes back what a client sent, but the server of this "
                    f"federation did not keep it. Train with ULKD, or forget by another method."
                )
            less = {n: v - kept[SENT.format(n)][leaver(roles)] for n, v in old.items()}
            now = referring(fed, old, roles, only=KEEP)
            now = now.with_(state=replace(now.now.state, public={**now.now.state.public, **less}))
            teach = _Distil(model=self.model, heat=self.heat, server_rate=self.forget_rate)
            return now.run(self.forget_rounds, method=one_step(teach, dropout=0.0), roles=roles)

        return forgotten(fed, request, steps, self.repair_rounds)


@dataclass(frozen=True, kw_only=True)
class _Distil(GraphFedAvg):
    """The old model teaches: KL divergence at a temperature over all nodes, labels unread."""

    heat: float = 3.0
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Those who stay."""
        return asked(super().server_sample(state, world, clock), state.own)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Every node, labelled or not."""
        order = torch.argsort(nodes.graph_of(cohort).owner, stable=True)
        owner = nodes.graph_of(cohort).owner[order]
        return Plan.of(owner, len(cohort), None, None, {}, {"node": order})

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """heat^2 KL(softmax(old / heat) | softmax(new / heat)), the mean over nodes. [C]"""
        graph, model = nodes.graph_of(cohort), cast(NodeModel, self.model)
        place = batch.values["node"]
        old = model.logits(nodes.same_for_all(reference(public)), graph)[place] / self.heat
        new = model.logits(own, graph)[place] / self.heat
        said = torch.log_softmax(old, 1)
        each = (said.exp() * (said - torch.log_softmax(new, 1))).sum(1) * self.heat**2
        return jagged.segment_mean(each, batch.owner, batch.clients)


def grown(sent: Tensor, clients: int) -> Tensor:
    """A copy with room for clients that are new."""
    longer = sent.new_zeros(max(clients, len(sent)), *sent.shape[1:])
    longer[: len(sent)] = sent
    return longer
