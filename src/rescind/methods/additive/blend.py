"""The additive learner and the softmax learner side by side; the first forgets by subtraction."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.gradient import RankingMethod
from rescind.core.params import Params
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._exchange import alone
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._solve import TUNED, WEIGHTS
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.softmax import Softmax
from rescind.models.bag import Bag
from rescind.models.item_item import ItemWeights

if TYPE_CHECKING:
    from rescind.core.federation import Federation

COUNTS = "counts"
"""What each device's gradient counts, sent beside it: a sum of whole numbers has no weights."""
MOMENTS = "server/"


@dataclass(frozen=True, kw_only=True)
class Blend(Gram, RankingMethod):
    """score = z(x B) + share * z(softmax): the two make different mistakes (docs/additive.md).

    z takes a person's scores to mean 0 and deviation 1 over the catalogue. The first round counts
    everybody for B; in each round some devices send a gradient of the softmax learner, too.

    Forgetting subtracts from B, exactly and with a digest to check it by. The softmax learner has
    no such sum: its rounds are made again without the records, which takes as long as they took.
    """

    paper: ClassVar[str] = "ours; Gram and a federated softmax"
    seedless: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Subtract, and retrain the softmax learner"

    model: Bag = Bag()  # type: ignore[assignment]
    share: float = 1.0
    """What the softmax learner counts beside B. `tuned` sets what validation of ML-1M chose."""
    clients_per_round: int | None = 256
    """Devices that send a gradient in a round; everybody is counted for B at once."""
    loss: Literal["bpr", "bce", "softmax"] = "softmax"
    aggregate: Literal["clients", "records", "roots", "rows"] = "roots"
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    server_rate: float = 0.003
    server_decay: int | None = 1000
    local_includes_shared: bool = field(default=False, init=False)
    loans_per_round: int = 85
    """Lenders whose loans the server trains the softmax learner on in a round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_includes_shared", self.cross)
        super().__post_init__()
        if not 0 <= self.share < float("inf"):
            raise ConfigError(f"Blend.share must be 0 or above and finite; got {self.share}.")
        if self.aggregate == "rows":
            raise ConfigError(
                "Blend.aggregate is clients, records or roots: its devices send one weight for all "
                "rows. Choose one of them; got rows."
            )
        if self.noise or self.release_every > 1:
            raise ConfigError(
                "Blend sends gradients in every round, so noise on the releases of B promises "
                "nothing. Leave noise and release_every out, or use Gram."
            )
        if self.servers != 1:
            raise ConfigError(
                f"Blend.servers must be 1: gradients are no whole numbers that two servers could "
                f"hold in shares; got {self.servers}. Use Gram."
            )
        _ = self.learner  # its own settings are checked now, not in the first round

    @classmethod
    def tuned(cls, **fields: Any) -> Blend:
        """With what validation of ML-1M chose (recipes/additive/blend.toml)."""
        small: dict[str, Any] = {"model": Bag(dim=32, temperature=0.15), "server_decay": 600}
        return cls(**{**TUNED, **small, "share": 1.2, **fields})

    @property
    def learner(self) -> Softmax:
        """The softmax learner, with the settings of the same names."""
        return Softmax(**{field.name: getattr(self, field.name) for field in fields(Softmax)})

    @property
    def exactness(self) -> tuple[str, ...]:
        """The digest speaks of the sum alone."""
        return (
            "The softmax learner beside the sum: exactness by subtraction covers the item weights "
            "B alone. The softmax part was trained again without the records, and no digest shows "
            "it.",
        )

    # -- server side -----------------------------------------------------------------------------

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """An empty sum and first values of the tables."""
        state = super().server_init(world, clock)
        return _joined(state, self.learner.server_init(world, clock))

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Whoever has not been counted yet, and those whose gradient is wanted. [k] sorted"""
        uncounted = Gram.server_sample(replace(self, clients_per_round=None), state, world, clock)
        asked = self.learner.server_sample(state, world, clock)
        return torch.unique(torch.cat([uncounted, asked]))

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The sum with what devices sent, and a step of the softmax learner."""
        apart = self._apart(state)
        learnt = self.learner.server_step(apart, self._gradients(sums), world, clock)
        return _joined(super().server_step(state, sums, world, clock), learnt)

    def server_absorb(
        self,
        state: ServerState,
        sums: Mapping[str, Sum],
        world: World,
        lenders: Tensor | None = None,
    ) -> ServerState:
        """The state after differences came in; the tables stay as they are."""
        whole = replace(state, public=_without_tables(state.public, self.model.tables))
        return _joined(super().server_absorb(whole, sums, world, lenders), self._apart(state))

    def server_received(
        self, sums: Mapping[str, Sum], world: World
    ) -> tuple[Parts, dict[str, Tensor]]:
        """What came for the sum."""
        return super().server_received(_named(sums, self._tables, inside=False), world)

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """A block begins: the sum is carried over, and the tables grow."""
        learnt = self.learner.server_turn(self._apart(state), world, clock)
        return _joined(super().server_turn(state, world, clock), learnt)

    def _apart(self, state: ServerState) -> ServerState:
        """The softmax learner's part of a state."""
        public = {name: state.public[name] for name in self.model.tables}
        own = {name: value for name, value in state.own.items() if name.startswith(MOMENTS)}
        return replace(state, public=public, own=own)

    def _gradients(self, sums: Mapping[str, Sum]) -> dict[str, Sum]:
        """Sums of gradients with the weight they were sent with."""
        found = {}
        for role, total in _named(sums, self._tables, inside=True).items():
            if COUNTS in total.totals:
                rows = {n: v for n, v in total.totals.items() if n != COUNTS}
                found[role] = replace(total, totals=rows, weight=float(total.totals[COUNTS]))
        return found

    @property
    def _tables(self) -> set[str]:
        return {*self.model.tables, COUNTS}

    # -- client side -----------------------------------------------------------------------------

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """The difference for the sum and, where tables were sent, one weighted gradient."""
        update, private = super().client_train(public, private, cohort, clock)
        if not self._learns(public, cohort):
            return update, private
        weight, tables = self.learner.client_weight(cohort), self._sent(public)
        step, _ = self.learner.client_train(tables, Private({}), cohort, clock)
        counts = weight.to(public["item"].dtype)
        entries = {**update.entries, **step.scale(weight).entries, COUNTS: counts}
        return Update(len(cohort), entries), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`, by products over the whole catalogue where one fits."""
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
        shown = self._shown(cohort).to(counts.dtype)
        return replace(
            total,
            totals={**total.totals, **step.totals, COUNTS: counts.sum()},
            touched={**total.touched, **dict.fromkeys(step.touched, shown)},
            up=total.up + step.up + counts.numel() * counts.element_size(),
        ), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """z(x B) + share * z(softmax), with all of a device's own items. [C, I]"""
        whole = ItemWeights().of_lot({WEIGHTS: public[WEIGHTS]}, cohort.own)
        soft = self.learner.client_scores(self._sent(public), Private({}), cohort)
        return standardised(whole) + self.share * standardised(soft)

    def _learns(self, public: Params, cohort: Cohort) -> bool:
        """Whether this is a round; after an event, only differences for the sum are asked for."""
        return not alone(cohort.role) and all(name in public for name in self.model.tables)

    def _sent(self, public: Params) -> dict[str, Tensor]:
        return {name: public[name] for name in self.model.tables}

    def _shown(self, cohort: Cohort) -> Tensor:
        """How many devices rank each item: all but those that lent it. [I]"""
        own, train = (torch.bincount(lot.item, minlength=cohort.items)
                      for lot in (cohort.own, cohort.train))  # fmt: skip
        return len(cohort) - (own - train)

    # -- the story of forgetting -----------------------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract from the sum, exactly; run the rounds of the softmax learner again."""
        subtracted, again = super().forget(fed, request), fed.retrained(request.event)
        if not fed.now.state.round:
            return again
        now = subtracted.now
        learnt = replace(self._apart(again.now.state), round=now.state.round)
        return replace(again, now=replace(now, state=_joined(now.state, learnt)))


def standardised(scores: Tensor) -> Tensor:
    """Each person's scores with mean 0 and deviation 1; all 0 where they are all alike. [C, I]"""
    apart = scores - scores.mean(1, keepdim=True)
    spread = apart.square().mean(1, keepdim=True).sqrt()
    return apart / torch.where(spread > 0, spread, 1.0)


def _joined(state: ServerState, learnt: ServerState) -> ServerState:
    """The sum's state with tables and moments of the softmax learner."""
    left = _without_tables(state.public, tuple(learnt.public))
    kept = {name: value for name, value in state.own.items() if not name.startswith(MOMENTS)}
    public = ChainMap(dict(learnt.public), left)  # type: ignore[arg-type]
    return replace(state, public=public, own={**kept, **learnt.own})


def _without_tables(public: Params, tables: tuple[str, ...]) -> Params:
    """What the sum alone publishes; its weights are still made when they are first read."""
    if isinstance(public, ChainMap):
        return public.maps[-1]
    return {name: value for name, value in public.items() if name not in tables}


def _named(sums: Mapping[str, Sum], names: set[str], inside: bool) -> dict[str, Sum]:
    """Of every sum only the totals that have one of these names, or none of them."""
    return {
        role: replace(
            total,
            totals={n: v for n, v in total.totals.items() if (n in names) == inside},
            touched={n: v for n, v in total.touched.items() if (n in names) == inside},
        )
        for role, total in sums.items()
    }
