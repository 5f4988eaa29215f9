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
    audits = (
        "an audit told the model from models that never had what was taken back, and a second "
        "one could not be used (VOID)"
        if void
        else "two audits, each with models of its own that never had what was taken back, told "
        "the model from them"
    )
    return Finding(
        "escalation",
        "SHOWN",
        note=f"The platform vouches for an exact result, but {audits}. One of them is wrong, so "
        f"nothing is shown of the influence until it is known which. A copy of the run from before "
        f"the request can be audited further: rescind audit COPY, with the same request and "
        f"--seed 2.",
    )


def _undecided(alone: list[str]) -> Finding:
    """Say that two audits of an exact answer differ."""
    return Finding(
        "escalation",
        "SHOWN",
        note=f"The platform vouches for an exact result, but an audit failed ({', '.join(alone)}). "
        f"So a second one was made, with other models that never had what was taken back: it did "
        f"not find that. What one of two audits finds is undecided.",
    )
