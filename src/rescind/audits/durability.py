"""Q9: what was forgotten stays forgotten when learning goes on.

Teachers, snapshots and temporal means can bring influence back (reliability.md 1.2). Subject,
no-op and retrains go on for the same rounds, and are judged again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rescind.audits.battery import NO_OP, STANDARD, SUBJECT, Check, Outcome
from rescind.audits.probe import Case
from rescind.audits.verdict import worst
from rescind.federation import Federation
from rescind.findings import Finding

STEPS, ROUNDS = 3, 10
LOOKED_AT = ("Q1 population", "kept", "kept rows")


def durability(
    case: Case, fed: Federation, steps: int = STEPS, rounds: int = ROUNDS
) -> list[Finding]:
    """One finding for each check: the worst verdict over the times it could see the no-op."""
    checks = [c for c in STANDARD if c.name in LOOKED_AT]
    seen: dict[str, list[tuple[Outcome, Outcome]]] = {c.name: [] for c in checks}
    subject, no_op, refs = fed, case.before, list(case.references)
    for _ in range(steps):
        subject, no_op, *refs = (f.run(rounds) for f in (subject, no_op, *refs))
        later = replace(case, references=tuple(refs))
        for check in checks:
            mine, idle = check.judge(later, subject), check.judge(later, no_op)
            if mine and idle:
                seen[check.name].append((mine, idle))
    return [_finding(c, seen[c.name], rounds) for c in checks if seen[c.name]]


def _finding(check: Check, seen: Sequence[tuple[Outcome, Outcome]], rounds: int) -> Finding:
    powered = [mine.verdict for mine, idle in seen if idle.verdict == "FAIL"]
    mine, idle = seen[-1]
    values = ", ".join(f"{m.value:.4f}" for m, _ in seen)
    return Finding(
        f"Q9 {check.name}",
        worst(powered) if powered else "POWERLESS",
        mine.value,
        (mine.low, mine.high),
        mine.reference,
        mine.margin,
        {NO_OP: idle.value},
        mine.n,
        f"After {', '.join(str(rounds * (i + 1)) for i in range(len(seen)))} more rounds: {values} "
        f"({SUBJECT}).",
    )
