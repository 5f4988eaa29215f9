"""Leave-one-out models: a spare model without each client is trained in advance."""

from __future__ import annotations

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
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Update
from rescind.core.world import World
from rescind.methods.graphs.fedavg import GraphFedSGD

SPARE = "spare/"
"""Prefix of a parameter name: [K, ...], row k is trained by all clients except k."""
COUNT = "spare count"
"""[K] total weight of all clients except k."""


@dataclass(frozen=True, kw_only=True)
class SpareModels(GraphFedSGD):
    """FedSGD that trains K + 1 models in parallel: one with all clients, one without each client.

    When client k leaves, its spare model becomes the model. It equals a retraining up to rounding,
    because random draws depend only on nodes and rounds. No round is needed and no client must be
    online, but every training round moves K + 1 models. The other spares are then deleted, and the
    next client is forgotten by retraining; so is every request with `clients_per_round`.

    Sums with and without a client differ by that client's update, so the server sees single
    updates.
    """

    paper: ClassVar[str] = "none: leave-one-out models kept ready"

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Return the loss of the model plus those of all spares except the client's own. [C]"""
        total = super().client_objective(own, batch, public, cohort, clock)
        spares = {n[len(SPARE) :]: v for n, v in own.items() if n.startswith(SPARE)}
        for k in range(_spare_count(public)):
            one = {name: value[:, k] for name, value in spares.items()}
            loss = super().client_objective(one, batch, public, cohort, clock)
            total = total + torch.where(cohort.ids == k, 0.0, loss)
        return total

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Train as usual, with no update (weight decay included) to the client's own spare."""
        update, private = super().client_train(public, private, cohort, clock)
        if not (count := _spare_count(public)):
            return update, private
        other = cohort.ids.unsqueeze(1) != torch.arange(count, device=cohort.ids.device)
        entries: dict[str, Rows | Tensor] = {}
        for name, value in update.entries.items():
            entries[name] = value
            if name.startswith(SPARE) and isinstance(value, Tensor):
                entries[name] = value * other.view(*other.shape, *[1] * (value.dim() - 2))
        entries[COUNT] = other.to(next(iter(public.values())).dtype)
        return Update(update.clients, entries), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        """Use one copy of the models for all clients; undo the decay of each client's own spare."""
        summed, private = super().client_sum(public, private, cohort, clock)
        if COUNT in summed.totals or not (count := _spare_count(public)):
            return summed, private
        like = next(iter(public.values()))
        mine = like.new_zeros(count)
        known = cohort.ids < count  # a hosted client has no spare
        mine.index_add_(0, cohort.ids[known], cohort.weight[known].to(like.dtype))
        totals = dict(summed.totals)
        for name, value in summed.totals.items():
            if name.startswith(SPARE):
                each = mine.view(-1, *[1] * (value.dim() - 1))
                totals[name] = value + self.rate * self.weight_decay * each * public[name]
        totals[COUNT] = cohort.weight.sum().to(like.dtype) - mine
        up = summed.up + len(cohort) * count * like.element_size()
        return replace(summed, totals=totals, up=up), private

    def server_init(self, world: World, clock: Clock) -> ServerState:
        state = super().server_init(world, clock)
        k = world.sizes.clients
        spares = {SPARE + n: v.expand(k, *v.shape).clone() for n, v in state.public.items() if k}
        return replace(state, public={**state.public, **spares})

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Step the model by the mean of all clients, spare k by the mean of all except k."""
        mean = self.server_mean(sums)
        if COUNT in mean:
            fraction = mean.pop(COUNT)  # [K] of the weight, without client k
            for name in [n for n in mean if n.startswith(SPARE)]:
                each = fraction.view(-1, *[1] * (mean[name].dim() - 1))
                mean[name] = torch.where(each > 0, mean[name] / each.clamp(min=1e-12), 0.0)
        rate = self.server_rate * self.server_pace(clock.round)
        public, own = server_move(state.public, state.own, mean, self.server_optimiser, rate)
        return state.next(public, own)

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Use the leaving client's spare and its moments; retrain for any other request."""
        public, event = fed.now.state.public, request.event
        if (
            not isinstance(event, Withdraw)
            or not 0 <= event.client < _spare_count(public)
            or self.clients_per_round is not None
            or (fed.past is not None and (fed.past.story or fed.past.base is not None))
        ):
            return fed.retrained(event)
        return fed.apply(event).with_(state=_spare_as_model(fed.now.state, event.client))


def _spare_as_model(state: ServerState, client: int) -> ServerState:
    """Return the state with one client's spare as the model, without other spares."""
    public = {
        n[len(SPARE) :]: v[client].clone() for n, v in state.public.items() if n.startswith(SPARE)
    }
    own = {}
    for name, value in state.own.items():
        if f"/{SPARE}" in name:
            mine = value[client].clone() if value.dim() else value  # the step count is common
            own[name.replace(f"/{SPARE}", "/")] = mine
    return replace(state, public=public, own=own)


def _spare_count(public: Params) -> int:
    return next((len(v) for n, v in public.items() if n.startswith(SPARE)), 0)
