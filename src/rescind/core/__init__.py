"""The federation: values, verbs, the one loop. What the author of a method imports is listed here.

    from rescind.core import Batch, Clock, Cohort, Params, Private, RankingMethod, Work, jagged

`docs/methods.md` shows a method in one file. Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES: dict[str, tuple[str, ...]] = {
    "rescind.core.claims": ("Claims",),
    "rescind.core.clock": ("Clock",),
    "rescind.core.cohort": ("Cohort", "Graph", "Lot", "Mail"),
    "rescind.core.executor": ("Executor", "Vault"),
    "rescind.core.federation": ("Federation",),
    "rescind.core.gradient": ("GradientMethod", "RankingMethod"),
    "rescind.core.holdings": ("Holdings",),
    "rescind.core.method": ("Method", "Unlearner"),
    "rescind.core.model": ("Model", "RankingModel"),
    "rescind.core.optim": ("Step",),
    "rescind.core.params": ("Params",),
    "rescind.core.plan": ("Batch", "Plan", "Work"),
    "rescind.core.records": ("Arrive", "Event", "Records"),
    "rescind.core.request": ("Request",),
    "rescind.core.run_state": ("RunState",),
    "rescind.core.state": ("Memory", "Private", "ServerState"),
    "rescind.core.update": ("Rows", "Sum", "Update"),
    "rescind.core.world": ("Host", "World"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from rescind.core import jagged
    from rescind.core.claims import Claims
    from rescind.core.clock import Clock
    from rescind.core.cohort import Cohort, Graph, Lot, Mail
    from rescind.core.executor import Executor, Vault
    from rescind.core.federation import Federation
    from rescind.core.gradient import GradientMethod, RankingMethod
    from rescind.core.holdings import Holdings
    from rescind.core.method import Method, Unlearner
    from rescind.core.model import Model, RankingModel
    from rescind.core.optim import Step
    from rescind.core.params import Params
    from rescind.core.plan import Batch, Plan, Work
    from rescind.core.records import Arrive, Event, Records
    from rescind.core.request import Request
    from rescind.core.run_state import RunState
    from rescind.core.state import Memory, Private, ServerState
    from rescind.core.update import Rows, Sum, Update
    from rescind.core.world import Host, World

__all__ = [
    "Arrive", "Batch", "Claims", "Clock", "Cohort", "Event", "Executor", "Federation",
    "GradientMethod", "Graph", "Holdings", "Host", "Lot", "Mail", "Memory", "Method", "Model",
    "Params", "Plan", "Private", "RankingMethod", "RankingModel", "Records", "Request", "Rows",
    "RunState", "ServerState", "Step", "Sum", "Unlearner", "Update", "Vault", "Work", "World",
    "jagged",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "jagged":
        return importlib.import_module("rescind.core.jagged")
    raise AttributeError(f"module 'rescind.core' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
