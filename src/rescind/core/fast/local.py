"""The settings and steps of local training that the compiled forms read."""

from __future__ import annotations

from typing import Literal, Protocol

from rescind.core.model import Model
from rescind.core.optim import Step
from rescind.core.params import Params
from rescind.core.tasks.ranking import Settings


class LocalTraining(Settings, Protocol):
    """A method that trains by gradient steps on each client (`GradientMethod`)."""

    @property
    def model(self) -> Model: ...
    @property
    def epochs(self) -> int: ...
    @property
    def optimiser(self) -> Literal["sgd", "adam"]: ...
    @property
    def rate(self) -> float: ...
    @property
    def private_rate(self) -> float: ...
    @property
    def rate_per_item(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def aggregate(self) -> str: ...

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """Return the optimiser steps of each batch, in order."""
        ...
