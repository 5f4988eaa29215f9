"""Save and load federations, checkpoints and runs."""

from __future__ import annotations

import importlib
from typing import Any

_OLD = {
    "Checkpoints": "rescind.storage.checkpoints",
    "load_federation": "rescind.storage.federations",
    "resume": "rescind.storage.checkpoints",
    "save_federation": "rescind.storage.federations",
}
"""Names of the module that had this name in version 0.1; gone in 0.3."""


def __getattr__(name: str) -> Any:
    if name in _OLD:
        return getattr(importlib.import_module(_OLD[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
