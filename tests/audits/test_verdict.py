"""Verdicts: inside, outside or unsure; and a report that voids itself when a control misbehaves."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rescind.audits
from rescind.audits.battery import (
    FULL,
    NO_OP,
    PURGE,
    RETRAIN,
    SHIFT,
    SUBJECT,
    Check,
    Judged,
    Outcome,
    report_of,
    told_by_role,
)
from rescind.audits.finding import overall
from rescind.audits.verdict import (
    CERTAIN,
    FACTOR,
    FEWEST,
    SUSPECT,
    Difference,
    Margin,
    Measure,
    compare,
    compare_groups,
    equal,
    margins,
    not_above,
    worst,
)
from rescind.errors import ConfigError


def beside(low: float, high: float) -> Difference:
    return Difference((low + high) / 2, 0.5, low, high)


@pytest.mark.parametrize(
    ("low", "high", "two_sided", "harm"),
    [
        (0.49, 0.51, "PASS", "PASS"),
        (0.48, 0.52, "PASS", "PASS"),  # the margin itself is allowed
        (0.47, 0.51, "INCONCLUSIVE", "PASS"),
        (0.49, 0.53, "INCONCLUSIVE", "INCONCLUSIVE"),
        (0.40, 0.60, "INCONCLUSIVE", "INCONCLUSIVE"),
        (0.53, 0.55, "FAIL", "FAIL"),
        (0.45, 0.47, "FAIL", "PASS"),  # over-forgetting is a trace, too, but harms no bystander
    ],
)
def test_a_verdict_is_where_the_interval_lies(low, high, two_sided, harm):
    assert equal(beside(low, high), 0.02) == two_sided
    assert not_above(beside(low, high), 0.02) == harm


def test_the_worst_verdict_decides_and_none_is_not_a_pass():
    assert worst(["PASS", "FAIL", "INCONCLUSIVE"]) == "FAIL"
    assert worst(["PASS", "INCONCLUSIVE"]) == "INCONCLUSIVE"
    assert worst([]) == "INCONCLUSIVE"


def test_a_verdict_on_too_few_retrains_is_refused():
    one = Measure(0.5, torch.zeros(10).double())
    with pytest.raises(ConfigError, match="needs 5 retrains or more; got 3"):
        compare(one, [one] * (FEWEST - 2))


def test_what_is_common_to_all_models_does_not_widen_the_interval():
    common = torch.linspace(-1, 1, 50).double()  # every model moves with the people drawn
    others = [Measure(0.5, 0.5 + common)] * 5
    found = compare(Measure(0.6, 0.6 + common), others)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)
    assert (found.value, found.reference) == pytest.approx((0.6, 0.5))


def test_seeds_that_differ_beyond_people_widen_the_interval():
    still = torch.zeros(50).double()
    points = [0.48, 0.49, 0.50, 0.51, 0.52]
    found = compare(Measure(0.5, still), [Measure(p, still) for p in points])
    # s = sqrt(.00025) = .015811; Student's quantile at 4 degrees 2.7764; sqrt(1 + 1/5) = 1.0954
    assert found.high - found.value == pytest.approx(2.7764 * 0.015811 * 1.0954, rel=1e-3)


def test_models_that_happen_to_agree_give_no_narrower_interval_than_the_sample_allows():
    """One person: the bootstrap draws the same person again, and five retrains score alike."""
    still = torch.full((60,), 0.5, dtype=torch.float64)
    same = [Measure(0.5, still)] * FEWEST
    assert compare(same[0], same).high == 0.5
    one_person = Margin(noise=0.264, least=0.01, most=0.05)
    found = compare(same[0], same, one_person.chance(22 * 2 / 24))
    assert equal(found, one_person.at(22 * 2 / 24)) == "INCONCLUSIVE"
    assert equal(compare(same[0], same, one_person.chance(2000)), one_person.at(2000)) == "PASS"


def test_a_margin_shrinks_with_the_root_of_the_sample_between_its_bounds():
    margin = Margin(noise=0.3, least=0.01, most=0.05)
    assert margin.at(2500) == pytest.approx(FACTOR * 0.3 / 50)
    assert (margin.at(1e9), margin.at(4)) == (0.01, 0.05)


def test_every_judged_check_has_a_margin_that_was_calibrated_on_five_retrains_or_more():
    import tomllib

    from rescind.audits.verdict import MARGINS

    with open(MARGINS, "rb") as file:
        written = tomllib.load(file)
    judged = {check.name for check in FULL if check.kind != "shown"}
    assert judged <= set(margins())
    assert len(set(written["retrains"])) >= FEWEST
    for name in judged:
        table = written["check"][name]
        assert {"ml-100k", "ml-1m"} <= {m.split(" ")[0] for m in table["measured"]}
        seen = [
            max(row["seeds"], row["people"]) * row["n"] ** 0.5 for row in table["measured"].values()
        ]
        # The noise of a check is the largest that was seen: nobody widened a margin by hand.
        assert table["noise"] == pytest.approx(max(seen), rel=0.02)
        assert 0 <= table["least"] <= table["most"] <= 0.1


# -- reports --------------------------------------------------------------------------------------


def outcome(verdict: str) -> Outcome:
    return Outcome(verdict, 0.5, 0.5, 0.49, 0.51, 0.02, 100)


def judged(kind: str = "forgetting", name: str = "a", **verdicts: str) -> Judged:
    roles = {
        SUBJECT: verdicts.get("subject", "PASS"),
        NO_OP: verdicts.get("no_op", "FAIL"),
        SHIFT: verdicts.get("shift", "FAIL"),
        RETRAIN: verdicts.get("retrain", "PASS"),
        PURGE: verdicts.get("purge", "FAIL"),
    }
    if kind == "harm":
        roles = {r: v for r, v in roles.items() if r not in (NO_OP, SHIFT)}
    check = Check(name, lambda case, fed: None, kind=kind)
    return Judged(check, {role: outcome(v) for role, v in roles.items()})


def test_a_subject_like_the_retrains_passes():
    report = report_of([judged(), judged("harm", "b")])
    assert report.verdict == "PASS"
    assert report.subjects[NO_OP] == report.subjects[SHIFT] == "FAIL"
    assert report.findings[0].check == "Q0 controls"
    assert "no-op: FAIL" in report.findings[0].note


@pytest.mark.parametrize(
    ("flipped", "why"),
    [
        ({"no_op": "PASS", "shift": "PASS"}, "doing nothing passes"),
        ({"shift": "PASS"}, "shifting all scores fools a"),
        ({"shift": "INCONCLUSIVE"}, "shifting all scores fools a"),
        ({"retrain": "FAIL"}, "a true retrain fails a"),
    ],
)
@pytest.mark.parametrize("subject", ["PASS", "FAIL", "INCONCLUSIVE"])
def test_every_flip_of_a_control_makes_the_report_void(flipped, why, subject):
    report = report_of([judged(subject=subject, **flipped)])
    assert report.verdict == "VOID"
    assert why in report.why
    assert all(f.verdict in ("VOID", "POWERLESS") for f in report.findings)
    assert overall(report.findings) == "VOID"


@pytest.mark.parametrize("verdict", ["FAIL", "INCONCLUSIVE"])
def test_one_check_that_counts_decides(verdict):
    report = report_of([judged(name="a"), judged(name="b", subject=verdict)])
    assert report.verdict == verdict
    report = report_of([judged(name="a"), judged("harm", "b", subject=verdict)])
    assert report.verdict == verdict


def test_a_check_that_cannot_see_the_no_op_is_powerless_and_does_not_count():
    blind = judged(name="blind", no_op="INCONCLUSIVE", shift="INCONCLUSIVE", subject="FAIL")
    report = report_of([judged(), blind])
    assert report.verdict == "PASS"
    assert [f.verdict for f in report.findings[1:]] == ["PASS", "POWERLESS"]


def test_too_few_records_are_inconclusive_not_void_and_never_a_pass():
    unseen = {"no_op": "INCONCLUSIVE", "shift": "INCONCLUSIVE", "retrain": "INCONCLUSIVE"}
    report = report_of([judged(**unseen), judged("harm", "b")])
    assert report.verdict == "INCONCLUSIVE"
    assert "no check is sure to notice that nothing was done" in report.why
    assert overall(report.findings) == report.verdict


def test_a_retrain_that_cannot_be_told_equal_takes_the_pass_away():
    report = report_of([judged(retrain="INCONCLUSIVE")])
    assert report.verdict == "INCONCLUSIVE"
    assert "even for a retrain" in report.why
    assert overall(report.findings) == report.verdict


def test_a_retrain_that_is_unclear_about_harm_alone_leaves_the_pass_and_is_named():
    """As `docs/audits.md` says: harm to others is no question of power."""
    report = report_of([judged(), judged("harm", "Q8 b", retrain="INCONCLUSIVE")])
    assert report.verdict == "PASS"
    assert "retrain: INCONCLUSIVE (Q8 b)" in report.findings[0].note
    told = told_by_role(report.subjects, report.judged)
    assert told == ["no-op: FAIL", "score shift: FAIL", "retrain: INCONCLUSIVE (Q8 b)",
                    "purge only: FAIL"]  # fmt: skip
    clear = report_of([judged(), judged("harm", "Q8 b")])
    assert "retrain: PASS;" in clear.findings[0].note, "control: no check to name"


@pytest.mark.parametrize("verdict", ["PASS", "INCONCLUSIVE"])
def test_an_audit_that_does_not_notice_plain_deletion_lets_nobody_pass(verdict):
    assert report_of([judged(purge="FAIL")]).verdict == "PASS"
    report = report_of([judged(purge=verdict)])
    assert report.verdict == "INCONCLUSIVE"
    assert "keeping the model is not noticed" in report.why
    assert overall(report.findings) == report.verdict
    # One check that notices it is enough, and a check without power is none.
    seeing = judged(name="b", purge="FAIL")
    assert report_of([judged(purge=verdict), seeing]).verdict == "PASS"
    blind = judged(name="b", purge="FAIL", no_op="INCONCLUSIVE", shift="INCONCLUSIVE")
    assert report_of([judged(purge=verdict), blind]).verdict == "INCONCLUSIVE"


def test_planted_records_alone_say_nothing_about_a_request():
    planted = judged(name="planted")
    planted = replace(planted, check=replace(planted.check, planted=True))
    unseen = judged(no_op="INCONCLUSIVE", shift="INCONCLUSIVE")
    report = report_of([unseen, planted])
    assert report.verdict == "INCONCLUSIVE"
    assert "no check is sure to notice that nothing was done" in report.why
    failed = judged(name="planted", subject="FAIL")
    failed = replace(failed, check=planted.check)
    assert report_of([judged(), failed]).verdict == "FAIL"


def test_what_is_shown_is_never_judged():
    shown = judged(name="far", subject="SHOWN")
    shown = replace(shown, check=replace(shown.check, kind="shown"))
    assert report_of([judged(), shown]).verdict == "PASS"


# -- independence ---------------------------------------------------------------------------------


def test_the_auditor_imports_nothing_of_the_unlearner():
    folder = Path(rescind.audits.__file__).parent
    sources = [*folder.glob("*.py"), folder.parent / "forgetting" / "examine.py"]
    assert len(sources) > 10
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            assert not [n for n in names if n.startswith("rescind.methods")], path


def group_of(value: float, draws: torch.Tensor) -> Measure:
    return Measure(value, value + draws)


def losses(lost: float, certainty: float = CERTAIN, trials: int = 300) -> float:
    """How often some tenth of a retrain seems to lose 3 %, when one of them really loses `lost`.

    Seeds move a tenth by 8 % of its value, and people by 1 %; the tenths lie between .01 and .3.
    """
    generator = torch.Generator().manual_seed(5)
    level = torch.linspace(0.01, 0.3, 10, dtype=torch.float64)
    seen = 0
    for _ in range(trials):
        models = []
        for model in range(5):
            moved = 0.08 * torch.randn(10, generator=generator, dtype=torch.float64)
            value = level * (1 + moved)
            if model == 0:
                value[4] -= lost * level[4]
            draws = 0.01 * level[:, None] * torch.randn(10, 60, generator=generator).double()
            models.append({f"tenth {g}": group_of(float(value[g]), draws[g]) for g in range(10)})
        found = compare_groups(models[0], models[1:], certainty=certainty)
        seen += any(f.high < 0.97 * f.reference for f in found.values())
    return seen / trials


def test_a_retrain_loses_no_tenth_by_luck_and_a_real_loss_is_seen():
    assert losses(0.0) <= 0.01
    assert losses(0.6) >= 0.9
    assert losses(0.0, SUSPECT) <= 0.03
    assert losses(0.4, SUSPECT) > 1.8 * losses(0.4)  # a smaller loss forbids at least a PASS


def test_kinds_of_groups_are_told_apart_by_the_first_word():
    """What varies little by activity says nothing about what varies much by popularity."""
    still = torch.zeros(60, dtype=torch.float64)
    models = [{"activity 1": group_of(0.2, still), "popularity 1": group_of(0.2 + d, still)}
              for d in (-0.05, 0.02, -0.02, 0.03, -0.03)]  # fmt: skip
    found = compare_groups(models[0], models[1:])
    assert found["activity 1"].high == pytest.approx(0.2)
    wide = compare_groups(models[0], models[1:], {"activity 1": 0.1})
    assert wide["activity 1"].high > 0.2 + 1.96 * 0.1
    assert found["popularity 1"].high > 0.2
