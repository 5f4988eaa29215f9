"""The three sentences of a receipt, for every verdict and level, for requester and stranger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rescind.audits.finding import VERDICTS, Finding
from rescind.core.claims import ITEMS, NEXT, RELEASE
from rescind.receipts.page import page
from rescind.receipts.pictures import CHECKED, INFLUENCE, lines, steps
from rescind.receipts.receipt import LEVELS, Asked, Done, Receipt, issue
from rescind.receipts.words import (
    ROWS,
    TERMS,
    badges,
    level_says,
    sentences,
    tone,
    verdict_says,
    would_have_noticed,
)

DAY = datetime(2026, 11, 15, 21, 4, 7, tzinfo=UTC)
NOTICES = Finding(
    "Q1 population", "PASS", 0.503, (0.489, 0.517), 0.501, 0.02, {"no-op": 0.64}, n=3300
)
"""The model that forgot nothing is 0.14 from the others, and the margin is 0.02."""
BLIND = replace(NOTICES, check="Q8 exposed", controls={"no-op": 0.515})
"""The same measure would pass if nothing had been forgotten."""
FAILED = replace(NOTICES, check="pairs", verdict="FAIL", value=0.6, interval=(0.58, 0.62))
UNDECIDED = Finding("Q0 controls", "INCONCLUSIVE", note="too few")
VOID = Finding("Q0 controls", "VOID")
NONE = Finding("audit", "UNAUDITED", note="No audit was requested.")


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))


def receipts(
    *findings: Finding,
    level: str = "L3",
    by: str = "Retrain",
    kind: str = "Erase",
    records: int = 3930,
    people: int = 85,
    claims: dict[str, str] | None = None,
    method: dict[str, str] | None = None,
    items: int | None = None,
) -> tuple[Receipt, Receipt]:
    """Return a receipt as the requester and as a stranger sees it."""
    named = {"name": "FedShare", **(method or {})}
    done = Done(named, by, level, "", "", "", "sha256:04", 150, 38400, {}, 6.2)
    asked = Asked(kind, records, people, "blake2b:00")
    counted = {} if items is None else {ITEMS: str(items)}
    issued = issue(asked, done, (), findings, claims=claims, bound_claims=counted, at=DAY)
    return issued.exact, issued.receipt


def told(*findings: Finding, **given: object) -> str:
    """Return the sentences for the requester."""
    return " ".join(sentences(receipts(*findings, **given)[0]))  # type: ignore[arg-type]


def test_the_example_of_a_pass():
    seven = [replace(NOTICES, check=f"check {n}") for n in range(7)]
    exact, stranger = receipts(*seven, BLIND)
    assert sentences(exact) == (
        "85 people asked to erase 3,930 records.",
        "The operator states: on 15 November 2026 the model was trained again without them.",
        "7 checks that would have noticed a model that forgot nothing could not tell it from "
        "models that never had what was taken back, at this sample size (1 more passed, for which "
        "that is not known).",
    )
    # A stranger sees neither the counts nor the controls, so less is claimed.
    assert sentences(stranger) == (
        "10 to 99 people asked to erase 1,000 to 9,999 records.",
        "The operator states: on 15 November 2026 the model was trained again without them.",
        "8 checks could not tell it from models that never had what was taken back.",
    )
    assert tone(exact) == tone(stranger) == "good"


@pytest.mark.parametrize(
    ("changed", "noticed"),
    [
        ({}, True),
        ({"controls": {"no-op": 0.52}}, False),
        ({"controls": {"no-op": 0.3}}, True),
        ({"controls": {}}, False),
        ({"margin": None}, False),
        ({"reference": None}, False),
    ],
)
def test_a_check_would_have_noticed_only_if_its_control_lies_outside_the_margin(changed, noticed):
    assert would_have_noticed(replace(NOTICES, **changed)) is noticed


def test_a_pass_without_a_check_that_would_have_noticed_does_not_say_so():
    assert "would have noticed" not in told(BLIND)
    assert "1 check could not tell it" in told(BLIND)
    assert "1 check that would have noticed" in told(BLIND, NOTICES)
    assert "more passed" not in told(NOTICES), "control: all of them would have noticed"


def test_a_fail_says_how_many_checks_and_what_is_not_shown():
    said = told(NOTICES, FAILED, NONE, level="L1")
    assert "1 of 2 checks could tell it from models" in said
    assert "it is not shown that the influence is gone" in said
    exact = receipts(NOTICES, FAILED, level="L1")[0]
    assert tone(exact) == "bad"
    assert [badge.word for badge in badges(exact)] == ["FAIL", "L1: not shown"]


def test_a_fail_of_an_exact_answer_is_called_a_contradiction():
    assert "contradicts the level that is stated" in told(FAILED, level="L3")
    assert tone(receipts(FAILED, level="L3")[0]) == "bad"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("finding", "says"),
    [(UNDECIDED, "could not decide"), (VOID, "is void"), (NONE, "No check was run")],
)
def test_without_a_verdict_only_the_level_speaks(finding, says, level):
    said = told(finding, level=level)
    assert says in said
    assert "could not tell it" not in said
    assert ("not from a measurement" in said) is (level == "L3")
    assert ("It is not shown" in said) is (level == "L1")
    assert ("cannot be repeated may be left" in said) is (level == "L2")
    assert ("nothing more is claimed" in said) is (level == "L0")
    assert tone(receipts(finding, level=level)[0]) != "good", "nothing was measured"


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_level_without_a_measurement_is_the_operators_word(level):
    exact = receipts(NONE, level=level)[0]
    assert [badge.tone for badge in badges(exact)][1] == "open"
    assert badges(exact)[1].word.endswith("as stated")
    assert "The operator states" in sentences(exact)[1]
    assert f"The operator states the level {level}" in page(exact)
    assert "sign good" not in steps(exact).partition("Influence")[0].rpartition("<li>")[2]
    passed = receipts(NOTICES, level=level)[0]
    assert [badge.tone for badge in badges(passed)] == ["good", "good"], "control: measured"


def test_records_are_deleted_from_the_run_and_copies_stand_below():
    assert "Records deleted from this run" in steps(receipts(NONE)[0])
    assert "Copies elsewhere stand below" in steps(receipts(NONE)[0])
    served = receipts(NONE, claims={RELEASE: "12"})[0]
    assert "Records deleted from this service" in steps(served)


def test_a_page_without_a_measurement_does_not_point_at_one():
    says = "that is what the measurements and their controls are for"
    assert says not in page(receipts(NONE)[0])
    assert "It does not make the statement true.<" in page(receipts(NONE)[0])
    assert says in page(receipts(NOTICES)[0]), "control"


@pytest.mark.parametrize(("count", "says"), [(1, "1 client round in"), (2, "2 client rounds in")])
def test_one_client_round_is_one(count, says):
    exact = receipts(NONE)[0]
    assert says in page(replace(exact, done=replace(exact.done, client_rounds=count)))


def test_words_that_a_page_uses_are_explained_there():
    shown = page(receipts(NOTICES)[0])
    assert TERMS["no-op"] in shown
    assert TERMS["item table"] not in shown, "only those that are used"
    assert TERMS["no-op"] not in page(receipts(NONE)[0])


def test_a_pass_below_l2_keeps_its_reservation():
    assert "It is not shown that the influence is gone" in told(NOTICES, level="L1")
    assert tone(receipts(NOTICES, level="L1")[0]) == "open"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Erase", "One person asked to erase 1 record."),
        ("Unshare", "One person stopped lending 1 record."),
        ("Withdraw", "One person left and asked to delete everything: 1 record."),
        ("EraseLabels", "One person asked to erase 1 label of their graph."),
        ("EraseEdges", "One person asked to erase 1 edge of their graph."),
        ("Another", "One person asked for Another of 1 record."),
    ],
)
def test_each_kind_of_request(kind, says):
    assert sentences(receipts(NONE, kind=kind, records=1, people=1)[0])[0] == says


def test_a_band_hides_that_it_was_one_person():
    one, nine = (receipts(NONE, records=n, people=n)[1] for n in (1, 9))
    assert sentences(one) == sentences(nine)
    assert sentences(one)[0] == "Up to 9 people asked to erase up to 9 records."


@pytest.mark.parametrize(
    ("by", "level", "says"),
    [
        ("Retrain", "L3", "the model was trained again without them."),
        ("Retrain", "L2", "all rounds that can be repeated were run again without them."),
        ("Subtract", "L3", "these records were subtracted from the sum"),
        ("Subtract, and retrain the softmax learner", "L3", "the rest of the model was trained"),
        ("FedShareUnlearn (damping = measured)", "L2", "FedShareUnlearn changed the model"),
    ],
)
def test_what_was_done_is_named(by, level, says):
    assert says in sentences(receipts(NOTICES, by=by, level=level)[0])[1]


def test_a_release_of_a_service_is_named():
    numbered = receipts(NONE, by="Subtract", claims={RELEASE: "1215"})[0]
    assert "release 1,215 was made without them: these records were subtracted" in str(
        sentences(numbered)
    )
    at_once = receipts(NONE, by="Subtract", claims={RELEASE: "at once: the instant form"})[0]
    assert "release" not in sentences(at_once)[1]


def test_a_person_who_erases_a_few_records_did_not_lose_their_whole_part():
    few = told(NONE, by="Subtract", records=2, people=1)
    assert "asked to erase 2 records" in few
    assert "these records were subtracted" in few
    assert "their part" not in few
    assert "this record was subtracted" in told(NONE, by="Subtract", records=1, people=1)
    stranger = receipts(NONE, by="Subtract", records=1, people=1)[1]
    assert "these records were subtracted" in sentences(stranger)[1], "a band may be more"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["Unshare", "Erase", "EraseLabels", "EraseEdges", "Withdraw"])
def test_that_data_was_deleted_is_what_the_operator_states_of_this_place_alone(kind, level):
    shown = page(receipts(NONE, kind=kind, level=level)[0])
    (about,) = [part for part in shown.split("<p>") if part.startswith("Asked by")]
    assert "The operator states" in about
    assert ("stand under “What this does not cover”" in about) == (level != "L0")
    assert ("deleted from this run" in about) == (level != "L0" and kind != "Unshare")
    assert ("not deleted yet" in about) == (level == "L0"), "what is hidden is still there"


def test_an_exact_sum_is_the_operators_own_work_and_no_check():
    added = Finding("exactness", "SHOWN", note="The platform added up the remaining data.")
    shown = page(receipts(NONE, added)[0])
    own = "exactness (the operator&#x27;s own work, not a measurement): The platform added up"
    assert own in shown
    assert "audit (the operator" not in shown, "control: another note"


def test_a_page_that_must_not_be_sent_says_so_before_anything_else():
    several, one = (page(receipts(NONE, people=n)[0]).split("</style>")[1] for n in (2, 1))
    warned = several.index("Do not send this page")
    assert '<div class="summary bad"' in several[:warned]
    assert several[:warned].count("<p") == 1, "nothing to read comes before it"
    assert one.index("is for the requester") > one.index("deleted from"), "control: a note, below"


def test_a_page_about_several_people_says_that_it_is_for_none_of_them():
    for_several, for_strangers = map(page, receipts(NONE, people=2))
    for_one = page(receipts(NONE, people=1)[0])
    assert "Do not send this page: it has the exact numbers of 2 people together." in for_several
    assert "receipt.json" in for_several
    assert "is for the requester" not in for_several
    assert "is for the requester" in for_one
    assert "Do not send" not in for_one + for_strangers


def test_an_older_publication_is_not_passed_over():
    waits = {NEXT: "due when 12 more people have changed something"}
    assert "still comes from them" in told(NONE, level="L1", claims=waits)
    assert "still comes from them" not in told(NONE, claims={NEXT: "made"})


def test_every_verdict_and_level_has_a_step_and_a_page():
    assert set(CHECKED) == set(VERDICTS) - {"SHOWN", "POWERLESS"}
    assert set(INFLUENCE) == set(LEVELS)
    for finding in (NOTICES, FAILED, UNDECIDED, VOID, NONE):
        for level in LEVELS:
            exact = receipts(finding, level=level)[0]
            assert " ".join(sentences(exact)) in page(exact)
            assert CHECKED[finding.verdict] in steps(exact)
            assert INFLUENCE[level][1] in steps(exact)


def test_steps_show_what_an_unshare_leaves_on_the_device():
    assert "the device keeps its own" in steps(receipts(NONE, kind="Unshare")[0])
    assert "the device keeps its own" not in steps(receipts(NONE)[0])


def test_a_line_is_drawn_only_for_checks_with_numbers_that_would_have_noticed():
    assert lines([BLIND, NONE]) == ""
    assert lines(receipts(NOTICES)[1].findings) == "", "a stranger has no numbers"
    drawn = lines([NOTICES, FAILED, BLIND])
    assert drawn.count("<li>") == 2
    assert 'class="mark-good" cx="22.9%"' in drawn, "0.002 of 0.139 from the retrained models"
    assert 'class="mark-bad" cx="69.0%"' in drawn, "0.099 of 0.139"


def test_a_line_never_leaves_its_box_and_looks_the_same_from_either_side():
    far = replace(FAILED, value=9.0, interval=(8.0, 10.0))
    assert 'cx="98.0%"' in lines([far])
    below = replace(FAILED, value=0.402, interval=(0.38, 0.42), controls={"no-op": 0.362})
    assert 'cx="69.0%"' in lines([below]), "the model that forgot nothing always lies to the right"


ERASED = ("never had the records", "never saw", "subtracted", "without the records", "without them")
"""What is true of erased records, and false of records that devices keep and learn from."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("by", ["Retrain", "Subtract", "FedShareUnlearn (damping = measured)"])
@pytest.mark.parametrize("finding", [NOTICES, FAILED, UNDECIDED, VOID, NONE], ids=lambda f: f.check)
def test_whoever_stops_lending_is_told_that_the_model_still_learns_on_devices(finding, by, level):
    both = [receipts(finding, kind=kind, by=by, level=level)[0] for kind in ("Unshare", "Erase")]
    lent, erased = (" ".join((page(one), level_says(one), verdict_says(one))) for one in both)
    assert not [words for words in ERASED if words in lent]
    if by != "FedShareUnlearn (damping = measured)":
        assert [words for words in ERASED if words in erased], "control: true of an erasure"
    assert "Devices keep the records, and the model still learns from them there." in lent
    assert "the copy that they had lent" in lent
    assert "Lent copy deleted from this run" in lent
    assert "Devices keep" not in erased


def test_the_level_of_an_unshare_is_about_the_lent_copy():
    exact = receipts(NONE, kind="Unshare", by="Subtract")[0]
    assert badges(exact)[1].word == "L3: exact for the lent copy, as stated"
    assert "Devices keep the records" in level_says(exact)
    assert "Devices keep the records" not in level_says(receipts(NONE)[0]), "control"


@pytest.mark.parametrize(
    "out_of_the_model", [{"claims": {RELEASE: "12"}}, {"method": {"source": "shared"}}]
)
def test_where_no_device_is_asked_the_records_are_out_of_the_model(out_of_the_model):
    """A service takes them out of its sum; the controls for federation count loans alone."""
    exact = receipts(NONE, kind="Unshare", by="Subtract", **out_of_the_model)[0]
    assert "subtracted from the sum" in sentences(exact)[1]
    assert "Devices keep" not in page(exact)
    assert "the device keeps its own copy" in steps(exact)


def test_stored_rows_were_searched_and_no_model_is_judged():
    scan = Finding("scan", "SHOWN", value=0.0, n=20, note="Read again.")
    exact = receipts(scan, NONE, by=ROWS, level="L1", records=20, people=1)[0]
    shown = page(exact)
    searched = "The stored files were searched again, and no row of the request was found."
    assert searched in steps(exact)
    assert "No check was run" not in shown
    assert "Nothing was measured" not in shown
    assert "No model was measured" in verdict_says(exact)
    assert "not shown" not in badges(exact)[1].word
    assert "Not shown." not in steps(exact)
    assert ">20 rows<" in shown
    run = page(receipts(NONE, level="L1")[0])
    assert "No check was run" in run, "control: a receipt about a model"
    assert searched not in run


def test_items_and_rows_are_both_told_where_they_differ():
    twice = {"records": 3, "people": 1}
    assert told(NONE, items=2, **twice).startswith("One person asked to erase 2 items (3 rows).")
    assert "2 items (3 rows)" in page(receipts(NONE, items=2, **twice)[0])
    assert told(NONE, items=3, **twice).startswith("One person asked to erase 3 records.")
    assert told(NONE, **twice).startswith("One person asked to erase 3 records."), (
        "an older receipt"
    )
    stranger = receipts(NONE, items=2, **twice)[1]
    assert sentences(stranger)[0] == "Up to 9 people asked to erase up to 9 records."


def test_a_check_says_what_it_counted():
    tail = replace(NOTICES, check="Q1 tail", n=5652)
    one = replace(NOTICES, check="Q6 tables", n=1)
    again = replace(NOTICES, check="Q9 Q1 tail", n=12)
    own = replace(NOTICES, check="mine", n=7)
    shown = page(receipts(replace(NOTICES, n=85), tail, one, again, own)[0])
    assert ">counted</th>" in shown
    assert ">records</th>" not in shown
    for text in ("85 people", "5,652 records, forgotten or unseen", "1 model", "7"):
        assert f">{text}</td>" in shown, text
    assert ">12 records, forgotten or unseen</td>" in shown, "a check that is repeated"
