"""What one check found: a verdict with its interval, its reference and its own controls.

Audits make findings, receipts carry them. A finding is plain numbers and words, so that it can be
signed, printed and read by somebody who has nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescind.errors import DataError, suggest

VERDICTS = {
    "PASS": "Not told apart from models that never had the records, at this sample size.",
    "FAIL": "Told apart from models that never had the records.",
    "INCONCLUSIVE": "The interval is wider than the margin: it could be either.",
    "VOID": "The check's own controls did not behave, so its result means nothing.",
    "UNAUDITED": "Nothing was measured.",
    "SHOWN": "A number to look at; it is not judged.",
    "POWERLESS": "So few records that even doing nothing could not be noticed; it is not judged.",
}
"""Every verdict and what it means in plain words."""

JUDGING = ("FAIL", "VOID", "INCONCLUSIVE", "PASS", "UNAUDITED")
"""Verdicts that count, the one that decides first: a failure is not undone by another check."""


@dataclass(frozen=True)
class Finding:
    """What one check found. Numbers that could not be taken are None, and `note` says why."""

    check: str
    """Which check, as in "Q1 population"."""
    verdict: str
    """One of `VERDICTS`."""
    value: float | None = None
    """What was measured on the model after forgetting."""
    interval: tuple[float, float] | None = None
    """The ends of the value's confidence interval, lower first."""
    reference: float | None = None
    """The same measure on models trained without the records, their mean."""
    margin: float | None = None
    """How far from the reference still counts as equal."""
    controls: Mapping[str, float] = field(default_factory=dict)
    """The same measure where the answer is known: a no-op, a score shift, another retraining."""
    n: int = 0
    """How many records (or pairs) were judged."""
    note: str = ""
    """What the check cannot show, in words."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, compare=False)
    """ROC curves by model: lists "fpr" and "tpr", perhaps "low" and "high". Never signed."""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict, compare=False)
    """Scores of the records by model, for the picture of distributions. Never signed."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise DataError(
                f"finding '{self.check}' has the verdict '{self.verdict}': "
                f"{suggest(self.verdict, VERDICTS)}"
            )
        ends = self.interval or ()
        for number in (self.value, *ends, self.reference, self.margin, *self.controls.values()):
            if number is not None and not math.isfinite(number):
                raise DataError(
                    f"finding '{self.check}' holds {number}, which no receipt can state. "
                    f"Give None (or leave the control out) and say why in the note."
                )
        if ends and (len(ends) != 2 or ends[0] > ends[1]):
            raise DataError(
                f"finding '{self.check}' has the interval {self.interval}. "
                f"Give two ends, the lower first."
            )
        if self.n < 0:
            raise DataError(f"finding '{self.check}' judged {self.n} records. Give 0 or more.")

    def facts(self) -> dict[str, Any]:
        """The part that is signed, ready for JSON: everything but curves and samples."""
        return {
            "check": self.check,
            "verdict": self.verdict,
            "value": _number(self.value),
            "interval": None if self.interval is None else [_number(end) for end in self.interval],
            "reference": _number(self.reference),
            "margin": _number(self.margin),
            "controls": {name: _number(value) for name, value in self.controls.items()},
            "n": int(self.n),
            "note": self.note,
        }


def overall(findings: Iterable[Finding]) -> str:
    """The verdict over all checks: the worst of those that judge.

    PASS needs a check that passed and none that failed, was void or could not tell. Where nothing
    was judged (SHOWN, POWERLESS, no check at all) the answer is INCONCLUSIVE, never PASS; where
    nobody measured, UNAUDITED.
    """
    given = {finding.verdict for finding in findings}
    return next((verdict for verdict in JUDGING if verdict in given), "INCONCLUSIVE")


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)  # numpy's numbers are not JSON's
