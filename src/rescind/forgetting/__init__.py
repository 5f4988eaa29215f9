"""Forget on request: unlearn, purge, audit, and a signed receipt."""

from __future__ import annotations

import importlib
from typing import Any

_OLD = {"Evidence": "rescind.forgetting.forget", "forget": "rescind.forgetting.forget"}
"""Names of the module that had this name in version 0.1; gone in 0.3."""


def __getattr__(name: str) -> Any:
    if name in _OLD:
        return getattr(importlib.import_module(_OLD[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
