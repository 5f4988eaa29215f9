"""Audits of unlearning: attacks on the unlearned model, compared with retrained models.

One attack per file. Audits import nothing from `rescind.methods` and use separate seeds and
records. `rescind.forgetting.examine` runs them.
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
