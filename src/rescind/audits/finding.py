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
    "POWERLESS": "Here this check would not even notice doing nothing, so it is not judged.",
}
"""Every verdict and what it means in plain words."""

QUESTIONS = {
    "Q0 controls": "do the audit's own controls get the verdicts they must?",
    "Q1 population": "are forgotten records scored above unseen ones?",
    "Q1 tail": "are some of them, where one false alarm in 100 is allowed?",
    "Q2 canaries": "are planted records told from ones that never were?",
    "Q3 U-LiRA": "can single records be found, with shadow models?",
    "Q4 lists": "do lists before and after give the records away?",
    "Q4 scores": "do scores before and after give them away?",
    "Q5 relearn": "are the records learnt again faster than new ones?",
    "Q6 tables": "how far are the parameters from retrained ones?",
    "Q6 lists": "how alike are the lists to retrained ones?",
    "Q6 scores": "how far are the scores from retrained ones?",
    "Q7 trigger": "does a planted habit still have its effect?",
    "Q8 exposed": "do records of people who stay stand out more?",
    "Q8 quality": "do people who stay lose quality?",
    "Q9": "later, when learning went on",
    "Q9 blocks": "later, when new data came",
    "Q10": "after many small requests in turn",
    "kept": "do the server's rows of people tell, over its graph?",
    "kept rows": "do the server's rows of people alone tell?",
    "table": "does the public table alone tell?",
    "calibrated": "does the table tell, less what retrained ones tell?",
    "pairs": "does the table tell which items were had together?",
    "people": "do lists look like those of somebody who took part?",
    "people trained": "do they, to a network trained on such lists?",
    "stale": "do old rows of people tell in the new table?",
    "stale, carried": "do they, turned to where the new table lies?",
    "escalation": "what was tried first?",
    "audit": "was anything measured?",
}
"""What a check asks, by the beginning of its name."""

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


def question(check: str) -> str:
    """What a check asks, in words; '' for one that nobody here knows.

    A check that is asked again later ("Q9 kept") asks the same question, later.
    """
    if check in QUESTIONS:
        return QUESTIONS[check]
    begins = [name for name in QUESTIONS if check.startswith(f"{name} ")]
    if not begins:
        return ""
    longest = max(begins, key=len)
    inner = QUESTIONS.get(check.removeprefix(longest).strip(), "")
    return f"{QUESTIONS[longest]}: {inner}" if inner else QUESTIONS[longest]


def legend(verdicts: Iterable[str]) -> list[str]:
    """One line for each of these words that is known, in the order they first occur."""
    return [f"{one}: {VERDICTS[one]}" for one in dict.fromkeys(verdicts) if one in VERDICTS]


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
