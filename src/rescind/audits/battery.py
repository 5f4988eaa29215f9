"""The checks, and the report made from their outcomes and controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rescind.audits import bystanders, membership, state_attacks
from rescind.audits import item_pairs as pairs
from rescind.audits import user_membership as people
from rescind.audits.case import Case, PerPerson, Tail
from rescind.audits.difference import by_lists, by_scores, divergence, jaccard, tables
from rescind.audits.finding import UNCHANGED, Finding, overall
from rescind.audits.hold_out import HoldOut
from rescind.audits.verdict import (
    CERTAIN,
    SPREAD,
    SUSPECT,
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

SUBJECT, NO_OP, SHIFT, RETRAIN, PURGE = "subject", UNCHANGED, "score shift", "retrain", "purge only"
LOSS = 0.03  # allowed loss of quality relative to a retrain (reliability.md Q8)
TENTH = 50  # smallest group for which a bootstrap is reliable
WIDEST = 3.0  # times the largest calibrated margin, where retrains of this data differ so much
DRAWN = 400  # member scores shown in a figure


@dataclass(frozen=True)
class Outcome:
    """The result of one check on one model."""

    verdict: str
    value: float
    reference: float
    low: float
    high: float
    margin: float | None
    n: int
    note: str = ""
    clear: bool = True
    """Of a FAIL: also outside the margin that a PASS is given."""


@dataclass(frozen=True)
class Check:
    """One measure on a model, compared with the same measure on retrained models."""

    name: str
    take: Take
    kind: Kind = "forgetting"
    note: str = ""
    ranking: bool = False
    """Needs ranked items, so it does not apply to labelled nodes."""
    planted: bool = False
    """Asks about records that the auditor planted, so it says nothing about the request itself."""

    def applies(self, case: Case) -> bool:
        return case.ranks or not self.ranking

    def sample(self, case: Case, fed: Federation) -> Sample | None:
        return case.cached(f"sample {self.name}", fed, lambda: self.take(case, fed))

    def measure(self, case: Case, fed: Federation) -> Measure | None:
        """Return the measure and its bootstrap draws; every model gets the same draws of users."""
        sample = self.sample(case, fed)
        if sample is None or not sample.size:
            return None
        purpose = f"people {sample.people}"
        counts = case.cached(
            purpose, case.before, lambda: resample(sample.people, case.clock, purpose)
        )
        return case.cached(f"measure {self.name}", fed, lambda: sample.measure(counts))

    def judge(self, case: Case, fed: Federation) -> Outcome | None:
        if not self.applies(case):
            return None
        subject = self.measure(case, fed)
        others = [self.measure(case, r) for r in case.other_refs(fed)]
        retrains = [m for m in others if m is not None]
        if subject is None or len(retrains) < len(others):
            return None
        sample = self.sample(case, fed)
        assert sample is not None
        n = _sample_size(sample)
        if self.kind == "shown":
            result = compare(subject, retrains)
            return Outcome("SHOWN", *_numbers(result), None, n)
        calibrated, judge = margin_of(self.name), equal if self.kind == "forgetting" else not_above
        result = compare(subject, retrains, calibrated.chance(sample.size))
        # A wide margin of a forgetting check still has to fail the no-op. Harm has no control, so
        # that a wide margin may spare a retrain, and never a model that fails by the narrow one.
        narrow = calibrated.at(
            sample.size, result.usual, WIDEST if self.kind == "forgetting" else 1.0
        )
        margin = calibrated.at(sample.size, SPREAD * result.usual, WIDEST)
        verdict, clear = judge(result, margin), judge(result, margin) == "FAIL"
        if judge(result, narrow) == "FAIL":
            verdict = "FAIL"
        return Outcome(verdict, *_numbers(result), margin, n, clear=clear)


@dataclass(frozen=True)
class Quality(Check):
    """NDCG of the other users: at most 3 % loss overall, no significant loss in any tenth.

    A tenth that loses beyond all doubt FAILs. One that seems to lose forbids a PASS: each audit
    looks at twenty, so that true retrains would fail by luck at the certainty of a single check.
    """

    def judge(self, case: Case, fed: Federation) -> Outcome | None:
        """Judge the mean over all users by its interval; fail on a significant loss in a tenth."""
        if not self.applies(case):
            return None
        subject, sample = self.measure(case, fed), self.sample(case, fed)
        retrains = [m for r in case.other_refs(fed) if (m := self.measure(case, r)) is not None]
        assert subject is not None
        assert sample is not None
        calibrated = margin_of(self.name)
        result = compare(subject, retrains, calibrated.chance(sample.size))
        margin = max(LOSS * result.reference, calibrated.at(sample.size, SPREAD * result.usual))
        bottom = result.reference - margin
        lost = [] if result.high >= bottom else ["all users"]
        lost += self._losers(case, fed, CERTAIN)
        doubtful = [] if lost else self._losers(case, fed, SUSPECT)
        verdict = "PASS" if result.low >= bottom and not doubtful else "INCONCLUSIVE"
        note = ""
        if lost:
            note = f"worse than retrains by more than 3 % and beyond noise: {', '.join(lost)}"
        elif doubtful:
            note = f"seems worse than retrains, not beyond noise: {', '.join(doubtful)}"
        ends = _numbers(result)
        return Outcome("FAIL" if lost else verdict, *ends, margin, _sample_size(sample), note)

    def _losers(self, case: Case, fed: Federation, certainty: float) -> list[str]:
        """Return the tenths that lose more than 3 %, even at the upper end of their interval."""
        groups = self._tenths(case, fed, certainty)
        return [n for n, group in groups.items() if group.high < (1 - LOSS) * group.reference]

    def _tenths(self, case: Case, fed: Federation, certainty: float) -> dict[str, Difference]:
        def measures(model: Federation) -> dict[str, Measure]:
            groups = bystanders.tenths(case, model)
            n = len(case.bystanders)
            purpose = f"people {n}"
            counts = case.cached(purpose, case.before, lambda: resample(n, case.clock, purpose))
            return {
                name: group.measure(counts)
                for name, group in groups.items()
                if int((group.weight > 0).sum()) >= TENTH
            }

        models = [fed, *case.other_refs(fed)]
        subject, *retrains = (case.cached("tenths", m, lambda m=m: measures(m)) for m in models)  # type: ignore[misc]
        calibrated, groups = margin_of(self.name), bystanders.tenths(case, fed)
        chance = {name: calibrated.chance(groups[name].size) for name in subject}
        return compare_groups(subject, retrains, chance, certainty)


def pictures(
    check: Check, case: Case, models: Mapping[str, Federation]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[float]]]:
    """Return ROC curves and sampled member scores by role, for checks with a threshold."""
    curves: dict[str, dict[str, list[float]]] = {}
    samples: dict[str, list[float]] = {}
    if not isinstance(check.sample(case, models[SUBJECT]), Tail):
        return curves, samples
    for role, fed in models.items():
        sample = check.sample(case, fed)
        if isinstance(sample, Tail) and role != SHIFT:  # its curve is that of the no-op
            curves[role] = membership.roc(sample)
            inside = sample.evidence[sample.targets.member]
            every = max(1, len(inside) // DRAWN)
            samples[role] = [round(x, 5) for x in inside.sort().values[::every].tolist()]
    return curves, samples


def _numbers(found: Difference) -> tuple[float, float, float, float]:
    return found.value, found.reference, found.low, found.high


def _sample_size(sample: Sample) -> int:
    """Return how many were judged: users who count, or records."""
    return sample.counted if isinstance(sample, PerPerson) else len(sample.targets)


STANDARD: tuple[Check, ...] = (
    Check(
        "Q1 population",
        membership.population,
        note="One limit for all records, a simple attack; a full audit has a stronger one (Q3).",
    ),
    Check("Q1 tail", membership.tail, note="Share of records found, at 1 % false alarms."),
    Check(
        "kept",
        state_attacks.kept,
        ranking=True,
        note="Readable on the server: rows of users, spread over the graph it still has.",
    ),
    Check("kept rows", state_attacks.kept_rows, ranking=True, note="Rows of users alone."),
    Check("table", state_attacks.table, ranking=True, note="The public table alone."),
    Check("calibrated", state_attacks.calibrated, ranking=True, note="Table minus retrains."),
    Check(
        "pairs",
        pairs.together,
        ranking=True,
        note="Pairs of items that only requesting users had together; the public table alone.",
    ),
    Check("people", people.known_people, ranking=True, note="From lists of 100 items."),
    Check(
        "Q4 lists",
        by_lists,
        kind="harm",
        ranking=True,
        note="Before against after, as users see it: lists of 20.",
    ),
    Check("Q8 exposed", bystanders.exposed, kind="harm", note="Records of the other users."),
    Quality("Q8 quality", bystanders.quality, kind="harm", ranking=True, note="NDCG@20, tenths."),
    Check("Q4 scores", by_scores, kind="shown", ranking=True, note="With scores."),
    Check("stale", state_attacks.stale, kind="shown", ranking=True, note="Old values, new table."),
    Check("stale, carried", state_attacks.carried, kind="shown", ranking=True, note="Fitted."),
    Check("Q6 tables", tables, kind="shown", note="Relative distance of parameters."),
    Check("Q6 lists", jaccard, kind="shown", ranking=True, note="Lists of 20 (Jaccard)."),
    Check("Q6 scores", divergence, kind="shown", ranking=True, note="Distance (KL)."),
)
"""The checks of every audit. They take seconds and train nothing beyond the retrains."""


def drawn(attack: HoldOut) -> Check:
    return Check("hold-out", attack.attack, ranking=True, note=attack.opened())


FULL: tuple[Check, ...] = (
    *STANDARD,
    Check("people trained", people.trained, ranking=True, note="Network trained on shadow lists."),
)
"""The standard checks and the attacks that train a model."""


@dataclass(frozen=True)
class Judged:
    """The outcomes of one check on all models, by role."""

    check: Check
    outcomes: Mapping[str, Outcome]
    retrains: tuple[float, ...] = ()
    """The measure on each retrain."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, repr=False)
    """ROC curves by role, if the check has one."""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    """Scores of forgotten records by role, for a figure."""

    @property
    def powered(self) -> bool:
        return self.check.kind == "forgetting" and self.outcomes[NO_OP].verdict == "FAIL"

    @property
    def clear(self) -> bool:
        """Return whether a PASS means something: the no-op is outside the margin of a PASS."""
        return self.powered and self.outcomes[NO_OP].clear

    def counts(self, role: str) -> str | None:
        """Return the verdict on a role, or None if the check does not count.

        A check that sees the no-op, but not clearly, can only FAIL.
        """
        if self.check.kind == "shown" or role not in self.outcomes:
            return None
        verdict = self.outcomes[role].verdict
        if self.check.kind == "forgetting" and not (
            self.clear or (self.powered and verdict == "FAIL")
        ):
            return None
        return verdict


@dataclass(frozen=True)
class Report:
    """The findings on one request, with the verdicts on the subject and all controls."""

    verdict: str
    findings: tuple[Finding, ...]
    subjects: Mapping[str, str]
    """By role: verdict on the subject, the controls and purge only."""
    why: str = ""
    judged: tuple[Judged, ...] = field(default=(), repr=False, compare=False)


def report_of(judged: Sequence[Judged]) -> Report:
    """Combine all checks into a report.

    VOID: the no-op passes, or the score shift does not fail a check that the no-op fails, or the
    retrain fails. A subject can PASS only if the audit had power: the no-op and purge only fail,
    and the retrain passes; else the report is INCONCLUSIVE.
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
    if verdict in ("PASS", "INCONCLUSIVE") and (missing := _missing_power(judged)):
        verdict, why = "INCONCLUSIVE", missing
    by_role = "; ".join(told_by_role(subjects, judged))
    # `overall` of the findings alone must give the verdict of the report.
    standing = verdict if verdict in ("VOID", "INCONCLUSIVE") else "SHOWN"
    controls = Finding("Q0 controls", standing, note=f"{by_role}. {why}".strip())
    return Report(verdict, (controls, *findings), subjects, why, tuple(judged))


def told_by_role(subjects: Mapping[str, str], judged: Sequence[Judged]) -> list[str]:
    """Return the verdict on each control, and which checks a retrain did not pass."""

    def which(role: str, verdict: str) -> str:
        if role != RETRAIN or verdict == "PASS":
            return ""
        names = [one.check.name for one in judged if one.counts(role) == verdict]
        return f" ({', '.join(names)})" if names else ""

    others = ((role, verdict) for role, verdict in subjects.items() if role != SUBJECT)
    return [f"{role}: {verdict}{which(role, verdict)}" for role, verdict in others]


def _missing_power(judged: Sequence[Judged]) -> str:
    """Return why a PASS would mean nothing; '' if the audit had the power that is needed."""
    forgetting = [j for j in judged if j.check.kind == "forgetting"]
    if not any(j.clear for j in forgetting if not j.check.planted):
        return "with so few records, no check is sure to notice that nothing was done"
    # Harm to others is no question of power: a retrain that is unclear there can still be told.
    retrain = worst([v for j in forgetting if (v := j.counts(RETRAIN))])
    if retrain != "PASS":
        return "the sample is too small even for a retrain to pass"
    caught = [j for j in forgetting if j.powered and PURGE in j.outcomes]
    if not any(j.outcomes[PURGE].verdict == "FAIL" for j in caught):
        return "deleting the data and keeping the model is not noticed"
    return ""


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
    check, subject = judged.check, judged.outcomes[SUBJECT]
    verdict = subject.verdict
    if check.kind == "forgetting" and judged.counts(SUBJECT) is None:
        verdict = "POWERLESS"
    if void and verdict not in ("SHOWN", "POWERLESS"):
        verdict = "VOID"
    note = ". ".join(n.rstrip(".") for n in (check.note, subject.note) if n)
    controls = {r: o.value for r, o in judged.outcomes.items() if r != SUBJECT}
    return Finding(
        check.name,
        verdict,
        subject.value,
        (subject.low, subject.high),
        subject.reference,
        subject.margin,
        controls,
        subject.n,
        f"{note}." if note else "",
        judged.curves,
        judged.samples,
    )
