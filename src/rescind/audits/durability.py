"""Q9: what was forgotten stays forgotten when learning goes on.

Teachers, snapshots and temporal means can bring influence back (reliability.md 1.2). Subject,
no-op and retrains go on for the same rounds, or through the same blocks, and are judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rescind.audits.battery import NO_OP, STANDARD, SUBJECT, Check, Outcome
from rescind.audits.case import Case
from rescind.audits.finding import Finding
from rescind.audits.verdict import worst
from rescind.core.federation import Federation
from rescind.core.records import Arrive

Step = Callable[[Federation], Federation]
STEPS, ROUNDS = 3, 10
LOOKED_AT = ("Q1 population", "kept", "kept rows")


def durability(
    case: Case, fed: Federation, steps: int = STEPS, rounds: int = ROUNDS
) -> list[Finding]:
    """One finding for each check: the worst verdict over the times it could see the no-op."""
    on = partial(Federation.run, rounds=rounds)
    said = f"After {', '.join(str(rounds * (i + 1)) for i in range(steps))} more rounds"
    return _lasting(case, fed, [on] * steps, "Q9", said)


def through_blocks(
    case: Case, fed: Federation, arrivals: Sequence[Arrive], rounds: int = ROUNDS
) -> list[Finding]:
    """The same, through the blocks that follow: lists, teachers, old tables and people who stay
    away for a block are what could bring a record back (F3CRec's memory, reliability.md A5).

    The request was answered in the block of `case`; each later block is trained for `rounds`.
    """
    steps: list[Step] = [partial(_block, arrival=one, rounds=rounds) for one in arrivals]
    return _lasting(case, fed, steps, "Q9 blocks", f"After each of {len(steps)} more blocks")


def _block(fed: Federation, arrival: Arrive, rounds: int) -> Federation:
    return fed.apply(arrival).run(rounds)


def _lasting(
    case: Case, fed: Federation, steps: Sequence[Step], name: str, said: str
) -> list[Finding]:
    checks = [c for c in STANDARD if c.name in LOOKED_AT]
    seen: dict[str, list[tuple[Outcome, Outcome]]] = {c.name: [] for c in checks}
    subject, no_op, refs = fed, case.before, list(case.references)
    for step in steps:
        subject, no_op, *refs = (step(f) for f in (subject, no_op, *refs))
        later = replace(case, references=tuple(refs))
        for check in checks:
            mine, idle = check.judge(later, subject), check.judge(later, no_op)
            if mine and idle:
                seen[check.name].append((mine, idle))
    return [_finding(c, seen[c.name], name, said) for c in checks if seen[c.name]]


def _finding(
    check: Check, seen: Sequence[tuple[Outcome, Outcome]], name: str, said: str
) -> Finding:
    powered = [mine.verdict for mine, idle in seen if idle.verdict == "FAIL"]
    mine, idle = seen[-1]
    values = ", ".join(f"{m.value:.4f}" for m, _ in seen)
    return Finding(
        f"{name} {check.name}",
        worst(powered) if powered else "POWERLESS",
        mine.value,
        (mine.low, mine.high),
        mine.reference,
        mine.margin,
        {NO_OP: idle.value},
        mine.n,
        f"{said}: {values} ({SUBJECT}).",
    )
