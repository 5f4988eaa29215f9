"""Audits that can fail: attacks on a model that forgot, judged beside models that never knew.

One file each. The auditor imports nothing of the unlearner (`rescind.methods`), and its seeds and
records are its own. `rescind.forgetting.examine` runs a battery.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rescind.audits.battery import FULL, STANDARD, Check, Judged, Outcome, Report, report_of
    from rescind.audits.case import Case

__all__ = ["FULL", "STANDARD", "Case", "Check", "Judged", "Outcome", "Report", "report_of"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: checking a receipt needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"{__name__}.{'case' if name == 'Case' else 'battery'}"), name
    )
