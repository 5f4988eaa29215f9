"""The finding of one check: a verdict with interval, reference and controls, that can be signed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescind.errors import DataError
from rescind.reporting.html import word_of

VERDICTS = {
    "PASS": "Not distinguishable from models that never had what was taken back, at this sample "
    "size.",
    "FAIL": "Distinguishable from models that never had what was taken back.",
    "INCONCLUSIVE": "The interval is too wide to decide between PASS and FAIL.",
    "VOID": "A control got the wrong verdict, so the result of this check means nothing.",
    "UNAUDITED": "Nothing was measured.",
    "SHOWN": "Reported only: it does not mean proved.",
    "POWERLESS": "This check would not detect it if nothing were forgotten, so it is not judged.",
}
"""All verdicts and their meaning."""

QUESTIONS = {
    "Q0 controls": "do the controls of the audit get the correct verdicts?",
    "Q1 population": "do forgotten records score higher than unseen ones?",
    "Q1 tail": "do some of them, if 1 in 100 unseen records may be taken for forgotten ones?",
    "Q2 canaries": "can planted records that were forgotten be told from ones never trained on?",
    "Q3 U-LiRA": "can somebody who trains models of their own pick out single records?",
    "Q4 lists": "do lists before and after reveal the records?",
    "Q4 scores": "do scores before and after reveal the records?",
    "Q5 relearn": "are the records relearned faster than by a retrained model?",
    "Q6 tables": "how far are the parameters from those of retrained models?",
    "Q6 lists": "how similar are the lists to those of retrained models?",
    "Q6 scores": "how far are the scores from those of retrained models?",
    "Q7 trigger": "does a planted backdoor still work?",
    "Q8 exposed": "do records of the other users stand out more?",
    "Q8 quality": "do the other users lose quality?",
    "Q9": "after more training",
    "Q9 blocks": "after more blocks of data",
    "Q10": "after many small requests in sequence",
    "kept": "does what the server keeps for each user, and who is linked to what, reveal them?",
    "kept rows": "does what the server keeps for each user, by itself, reveal them?",
    "table": "does the public item table alone reveal them?",
    "calibrated": "does the table reveal more than retrained tables?",
    "hold-out": "do a user's records lie closer in the table than unseen ones (by lot)?",
    "state": "does the server keep values that a retrained server does not have?",
    "exactness": "who says that the influence is removed exactly?",
    "pairs": "does the table reveal which items one user had together?",
    "people": "do lists look like those of a training user?",
    "people trained": "does a network trained on lists take them for a training user's?",
    "stale": "does what the server kept for each user before reveal them in the new table?",
    "stale, carried": "does it, if it is first fitted to the new table?",
    "escalation": "which unlearner was tried first?",
    "taken back": "does the new model of the service know what was taken back?",
    "audit": "was anything measured?",
    "scan": "are rows of the request left in the stored files?",
    "other models": "did every other model of this data forget, too?",
    "deleted models": "which models could not forget?",
}
"""The question of each check, by the first words of its name."""

UNITS = {
    "Q1 tail": ("record, forgotten or unseen", "records, forgotten or unseen"),
    "Q2 canaries": ("planted record", "planted records"),
    "Q3 U-LiRA": ("record", "records"),
    "Q5 relearn": ("record", "records"),
    "Q6 tables": ("model", "models"),
    "Q7 trigger": ("list", "lists"),
    "taken back": ("record", "records"),
    "scan": ("row", "rows"),
    "other models": ("model", "models"),
    "deleted models": ("model", "models"),
}
"""What `n` counts, one and many, by check. Others have one number per user: they count people."""

SAID_IN_WORDS = ("exactness", "escalation")
"""Checks whose answer is a sentence, not a number."""

JUDGING = ("FAIL", "VOID", "INCONCLUSIVE", "PASS", "UNAUDITED")
"""Verdicts that count, in order of priority: one FAIL decides."""


UNCHANGED = "no-op"
"""Name of the control that forgot nothing: what a check must notice."""

FAILED = ("FAIL", "VOID")
"""Verdicts that end a command with exit code 1. INCONCLUSIVE means too few records to find a fault;
scripts that need a PASS read the verdict."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. Numbers that could not be measured are None; `note` says why."""

    check: str
    """Name of the check, for example "Q1 population"."""
    verdict: str
    """One of `VERDICTS`."""
    value: float | None = None
    """The measure on the unlearned model."""
    interval: tuple[float, float] | None = None
    """Confidence interval of the value (low, high)."""
    reference: float | None = None
    """Mean of the measure over models trained without the records."""
    margin: float | None = None
    """Largest difference from the reference that counts as equal."""
    controls: Mapping[str, float] = field(default_factory=dict)
    """The measure on models with a known answer: no-op, score shift, another retrain."""
    n: int = 0
    """How many were judged: people, or what `UNITS` says."""
    note: str = ""
    """Remarks, and what the check cannot show."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, compare=False)
    """ROC curves by model: lists "fpr" and "tpr", optionally "low" and "high". Not signed."""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict, compare=False)
    """Scores of the records by model, for a figure. Not signed."""

    @property
    def question(self) -> str:
        return question(self.check)

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise DataError(f"finding '{self.check}' has the unknown verdict '{self.verdict}'.")
        ends = self.interval or ()
        for number in (self.value, *ends, self.reference, self.margin, *self.controls.values()):
            if number is not None and not math.isfinite(number):
                raise DataError(f"finding '{self.check}' has the value {number}. Use None.")
        if ends and (len(ends) != 2 or ends[0] > ends[1]):
            raise DataError(f"finding '{self.check}' has the interval {self.interval}.")
        if self.n < 0:
            raise DataError(f"finding '{self.check}' judged {self.n} records. Give 0 or more.")

    def facts(self) -> dict[str, Any]:
        """Return the signed part for JSON: everything except curves and samples."""
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
    """Return the question of a check, or '' for an unknown check."""
    if check in QUESTIONS:
        return QUESTIONS[check]
    prefixes = [name for name in QUESTIONS if check.startswith(f"{name} ")]
    if not prefixes:
        return ""
    longest = max(prefixes, key=len)
    inner = QUESTIONS.get(check.removeprefix(longest).strip(), "")
    return f"{QUESTIONS[longest]}: {inner}" if inner else QUESTIONS[longest]


def counted(finding: Finding) -> str:
    """Return what a check counted, with its unit: "85 people". '' if it counted nothing."""
    name, count = finding.check, int(finding.n)
    if not count:
        return ""
    if not question(name):  # a check of somebody else
        return f"{count:,}"
    # A check that is repeated ("Q9 Q1 tail") counts what the inner one counts.
    of = (unit for check, unit in UNITS.items() if f" {check} " in f" {name} ")
    one, many = next(of, ("person", "people"))
    return f"{count:,} {one if count == 1 else many}"


def legend(verdicts: Iterable[str]) -> list[str]:
    """Return one line of explanation per known verdict, in order of first occurrence."""
    known = {one: word_of(one) for one in verdicts if one in VERDICTS}
    words = {one: word if word == one else f"{word} ({one} in JSON)" for one, word in known.items()}
    return [f"{word}: {VERDICTS[one]}" for one, word in words.items()]


def overall(findings: Iterable[Finding]) -> str:
    """Return the worst verdict over all checks that count.

    PASS needs a check that passed and none that is FAIL, VOID or INCONCLUSIVE. If nothing was
    judged (SHOWN, POWERLESS, or no check), the result is INCONCLUSIVE, never PASS; UNAUDITED if
    nothing was measured.
    """
    given = {finding.verdict for finding in findings}
    return next((verdict for verdict in JUDGING if verdict in given), "INCONCLUSIVE")


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)  # JSON cannot write numpy numbers
