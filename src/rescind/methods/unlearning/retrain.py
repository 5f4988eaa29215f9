"""Retrain: the reference that every other unlearner is measured against (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.methods.baselines.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Retrain(FedAvg):
    """The same rounds again without the records, by whatever method a federation learns with.

    Exact. On its own it learns by federated averaging; named as an unlearner it serves any method.
    """

    paper: ClassVar[str] = "reference"
    unlearning: ClassVar[str] = "Retrain"
