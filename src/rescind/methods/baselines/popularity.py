"""Item popularity, the weakest baseline: one sum over devices, no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.params import Params
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Update, total_of
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.models.bag import Counts


@dataclass(frozen=True, kw_only=True)
class Popularity(Method):
    """Recommend the most owned items to every user. Additive, so forgetting is a subtraction."""

    paper: ClassVar[str] = "the floor: no learning"
    seedless: ClassVar[bool] = True
    control: ClassVar[bool] = True
    because: ClassVar[str] = "popularity"

    model: Model = Counts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, Counts):
            raise ConfigError("Popularity takes no model. Remove it from this row.")

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        train = cohort.train
        ones = torch.ones(len(train), 1, device=cohort.ids.device)
        rows = Rows(train.owner, train.item, ones, cohort.items)
        return Update(len(cohort), {"item": rows}), private

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Store the fraction of clients that own each item: the mean, not a step along it."""
        total = total_of(sums)
        return state.next({**state.public, **(total.mean() if total else {})})

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        return public["item"].T.expand(len(cohort), -1).clone()
