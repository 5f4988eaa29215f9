"""Spare models: what the model would be without each client, ready before anybody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.optim import server_move
from rescind.core.params import Params
from rescind.core.plan import Batch
from rescind.core.records import Withdraw
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.methods.graphs.fedavg import GraphFedSGD

SPARE = "spare/"
"""Before a parameter's name: [K, ...], row k is trained by everybody but client k."""
COUNT = "spare count"
"""[K] the weight of everybody but client k, as a sum."""


@dataclass(frozen=True, kw_only=True)
class SpareModels(GraphFedSGD):
    """FedSGD that trains K + 1 models side by side: one with everybody, one without each client.

    Client k leaves: its spare model takes over. It is what a retraining gives, to rounding, since
    draws depend on nodes and rounds only; no round is needed and nobody need be online. The price
    is paid before: every round moves K + 1 models instead of one. After a departure the other
    spares, which the leaver helped to train, are thrown away; `restocked` makes them anew from the
    first round, and until then a leaver is forgotten by training again.

    Sums with and without a client differ by that client's update, so the server sees single
    updates: this is no method for secure aggregation. With `clients_per_round` others would have
    been drawn in a leaver's place, so there, too, it trains again.
    """

    paper: ClassVar[str] = "none: leave-one-out models kept ready"

    # -- client side -----------------------------------------------------------------------------

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """The loss under the model, plus that under each spare but the client's own. [C]"""
        total = super().client_objective(own, batch, public, cohort, clock)
        spares = {n[len(SPARE) :]: v for n, v in own.items() if n.startswith(SPARE)}
        for place in range(_many(public)):
            one = {name: value[:, place] for name, value in spares.items()}
            loss = super().client_objective(one, batch, public, cohort, clock)
            total = total + torch.where(cohort.ids == place, 0.0, loss)
        return total

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """As always, without a word (a decay, that is) on the own spare."""
        update, private = super().client_train(public, private, cohort, clock)
        if not (many := _many(public)):
            return update, private
        other = cohort.ids.unsqueeze(1) != torch.arange(many, device=cohort.ids.device)
        entries: dict[str, Rows | Tensor] = {}
        for name, value in update.entries.items():
            entries[name] = value
            if name.startswith(SPARE) and isinstance(value, Tensor):
                entries[name] = value * other.view(*other.shape, *[1] * (value.dim() - 2))
        entries[COUNT] = other.to(next(iter(public.values())).dtype)
        return Update(update.clients, entries), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """One copy of all models for everybody; decays on own spares are taken out again."""
        summed, private = super().client_sum(public, private, cohort, clock)
        if COUNT in summed.totals or not (many := _many(public)):
            return summed, private
        like = next(iter(public.values()))
        mine = like.new_zeros(many)
        known = cohort.ids < many  # a hosted client has no spare
        mine.index_add_(0, cohort.ids[known], cohort.weight[known].to(like.dtype))
        totals = dict(summed.totals)
        for name, value in summed.totals.items():
            if name.startswith(SPARE):
                each = mine.view(-1, *[1] * (value.dim() - 1))
                totals[name] = value + self.rate * self.weight_decay * each * public[name]
        totals[COUNT] = cohort.weight.sum().to(like.dtype) - mine
        up = summed.up + len(cohort) * many * like.element_size()
        return replace(summed, totals=totals, up=up), private

    # -- server side -----------------------------------------------------------------------------

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """Everybody's model and all spares begin alike."""
        state = super().server_init(world, clock)
        many = world.sizes.clients
        spares = {
            SPARE + n: v.expand(many, *v.shape).clone() for n, v in state.public.items() if many
        }
        return replace(state, public={**state.public, **spares})

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Means of everybody for the model, of everybody but one for that one's spare."""
        mean = self.server_mean(sums)
        if COUNT in mean:
            share = mean.pop(COUNT)  # of the weight that is not the client's own
            for name in [n for n in mean if n.startswith(SPARE)]:
                each = share.view(-1, *[1] * (mean[name].dim() - 1))
                mean[name] = torch.where(each > 0, mean[name] / each.clamp(min=1e-12), 0.0)
        rate = self.server_rate * self.server_pace(clock.round)
        public, own = server_move(state.public, state.own, mean, self.server_optimiser, rate)
        return state.next(public, own)

    # -- forgetting ------------------------------------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """The leaver's spare takes over, with its moments; whatever else is asked: train again."""
        public, event = fed.now.state.public, request.event
        if (
            not isinstance(event, Withdraw)
            or not 0 <= event.client < _many(public)
            or self.clients_per_round is not None
            or (fed.past is not None and (fed.past.story or fed.past.base is not None))
        ):
            return fed.retrained(event)
        gone = fed.apply(event)
        spare = taken_over(fed.now.state, event.client)
        return gone.with_(state=spare)


def taken_over(state: ServerState, client: int) -> ServerState:
    """The state in which one client's spare is the model, and there is no other."""
    public = {
        n[len(SPARE) :]: v[client].clone() for n, v in state.public.items() if n.startswith(SPARE)
    }
    own = {}
    for name, value in state.own.items():
        if f"/{SPARE}" in name:
            mine = value if value.dim() == 0 else value[client].clone()  # steps are counted once
            own[name.replace(f"/{SPARE}", "/")] = mine
    return replace(state, public=public, own=own)


def restocked(fed: Federation) -> Federation:
    """The same federation with spares again, by making its rounds anew; the model stays as it is.

    Nobody waits for it: it is ordinary training of those who are there.
    """
    again = fed.restart().run(fed.now.state.round)
    return replace(again, events=fed.events, key=fed.key, past=fed.past)


def _many(public: Params) -> int:
    """How many spares there are."""
    return next((len(v) for n, v in public.items() if n.startswith(SPARE)), 0)
