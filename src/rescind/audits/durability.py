"""Q9: forgotten records stay forgotten when training continues.

Teachers, snapshots and temporal means can bring influence back (reliability.md 1.2). Subject,
no-op and retrains continue for the same rounds or blocks and are judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rescind.audits.battery import NO_OP, STANDARD, SUBJECT, Check, Outcome
from rescind.audits.case import Case
from rescind.audits.finding import Finding
from rescind.audits.verdict import worst
from rescind.core import doing
from rescind.core.federation import Federation
from rescind.core.records import Arrive

Step = Callable[[Federation], Federation]
STEPS, ROUNDS = 3, 10
CHECKS = ("Q1 population", "kept", "kept rows")


def durability(
    case: Case, fed: Federation, steps: int = STEPS, rounds: int = ROUNDS
) -> list[Finding]:
    """Continue training and return one finding per check: the worst verdict where it has power."""
    step = partial(Federation.run, rounds=rounds)
    note = f"After {', '.join(str(rounds * (i + 1)) for i in range(steps))} more rounds"
    return _judge_later(case, fed, [step] * steps, "Q9", note)


def through_blocks(
    case: Case, fed: Federation, arrivals: Sequence[Arrive], rounds: int = ROUNDS
) -> list[Finding]:
    """Like `durability`, over the next blocks of a stream."""
    steps: list[Step] = [partial(_block, arrival=one, rounds=rounds) for one in arrivals]
    return _judge_later(case, fed, steps, "Q9 blocks", f"After each of {len(steps)} more blocks")


def _block(fed: Federation, arrival: Arrive, rounds: int) -> Federation:
    return fed.apply(arrival).run(rounds)


def _judge_later(
    case: Case, fed: Federation, steps: Sequence[Step], name: str, note: str
) -> list[Finding]:
    checks = [c for c in STANDARD if c.name in CHECKS]
    outcomes: dict[str, list[tuple[Outcome, Outcome]]] = {c.name: [] for c in checks}
    subject, no_op, refs = fed, case.before, list(case.references)
    with doing.step("training on, and asking again", len(steps), "times") as shown:
        for step in steps:
            subject, no_op, *refs = (step(f) for f in (subject, no_op, *refs))
            later = replace(case, references=tuple(refs))
            for check in checks:
                mine, no_op_outcome = check.judge(later, subject), check.judge(later, no_op)
                if mine and no_op_outcome:
                    outcomes[check.name].append((mine, no_op_outcome))
            shown.count()
    return [_finding(c, outcomes[c.name], name, note) for c in checks if outcomes[c.name]]


def _finding(
    check: Check, outcomes: Sequence[tuple[Outcome, Outcome]], name: str, note: str
) -> Finding:
    powered = [mine.verdict for mine, no_op_outcome in outcomes if no_op_outcome.verdict == "FAIL"]
    mine, no_op_outcome = outcomes[-1]
    values = ", ".join(f"{m.value:.4f}" for m, _ in outcomes)
    return Finding(
        f"{name} {check.name}",
        worst(powered) if powered else "POWERLESS",
        mine.value,
        (mine.low, mine.high),
        mine.reference,
        mine.margin,
        {NO_OP: no_op_outcome.value},
        mine.n,
        f"{note}: {values} ({SUBJECT}).",
    )
