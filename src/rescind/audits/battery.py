"""The checks, and how their outcomes make a report: every audit judges its own controls first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rescind.audits import bystanders, difference, distance, membership, state_attacks
from rescind.audits import item_pairs as pairs
from rescind.audits import user_membership as people
from rescind.audits.case import Case, PerPerson, Tail
from rescind.audits.finding import Finding, overall
from rescind.audits.verdict import (
    Difference,
    Measure,
    compare,
    compare_groups,
    equal,
    margin_of,
    not_above,
    resample,
    worst,
)
from rescind.core.federation import Federation

Sample = PerPerson | Tail
Take = Callable[[Case, Federation], Sample | None]
Kind = Literal["forgetting", "harm", "shown"]

SUBJECT, NO_OP, SHIFT, RETRAIN, PURGE = "subject", "no-op", "score shift", "retrain", "purge only"
LOSS = 0.03  # of a tenth's quality, relative to a retrain (reliability.md Q8)
TENTH = 50  # people in a tenth below which a bootstrap cannot be trusted
DRAWN = 400  # members' scores that a picture shows


@dataclass(frozen=True)
class Outcome:
    """What one check says of one model."""

    verdict: str
    value: float
    reference: float
    low: float
    high: float
    margin: float | None
    n: int
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One measure on a model, judged against the same on retrains."""

    name: str
    take: Take
    kind: Kind = "forgetting"
    note: str = ""
    ranking: bool = False
    """It needs lists or items; labelled nodes have none."""

    def sample(self, case: Case, fed: Federation) -> Sample | None:
        """What it takes from a model; a retrain is held against the others."""
        return case.once(f"sample {self.name}", fed, lambda: self.take(case, fed))

    def measure(self, case: Case, fed: Federation) -> Measure | None:
        """The number and its bootstrap draws, the same people in a draw for every model."""
        sample = self.sample(case, fed)
        if sample is None or not sample.size:
            return None
        purpose = f"people {sample.people}"
        counts = case.once(
            purpose, case.before, lambda: resample(sample.people, case.clock, purpose)
        )
        return case.once(f"measure {self.name}", fed, lambda: sample.measure(counts))

    def judge(self, case: Case, fed: Federation) -> Outcome | None:
        """The verdict on a model; None where the check does not apply."""
        if self.ranking and not case.ranks:
            return None
        mine = self.measure(case, fed)
        others = [self.measure(case, r) for r in case.beside(fed)]
        theirs = [m for m in others if m is not None]
        if mine is None or len(theirs) < len(others):
            return None
        found = compare(mine, theirs)
        sample = self.sample(case, fed)
        assert sample is not None
        many = _counted(sample)
        ends = (found.value, found.reference, found.low, found.high)
        if self.kind == "shown":
            return Outcome("SHOWN", *ends, None, many)
        margin = margin_of(self.name, sample.size)
        verdict = (equal if self.kind == "forgetting" else not_above)(found, margin)
        return Outcome(verdict, *ends, margin, many)


@dataclass(frozen=True)
class Quality(Check):
    """NDCG of bystanders: no loss beyond 3 % and chance over all, no certain one in a tenth."""

    def judge(self, case: Case, fed: Federation) -> Outcome | None:
        """Over all: an interval inside the margin. Tenths: FAIL where noise cannot explain it."""
        if self.ranking and not case.ranks:
            return None
        mine = self.measure(case, fed)
        theirs = [self.measure(case, r) for r in case.beside(fed)]
        found = compare(*_whole(mine, theirs))
        sample = self.sample(case, fed)
        assert sample is not None
        margin = max(LOSS * found.reference, margin_of(self.name, sample.size))
        bottom = found.reference - margin
        verdict = "PASS" if found.low >= bottom else "INCONCLUSIVE"
        lost = [] if found.high >= bottom else ["everybody"]
        lost += [name for name, group in self._tenths(case, fed).items() if _loses(group)]
        note = (
            f"worse than retrains by more than 3 % and beyond noise: {', '.join(lost)}"
            if lost
            else ""
        )
        ends = (found.value, found.reference, found.low, found.high)
        return Outcome("FAIL" if lost else verdict, *ends, margin, _counted(sample), note)

    def _tenths(self, case: Case, fed: Federation) -> dict[str, Difference]:
        def measures(model: Federation) -> dict[str, Measure]:
            groups = bystanders.tenths(case, model)
            many = len(case.bystanders)
            purpose = f"people {many}"
            counts = case.once(purpose, case.before, lambda: resample(many, case.clock, purpose))
            return {
                name: group.measure(counts)
                for name, group in groups.items()
                if int((group.weight > 0).sum()) >= TENTH
            }

        models = [fed, *case.beside(fed)]
        mine, *theirs = (case.once("tenths", m, lambda m=m: measures(m)) for m in models)  # type: ignore[misc]
        return compare_groups(mine, theirs)


def pictures(
    check: Check, case: Case, models: Mapping[str, Federation]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[float]]]:
    """ROC curves and some members' evidence by role, of a check that has a threshold."""
    curves: dict[str, dict[str, list[float]]] = {}
    samples: dict[str, list[float]] = {}
    if not isinstance(check.sample(case, models[SUBJECT]), Tail):
        return curves, samples
    for role, fed in models.items():
        sample = check.sample(case, fed)
        if isinstance(sample, Tail) and role != SHIFT:  # the shift's curve is the no-op's
            curves[role] = membership.roc(sample)
            inside = sample.evidence[sample.targets.member]
            every = max(1, len(inside) // DRAWN)
            samples[role] = [round(x, 5) for x in inside.sort().values[::every].tolist()]
    return curves, samples


def _loses(group: Difference) -> bool:
    """Whether the loss is beyond 3 % even at the upper end of an interval that holds for all."""
    return group.high < (1 - LOSS) * group.reference


def _whole(mine: Measure | None, theirs: Sequence[Measure | None]) -> tuple[Measure, list[Measure]]:
    assert mine is not None
    return mine, [t for t in theirs if t is not None]


def _counted(sample: Sample) -> int:
    return sample.people if isinstance(sample, PerPerson) else len(sample.targets)


STANDARD: tuple[Check, ...] = (
    Check(
        "Q1 population",
        membership.population,
        note="One threshold for all records: a smoke test; U-LiRA is the strong form.",
    ),
    Check("Q1 tail", membership.tail, note="TPR at 1 % FPR."),
    Check(
        "kept",
        state_attacks.kept,
        ranking=True,
        note="What whoever reads the server finds: rows of people over the graph it still has.",
    ),
    Check("kept rows", state_attacks.kept_rows, ranking=True, note="Rows of people alone."),
    Check("table", state_attacks.table, ranking=True, note="The public table alone."),
    Check("calibrated", state_attacks.calibrated, ranking=True, note="Table less retrains."),
    Check(
        "pairs",
        pairs.together,
        ranking=True,
        note="Rows of two items that only those who asked had together; the public table alone.",
    ),
    Check("people", people.known_people, ranking=True, note="Shadow-free, lists of 100."),
    Check(
        "Q4 lists",
        difference.by_lists,
        kind="harm",
        ranking=True,
        note="Before against after at the visibility of the product: lists of 20.",
    ),
    Check("Q8 exposed", bystanders.exposed, kind="harm", note="Records of people who stay."),
    Quality("Q8 quality", bystanders.quality, kind="harm", ranking=True, note="NDCG@20, tenths."),
    Check("Q4 scores", difference.by_scores, kind="shown", ranking=True, note="With scores."),
    Check("stale", state_attacks.stale, kind="shown", ranking=True, note="Old rows, new table."),
    Check("stale, carried", state_attacks.carried, kind="shown", ranking=True, note="Turned."),
    Check("Q6 tables", distance.tables, kind="shown", note="Relative distance of parameters."),
    Check("Q6 lists", distance.jaccard, kind="shown", ranking=True, note="Jaccard@20."),
    Check("Q6 scores", distance.divergence, kind="shown", ranking=True, note="KL to retrains."),
)
"""What every audit runs: seconds, no model beyond the retrains."""


FULL: tuple[Check, ...] = (
    *STANDARD,
    Check("people trained", people.trained, ranking=True, note="Network on a shadow's lists."),
)
"""With the attacks that train something."""


@dataclass(frozen=True)
class Judged:
    """One check on all subjects, by role."""

    check: Check
    outcomes: Mapping[str, Outcome]
    retrains: tuple[float, ...] = ()
    """The measure on every retrain."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, repr=False)
    """ROC curves by role, where the check draws one."""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    """Evidence of forgotten records by role, for a picture."""

    @property
    def powered(self) -> bool:
        """A forgetting check counts only where the no-op fails it."""
        return self.check.kind == "forgetting" and self.outcomes[NO_OP].verdict == "FAIL"

    def counts(self, role: str) -> str | None:
        """The verdict on a role, where it counts."""
        if self.check.kind == "shown" or (self.check.kind == "forgetting" and not self.powered):
            return None
        return self.outcomes[role].verdict if role in self.outcomes else None


@dataclass(frozen=True)
class Report:
    """Findings on one forgetting, with the verdicts on everything that was judged beside it."""

    verdict: str
    findings: tuple[Finding, ...]
    subjects: Mapping[str, str]
    """By role: the verdict on the subject, the controls and purge only."""
    why: str = ""
    judged: tuple[Judged, ...] = field(default=(), repr=False, compare=False)


def report_of(judged: Sequence[Judged]) -> Report:
    """The verdict over all checks.

    VOID: the no-op passes, or the shift fools a check that the no-op fails, or the retrain fails.
    A no-op that is neither caught nor passed is a lack of power: everything is POWERLESS and the
    report INCONCLUSIVE. A retrain that is INCONCLUSIVE takes PASS away from the subject.
    """
    roles = list(dict.fromkeys(r for j in judged for r in j.outcomes))
    subjects = {r: worst([v for j in judged if (v := j.counts(r))]) for r in roles}
    forgetting = [j for j in judged if j.check.kind == "forgetting"]
    no_op = worst([j.outcomes[NO_OP].verdict for j in forgetting])
    subjects[NO_OP] = no_op
    fooled = [j.check.name for j in forgetting if j.powered and j.outcomes[SHIFT].verdict != "FAIL"]
    shift = [j for j in forgetting if j.check.name in fooled] or forgetting
    subjects[SHIFT] = worst([j.outcomes[SHIFT].verdict for j in shift])
    void = _why_void(forgetting, no_op, fooled, subjects.get(RETRAIN, "INCONCLUSIVE"), judged)
    findings = tuple(_finding(j, bool(void)) for j in judged)
    verdict, why = ("VOID", void) if void else (overall(findings), "")
    if verdict == "PASS" and subjects.get(RETRAIN) != "PASS":
        verdict, why = "INCONCLUSIVE", "even a retrain cannot be told equal at this sample size"
    if not any(j.powered for j in forgetting) and verdict in ("PASS", "INCONCLUSIVE"):
        verdict, why = "INCONCLUSIVE", "so few records that even doing nothing is not noticed"
    told = "; ".join(f"{r}: {v}" for r, v in subjects.items() if r != SUBJECT)
    # Whoever sums up the findings alone must come to the report's verdict.
    standing = verdict if verdict in ("VOID", "INCONCLUSIVE") else "SHOWN"
    controls = Finding("Q0 controls", standing, note=f"{told}. {why}".strip())
    return Report(verdict, (controls, *findings), subjects, why, tuple(judged))


def _why_void(
    forgetting: Sequence[Judged],
    no_op: str,
    fooled: Sequence[str],
    retrain: str,
    judged: Sequence[Judged],
) -> str:
    if forgetting and no_op == "PASS":
        return "doing nothing passes every check, so the audit could not fail"
    if fooled:
        return f"shifting all scores fools {', '.join(fooled)}"
    if retrain == "FAIL":
        names = [j.check.name for j in judged if j.counts(RETRAIN) == "FAIL"]
        return f"a true retrain fails {', '.join(names)}"
    return ""


def _finding(judged: Judged, void: bool) -> Finding:
    check, mine = judged.check, judged.outcomes[SUBJECT]
    verdict = mine.verdict
    if check.kind == "forgetting" and not judged.powered:
        verdict = "POWERLESS"
    if void and verdict not in ("SHOWN", "POWERLESS"):
        verdict = "VOID"
    note = ". ".join(n.rstrip(".") for n in (check.note, mine.note) if n)
    controls = {r: o.value for r, o in judged.outcomes.items() if r != SUBJECT}
    return Finding(
        check.name,
        verdict,
        mine.value,
        (mine.low, mine.high),
        mine.reference,
        mine.margin,
        controls,
        mine.n,
        f"{note}." if note else "",
        judged.curves,
        judged.samples,
    )
