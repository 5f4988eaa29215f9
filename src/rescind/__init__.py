"""Federated learning on data that people lend and can take back.

    import rescind as rs

    fed = rs.Federation.start(rs.load("ml-100k"), rs.methods.FedShare(), seed=0)
    fed = rs.simulate_lending(fed).run(rounds=50)
    fed.evaluate()
    fed.recommend(user=450, k=20)
    gone, evidence = rs.forget(fed, rs.Erase(fed.lent(user=450)), audits="none")

All records in one place, no federation: `rs.Gram().fit(frame)`, `add`, `forget`, `recommend`. It is
an estimator; `rs.methods.Gram` is the method of a federation with the same model.

Names are imported when they are first used, so that `import rescind` is instant. The author of a
method imports from `rescind.core`. Everything else is private. Users and items go by their original
ids here; indices are for `rescind.core` alone.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Where torch brings mimalloc (aarch64), large tables are given back to the system between rounds
# and faulted in again: a fifth of a Gowalla round. Read when torch is loaded; changes speed only.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")

_NAMES: dict[str, tuple[str, ...]] = {
    "rescind.data": ("Dataset", "GraphDataset", "from_frame", "import_file", "load"),
    "rescind.core.federation": ("Federation",),
    "rescind.core.run_state": ("EarlyStop",),
    "rescind.core.tasks.metrics": ("Ranking",),
    "rescind.core.labels": ("Recommendation",),
    "rescind.core.named": ("Join", "Withdraw"),
    "rescind.core.records": ("Erase", "EraseEdges", "EraseLabels", "Share", "Unshare"),
    "rescind.core.request": ("Request",),
    "rescind.forgetting.forget": ("Evidence", "forget"),
    "rescind.forgetting.examine": ("audit",),
    "rescind.audits.battery": ("Report",),
    "rescind.receipts.verify": ("verify",),
    "rescind.estimators": ("Gram", "GraphGram", "SeqGram"),
    "rescind.experiments.streams": ("Stream", "run_stream"),
    "rescind.core.guards": ("Clip", "Gaussian", "Laplace"),
    "rescind.privacy.accountant": ("guarantee",),
    "rescind.core.executor": ("InProcess", "OneByOne"),
    "rescind.storage.federations": ("load_federation", "save_federation"),
    "rescind.data.simulated_lending": (
        "draw_groups",
        "draw_regret",
        "draw_share",
        "simulate_lending",
    ),
    "rescind.errors": ("BoundaryError", "ConfigError", "ConsentError", "DataError", "RescindError"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from rescind import errors, methods, models
    from rescind.audits.battery import Report
    from rescind.core.executor import InProcess, OneByOne
    from rescind.core.federation import Federation
    from rescind.core.guards import Clip, Gaussian, Laplace
    from rescind.core.labels import Recommendation
    from rescind.core.named import Join, Withdraw
    from rescind.core.records import Erase, EraseEdges, EraseLabels, Share, Unshare
    from rescind.core.request import Request
    from rescind.core.run_state import EarlyStop
    from rescind.core.tasks.metrics import Ranking
    from rescind.data import Dataset, GraphDataset, from_frame, import_file, load
    from rescind.data.simulated_lending import (
        draw_groups,
        draw_regret,
        draw_share,
        simulate_lending,
    )
    from rescind.errors import BoundaryError, ConfigError, ConsentError, DataError, RescindError
    from rescind.estimators import Gram, GraphGram, SeqGram
    from rescind.experiments.streams import Stream, run_stream
    from rescind.forgetting.examine import audit
    from rescind.forgetting.forget import Evidence, forget
    from rescind.privacy.accountant import guarantee
    from rescind.receipts.verify import verify
    from rescind.storage.federations import load_federation, save_federation

__all__ = [
    "BoundaryError", "Clip", "ConfigError", "ConsentError", "DataError", "Dataset",
    "EarlyStop", "Erase", "EraseEdges", "EraseLabels", "Evidence", "Federation", "Gaussian", "Gram",
    "GraphDataset", "GraphGram", "InProcess", "Join", "Laplace", "OneByOne", "Ranking",
    "Recommendation", "Report", "Request", "RescindError", "SeqGram", "Share", "Stream",
    "Unshare", "Withdraw", "__version__", "audit", "draw_groups", "draw_regret", "draw_share",
    "errors", "forget", "from_frame", "guarantee", "import_file", "load", "load_federation",
    "methods", "models", "run_stream", "save_federation", "simulate_lending", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("errors", "methods", "models"):
        return importlib.import_module(f"rescind.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("Arrive", "Host", "Records"):
        told = "it names users by index, not by original id"
        raise AttributeError(f"rescind.{name} is rescind.core.{name} now: {told}.")
    raise AttributeError(f"module 'rescind' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
