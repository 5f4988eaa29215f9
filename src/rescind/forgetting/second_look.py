"""Audit an exact answer again, with other models, before it is said to have failed.

An exact result and a FAIL contradict each other, and the request cannot be audited later: the run
from before is emptied. A retrain fails once in some hundred audits by chance; it fails two in a row
with models that have nothing in common about as rarely as chance is squared. A real fault fails
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rescind.audits.battery import Report
from rescind.audits.finding import Finding, overall

SEED = 1
"""Of the second audit: other reference models, other draws of users, other planted records."""


def confirmed(first: Report, again: Callable[[], Report]) -> tuple[Report, Finding]:
    """Return the report in which only what two audits find is a FAIL, and what to say of that.

    If no check fails in both, what failed in the first is undecided. If a control of the second one
    gets a wrong verdict, it decides nothing, and the first one stands.
    """
    second = again()
    found = {finding.check: finding.verdict for finding in second.findings}
    failed = [finding.check for finding in first.findings if finding.verdict == "FAIL"]
    alone = [check for check in failed if found.get(check) != "FAIL"]
    if second.verdict == "VOID" or len(alone) < len(failed):
        return first, _contradicted(second.verdict == "VOID")
    findings = tuple(
        replace(one, verdict="INCONCLUSIVE", note=f"{one.note} {_found_alone(found, one)}".strip())
        if one.check in alone
        else one
        for one in first.findings
    )
    return replace(first, findings=findings, verdict=overall(findings)), _undecided(alone)


def _found_alone(found: dict[str, str], one: Finding) -> str:
    """Return what the second audit said of a check that failed in the first."""
    return f"FAIL in the first audit, {found.get(one.check, 'not judged')} in the second."


def _contradicted(void: bool) -> Finding:
    """Say that audits and an exact answer contradict each other."""
    second = "could not be used (VOID)" if void else "did, too"
    return _note(
        f"an audit told the model from models that never had what was taken back, and a second one "
        f"{second}. One of them is wrong, so nothing is shown of the influence until it is known "
        f"which. A copy of the run from before can be audited further: rescind audit COPY --seed 2."
    )


def _undecided(alone: list[str]) -> Finding:
    """Say that two audits of an exact answer differ."""
    return _note(
        f"an audit failed ({', '.join(alone)}), and a second one, with other models, did not. What "
        f"one of two audits finds is undecided."
    )


def _note(text: str) -> Finding:
    note = f"The platform vouches for an exact result, but {text}"
    return Finding("escalation", "SHOWN", note=note)
