"""Blend: scores of Gram plus scores of the softmax learner."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.gradient import RankingMethod
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._exchange import alone
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive._solving import TUNED
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.softmax import Softmax
from rescind.models.bag import Bag
from rescind.models.item_item import ItemWeights

if TYPE_CHECKING:
    from rescind.core.federation import Federation

COUNTS = "counts"
"""Key of the weight sent with each gradient; sums of integers have no weights."""
MOMENTS = "server/"


@dataclass(frozen=True, kw_only=True)
class Blend(Gram, RankingMethod):
    """score = z(x B) + share * z(softmax): the two make different mistakes (docs/additive.md).

    z standardises a user's scores to mean 0 and deviation 1 over the catalogue. The first round
    counts all clients for B; in each round some devices also send a softmax gradient.

    Forgetting subtracts from B, exactly; whoever has the remaining data can check its digest. The
    softmax learner is retrained without the records, at the full cost of training.
    """

    paper: ClassVar[str] = "ours; Gram and a federated softmax"
    seedless: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Subtract, and retrain the softmax learner"

    model: Bag = Bag()  # type: ignore[assignment]
    share: float = 1.0
    """Weight of the softmax scores. See preset `tuned`."""
    clients_per_round: int | None = 256
    """Devices that send a gradient in a round; for B all clients are counted at once."""
    loss: Literal["bpr", "bce", "softmax"] = "softmax"
    aggregate: Literal["clients", "records", "roots", "rows"] = "roots"
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    server_rate: float = 0.003
    server_decay: int | None = 1000
    local_includes_shared: bool = field(default=False, init=False)
    private_rate: float = field(default=1.0, init=False)  # nothing is private in a Bag
    keep_moments: bool = field(default=False, init=False)
    delta: float = field(default=1e-5, init=False)  # of noise, which it refuses
    loans_per_round: int = 85
    """Lenders per round on whose loans the server trains the softmax learner."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_includes_shared", self.cross)
        super().__post_init__()
        must_lie(self, "[0, inf)", "share")
        if self.aggregate == "rows" or self.servers != 1 or not self.quiet:
            raise ConfigError(
                "Blend sends gradients with one weight for all rows in every round. Remove "
                "aggregate = rows, servers, noise, releases and release_every, or use Gram."
            )
        _ = self.learner  # checks its settings now

    @classmethod
    def tuned(cls, **fields: Any) -> Blend:
        """Return Blend as tuned on ML-1M validation (recipes/additive/blend.toml)."""
        small: dict[str, Any] = {"model": Bag(dim=32, temperature=0.15), "server_decay": 600}
        return cls(**{**TUNED, **small, "share": 1.2, **fields})

    @property
    def learner(self) -> Softmax:
        return Softmax(**{field.name: getattr(self, field.name) for field in fields(Softmax)})

    @property
    def exactness(self) -> tuple[str, ...]:
        return (
            "The softmax learner: exactness by subtraction covers the item weights B alone. The "
            "softmax part was retrained without what was taken back, and no digest proves it.",
        )

    def server_init(self, world: World, clock: Clock) -> ServerState:
        return _joined(super().server_init(world, clock), self.learner.server_init(world, clock))

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Select clients not counted yet, and those that send a gradient. [k] sorted"""
        uncounted = Gram.server_sample(replace(self, clients_per_round=None), state, world, clock)
        asked = self.learner.server_sample(state, world, clock)
        return torch.unique(torch.cat([uncounted, asked]))

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        before = self._softmax_state(state)
        learnt = self.learner.server_step(before, self._gradients(sums), world, clock)
        return _joined(super().server_step(state, sums, world, clock), learnt)

    def server_absorb(
        self, state: ServerState, sums: Sums, world: World, lenders: Tensor | None = None
    ) -> ServerState:
        gram = replace(state, public=_without_tables(state.public, self.model.tables))
        after = super().server_absorb(gram, sums, world, lenders)
        return _joined(after, self._softmax_state(state))

    def server_received(self, sums: Sums, world: World) -> tuple[Parts, dict[str, Tensor]]:
        return super().server_received(_named(sums, self._tables, inside=False), world)

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        learnt = self.learner.server_turn(self._softmax_state(state), world, clock)
        return _joined(super().server_turn(state, world, clock), learnt)

    def _softmax_state(self, state: ServerState) -> ServerState:
        public = {name: state.public[name] for name in self.model.tables}
        own = {name: value for name, value in state.own.items() if name.startswith(MOMENTS)}
        return replace(state, public=public, own=own)

    def _gradients(self, sums: Sums) -> dict[str, Sum]:
        found = {}
        for role, total in _named(sums, self._tables, inside=True).items():
            if COUNTS in total.totals:
                rows = {n: v for n, v in total.totals.items() if n != COUNTS}
                found[role] = replace(total, totals=rows, weight=float(total.totals[COUNTS]))
        return found

    @property
    def _tables(self) -> set[str]:
        return {*self.model.tables, COUNTS}

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Return the difference for the sum and, if tables were sent, one weighted gradient."""
        update, private = super().client_train(public, private, cohort, clock)
        if not self._learns(public, cohort):
            return update, private
        weight, tables = self.learner.client_weight(cohort), self._sent(public)
        step, _ = self.learner.client_train(tables, Private({}), cohort, clock)
        counts = weight.to(public["item"].dtype)
        entries = {**update.entries, **step.scale(weight).entries, COUNTS: counts}
        return Update(len(cohort), entries), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        """Return the sum of `client_train`, by dense products unless `candidates` is set."""
        if not self._learns(public, cohort):
            return super().client_sum(public, private, cohort, clock)
        if self.candidates is not None:
            update, private = self.client_train(public, private, cohort, clock)
            return update.fold(cohort.weight), private
        total, private = super().client_sum(public, private, cohort, clock)
        weight = self.learner.client_weight(cohort)
        weighted = replace(cohort, weight=weight)
        step, _ = self.learner.client_sum(self._sent(public), Private({}), weighted, clock)
        counts = weight.to(public["item"].dtype)
        own, kept = (jagged.counts(lot.item, cohort.items) for lot in (cohort.own, cohort.train))
        rankers = (len(cohort) - (own - kept)).to(counts.dtype)  # all except an item's lenders
        return replace(
            total,
            totals={**total.totals, **step.totals, COUNTS: counts.sum()},
            touched={**total.touched, **dict.fromkeys(step.touched, rankers)},
            up=total.up + step.up + counts.numel() * counts.element_size(),
        ), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Return z(x B) + share * z(softmax), with all of a device's own items. [C, I]"""
        linear = ItemWeights().of_lot({WEIGHTS: public[WEIGHTS]}, cohort.own)
        soft = self.learner.client_scores(self._sent(public), Private({}), cohort)
        return standardised(linear) + self.share * standardised(soft)

    def _learns(self, public: Params, cohort: Cohort) -> bool:
        """Return whether this is a training round; an event asks for differences only."""
        return not alone(cohort.role) and all(name in public for name in self.model.tables)

    def _sent(self, public: Params) -> dict[str, Tensor]:
        return {name: public[name] for name in self.model.tables}

    def forget(self, fed: Federation, request: Request) -> Federation:
        now, retrained = super().forget(fed, request).now, fed.retrained(request.event)
        if not fed.now.state.round:
            return retrained
        learnt = replace(self._softmax_state(retrained.now.state), round=now.state.round)
        return replace(retrained, now=replace(now, state=_joined(now.state, learnt)))


def standardised(scores: Tensor) -> Tensor:
    """Scale each user's scores to mean 0 and deviation 1; equal scores give 0. [C, I]"""
    centred = scores - scores.mean(1, keepdim=True)
    spread = centred.square().mean(1, keepdim=True).sqrt()
    return centred / torch.where(spread > 0, spread, 1.0)


def _joined(state: ServerState, learnt: ServerState) -> ServerState:
    left = _without_tables(state.public, tuple(learnt.public))
    kept = {name: value for name, value in state.own.items() if not name.startswith(MOMENTS)}
    public = ChainMap(dict(learnt.public), left)  # type: ignore[arg-type]
    return replace(state, public=public, own={**kept, **learnt.own})


def _without_tables(public: Params, tables: tuple[str, ...]) -> Params:
    """Return the public part of the sum; its weights are still computed when first read."""
    if isinstance(public, ChainMap):
        return public.maps[-1]
    return {name: value for name, value in public.items() if name not in tables}


def _named(sums: Sums, names: set[str], inside: bool) -> dict[str, Sum]:
    """Keep the totals with these names (inside), or all others."""
    return {
        role: replace(
            total,
            totals={n: v for n, v in total.totals.items() if (n in names) == inside},
            touched={n: v for n, v in total.touched.items() if (n in names) == inside},
        )
        for role, total in sums.items()
    }
