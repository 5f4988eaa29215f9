"""Plain federated averaging, with the client recipe of FedShare (fedshare.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rescind.core.gradient import RankingMethod
from rescind.core.model import Model
from rescind.models.lightgcn import LightGCN


@dataclass(frozen=True, kw_only=True)
class FedAvg(RankingMethod):
    """Federated averaging without a shared graph or memory."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    model: Model = LightGCN()
    clients_per_round: int | None = 256
    reduce: Literal["mean", "sum"] = "sum"
    temperature: float = 0.2
    negatives: int = 4
    rate: float = 0.15
    private_rate: float = 0.0
