"""Audits of unlearning: attacks on the unlearned model, compared with retrained models.

One attack per file. Audits import nothing from `rescind.methods` and use separate seeds and
records. `rescind.forgetting.examine` runs them.
"""

from __future__ import annotations

from rescind.audits.battery import FULL, STANDARD, Check, Judged, Outcome, Report, report_of
from rescind.audits.case import Case

__all__ = ["FULL", "STANDARD", "Case", "Check", "Judged", "Outcome", "Report", "report_of"]
