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
    "Federation": "rescind.federation",
    "EarlyStop": "rescind.moments",
    "Recommendation": "rescind.labels",
    "Method": "rescind.method",
    "InProcess": "rescind.executor",
    "OneByOne": "rescind.executor",
    "Clock": "rescind.clock",
    "Holdings": "rescind.holdings",
    "World": "rescind.world",
    "Ranking": "rescind.tasks.metrics",
    "Records": "rescind.records",
    "Share": "rescind.records",
    "Unshare": "rescind.records",
    "Erase": "rescind.records",
    "Join": "rescind.records",
    "Withdraw": "rescind.records",
    "Arrive": "rescind.records",
    "Host": "rescind.records",
    "RescindError": "rescind.errors",
    "ConfigError": "rescind.errors",
    "DataError": "rescind.errors",
    "ConsentError": "rescind.errors",
    "BoundaryError": "rescind.errors",
    "forget": "rescind.forgetting",
    "Evidence": "rescind.forgetting",
    "load": "rescind.data",
    "save_federation": "rescind.storage",
    "load_federation": "rescind.storage",
    "draw_groups": "rescind.sharing",
    "draw_share": "rescind.sharing",
    "draw_regret": "rescind.sharing",
}

if TYPE_CHECKING:
    from rescind import methods, models
    from rescind.clock import Clock
    from rescind.data import load
    from rescind.errors import BoundaryError, ConfigError, ConsentError, DataError, RescindError
    from rescind.executor import InProcess, OneByOne
    from rescind.federation import Federation
    from rescind.forgetting import Evidence, forget
    from rescind.holdings import Holdings
    from rescind.labels import Recommendation
    from rescind.method import Method
    from rescind.moments import EarlyStop
    from rescind.records import Arrive, Erase, Host, Join, Records, Share, Unshare, Withdraw
    from rescind.sharing import draw_groups, draw_regret, draw_share
    from rescind.storage import load_federation, save_federation
    from rescind.tasks.metrics import Ranking
    from rescind.world import World

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
