"""Federated learning on data that people lend and can take back.

    import rescind as rs

    fed = rs.Federation.start(rs.load("ml-100k"), rs.methods.FedShare(), seed=0).run(rounds=50)
    fed.evaluate()
    fed.recommend(user=7, k=20)
    fed, evidence = rs.forget(fed, rs.Withdraw(7), audits="none")

Names are imported when they are first used, so that `import rescind` is instant.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where torch brings mimalloc (aarch64), large tables are given back to the system between rounds
# and faulted in again: a fifth of a Gowalla round. Read when torch is loaded; changes speed only.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")

_WHERE = {
    "Federation": "rescind.core.federation",
    "EarlyStop": "rescind.core.run_state",
    "Recommendation": "rescind.core.labels",
    "Method": "rescind.core.method",
    "InProcess": "rescind.core.executor",
    "OneByOne": "rescind.core.executor",
    "Clock": "rescind.core.clock",
    "Holdings": "rescind.core.holdings",
    "World": "rescind.core.world",
    "Ranking": "rescind.core.tasks.metrics",
    "Records": "rescind.core.records",
    "Share": "rescind.core.records",
    "Unshare": "rescind.core.records",
    "Erase": "rescind.core.records",
    "Join": "rescind.core.records",
    "Withdraw": "rescind.core.records",
    "Arrive": "rescind.core.records",
    "Host": "rescind.core.records",
    "RescindError": "rescind.errors",
    "ConfigError": "rescind.errors",
    "DataError": "rescind.errors",
    "ConsentError": "rescind.errors",
    "BoundaryError": "rescind.errors",
    "forget": "rescind.forgetting.forget",
    "Evidence": "rescind.forgetting.forget",
    "load": "rescind.data",
    "save_federation": "rescind.storage.federations",
    "load_federation": "rescind.storage.federations",
    "draw_groups": "rescind.data.simulated_lending",
    "draw_share": "rescind.data.simulated_lending",
    "draw_regret": "rescind.data.simulated_lending",
}

if TYPE_CHECKING:
    from rescind import methods, models
    from rescind.core.clock import Clock
    from rescind.core.executor import InProcess, OneByOne
    from rescind.core.federation import Federation
    from rescind.core.holdings import Holdings
    from rescind.core.labels import Recommendation
    from rescind.core.method import Method
    from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
    from rescind.core.run_state import EarlyStop
    from rescind.core.tasks.metrics import Ranking
    from rescind.core.world import Host, World
    from rescind.data import load
    from rescind.data.simulated_lending import draw_groups, draw_regret, draw_share
    from rescind.errors import BoundaryError, ConfigError, ConsentError, DataError, RescindError
    from rescind.forgetting.forget import Evidence, forget
    from rescind.storage.federations import load_federation, save_federation

__all__ = [
    "Arrive",
    "BoundaryError",
    "Clock",
    "ConfigError",
    "ConsentError",
    "DataError",
    "EarlyStop",
    "Erase",
    "Evidence",
    "Federation",
    "Holdings",
    "Host",
    "InProcess",
    "Join",
    "Method",
    "OneByOne",
    "Ranking",
    "Recommendation",
    "Records",
    "RescindError",
    "Share",
    "Unshare",
    "Withdraw",
    "World",
    "__version__",
    "draw_groups",
    "draw_regret",
    "draw_share",
    "forget",
    "load",
    "load_federation",
    "methods",
    "models",
    "save_federation",
]


def __getattr__(name: str) -> Any:
    if name in ("methods", "models"):
        return importlib.import_module(f"rescind.{name}")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'rescind' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
