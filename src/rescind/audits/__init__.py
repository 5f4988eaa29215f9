"""Audits that can fail: attacks on a model that forgot, judged beside models that never knew.

One file each. The auditor imports nothing of the unlearner (`rescind.methods`), and its seeds and
records are its own. `rescind.forgetting.examine` runs a battery.
"""

from __future__ import annotations

from rescind.audits.battery import FULL, STANDARD, Check, Judged, Outcome, Report, report_of
from rescind.audits.case import Case

__all__ = ["FULL", "STANDARD", "Case", "Check", "Judged", "Outcome", "Report", "report_of"]
