"""A whole audit on a small world: controls behave, retrains are kept, nothing is taken on trust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rescind.audits.battery import NO_OP, PURGE, RETRAIN, SHIFT, STANDARD
from rescind.audits.bystanders import exposed, quality, tenths
from rescind.audits.case import Case, evidence, lists
from rescind.audits.controls import purged, shifted
from rescind.audits.difference import by_lists, jaccard, tables
from rescind.audits.hold_out import HoldOut
from rescind.audits.membership import roc, tail
from rescind.audits.state_attacks import (
    carried,
    kept,
    kept_rows,
    person_rows,
    rotation,
    spread_once,
    stale,
)
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN
from rescind.core.records import Erase, Unshare, Withdraw
from rescind.core.state import Memory
from rescind.data import load
from rescind.data.sequences import next_item
from rescind.errors import ConfigError
from rescind.forgetting.examine import examine, retrain, retrains, seeds_of
from rescind.methods.additive.seq_gram import SeqGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.lightgcn import LightGCN
from worlds import randoms


@pytest.fixture
def case(story):
    before, event, refs = story
    return Case.of(before, event, 0, refs)


def test_a_report_judges_its_controls_and_says_what_it_could_not_see(story):
    before, event, refs = story
    report = examine(before, retrain(before, event, seed=99), event, refs)
    applies = {c.name for c in STANDARD} - {"pairs"}  # no item of so small a world is had so often
    more = {"Q0 controls", "Q2 canaries", "hold-out", "state"}
    assert {f.check for f in report.findings} == {*more, *applies}
    assert report.subjects[NO_OP] == report.subjects[SHIFT] == "FAIL"
    assert report.subjects[RETRAIN] != "FAIL"
    assert report.verdict in ("PASS", "INCONCLUSIVE")
    by_name = {f.check: f for f in report.findings}
    assert by_name["kept"].controls[NO_OP] > 0.6
    assert by_name["kept"].controls[NO_OP] == pytest.approx(by_name["kept"].controls[SHIFT])
    assert set(by_name["Q1 tail"].curves) >= {"subject", NO_OP, RETRAIN}


def test_doing_nothing_fails_and_purging_alone_does_not_look_like_nothing(story):
    before, event, refs = story
    report = examine(before, before, event, refs)
    assert report.verdict == "FAIL"
    findings = {f.check: f for f in report.findings}
    assert findings["kept"].verdict == "FAIL"
    assert abs(findings["kept"].controls[PURGE] - 0.5) < findings["kept"].value - 0.5


def test_over_forgetting_fails(story):
    # Rows of the people who asked, turned against what they lent: below any retrain.
    before, event, refs = story
    after = refs[0]
    rows = after.now.state.own["user"].clone()
    item = after.now.state.public["item"]
    away = (item - item.mean(0))[event.records.item]
    people = event.records.client.unique()
    rows[people] = 0
    rows.index_add_(0, event.records.client, -away)
    own = {**after.now.state.own, "user": rows}
    over = after.with_(state=replace(after.now.state, own=own))
    report = examine(before, over, event, [*refs[1:], retrain(before, event, seed=98)])
    findings = {f.check: f for f in report.findings}
    assert findings["kept"].value < findings["kept"].reference - findings["kept"].margin
    assert report.verdict == "FAIL"


def test_the_same_audit_twice_gives_the_same_findings(story):
    before, event, refs = story
    lot, others = HoldOut(bytes(32)), [*refs[:-1], before]
    one, two = (examine(before, refs[-1], event, others, lot=lot) for _ in range(2))
    assert [f.facts() for f in one.findings] == [f.facts() for f in two.findings]


def test_an_audit_with_too_few_retrains_is_refused(story):
    before, event, refs = story
    with pytest.raises(ConfigError, match="needs at least 5 retrained models, got 4"):
        examine(before, refs[0], event, refs[:4])
    with pytest.raises(ConfigError, match="'standard' or 'full', got 'fast'"):
        examine(before, refs[0], event, refs, level="fast")


class Own(Retrain):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Own, r"got <class .*Own"),
        (7, "got 7"),
    ],
)
def test_what_is_no_unlearner_is_told_before_anything_is_trained(story, given, told):
    before, event, _ = story
    with pytest.raises(ConfigError, match=f"^audit wants an unlearner, {told}"):
        examine(before, before, event, unlearner=given)


def test_the_folder_of_an_audit_may_be_given_as_text(story, tmp_path, monkeypatch):
    before, event, refs = story
    seen: list[Path] = []
    monkeypatch.setattr(
        "rescind.forgetting.examine.retrains", lambda *given, **_: seen.append(given[5]) or refs
    )
    examine(before, refs[0], event, folder=str(tmp_path))
    assert seen == [tmp_path]


def test_a_run_of_sequences_is_audited_with_its_controls():
    data = next_item(load("synthetic", users=200, items=120, interactions=8000))
    fed = Federation.start(data, SeqGram.sequences(), seed=3).run(1)
    held = fed.now.vault.holdings
    train = held.records[held.split == TRAIN]
    event = Erase(train[train.client % 4 == 0])
    refs = retrains(fed, event, workers=1)
    after = fed.method.unlearn(fed, event)
    done, nothing = (examine(fed, subject, event, refs) for subject in (after, fed))
    assert done.verdict in ("PASS", "INCONCLUSIVE")
    assert done.subjects[RETRAIN] != "FAIL"
    assert nothing.verdict == done.subjects[NO_OP] == "FAIL", "the control: nothing is forgotten"


def test_the_quality_of_others_counts_those_who_have_something_to_measure(tiny):
    """Who has no test row counts for nothing in the mean, so not in the number of people either."""
    tested = (tiny.split == TEST) & (tiny.records.client % 3 > 0)
    some = replace(tiny, split=torch.where(tested, TRAIN, tiny.split))  # two of three have none
    fed = Federation.start(some, FedAvg(model=LightGCN(dim=4)), seed=1).run(3)
    event = Withdraw(1)
    refs = retrains(fed, event, workers=1)
    found = {f.check: f for f in examine(fed, refs[0], event, refs).findings}
    others = {*some.records.client[some.split == TEST].tolist()} - {1}
    assert 0 < len(others) < len(fed.world.members) - 1
    assert found["Q8 quality"].n == len(others)


def test_a_method_without_rows_of_people_is_audited_without_those_checks(tiny):
    fed = Federation.start(tiny, FedAvg(model=LightGCN(dim=4)), seed=1).run(3)
    event = Withdraw(1)
    refs = retrains(fed, event, workers=1)
    report = examine(fed, refs[0], event, refs)
    names = {f.check for f in report.findings}
    assert "kept" not in names
    assert {"Q1 population", "Q8 quality"} <= names
    assert report.verdict == "INCONCLUSIVE"  # one person: nothing can be said


# -- retrains -------------------------------------------------------------------------------------


def test_retrains_never_saw_the_records_and_differ_by_seed(story):
    before, event, refs = story
    digests = {params.digest(r.now.state.public) for r in refs}
    assert len(digests) == len(refs)
    for ref in refs:
        assert not bool(ref.world.shared.among(event.records).any())
        assert not bool(ref.now.vault.holdings.records.among(event.records).any())
        assert ref.now.state.round == before.now.state.round
        assert ref.clock.seed != before.clock.seed


def test_the_auditors_seeds_are_its_own():
    assert len(set(seeds_of(0, 50))) == 50
    assert not set(seeds_of(0, 50)) & set(seeds_of(1, 50))
    assert min(seeds_of(0, 50)) > 1000  # nobody trains with these by accident


def test_kept_retrains_are_found_again_and_belong_to_one_request(story, tmp_path):
    before, event, _ = story
    short = replace(before, now=replace(before.now, state=replace(before.now.state, round=2)))
    seen = []
    first = retrains(short, event, 2, 0, 1, tmp_path, lambda *n: seen.append(n))
    assert seen == [(0, 2), (1, 2), (2, 2)]
    seen.clear()
    again = retrains(short, event, 2, 0, 1, tmp_path, lambda *n: seen.append(n))
    assert seen == [(2, 2)]
    for one, two in zip(first, again, strict=True):
        assert params.digest(one.now.state.public) == params.digest(two.now.state.public)
        assert params.digest(one.now.vault.private) == params.digest(two.now.vault.private)
    seen.clear()
    other = Erase(event.records[event.records.client == event.records.client[0]])
    retrains(short, other, 1, 0, 1, tmp_path, lambda *n: seen.append(n))
    assert seen[0] == (0, 1)


@pytest.mark.slow
def test_workers_train_the_same_models(story, tmp_path):
    before, event, refs = story
    there = retrains(before, event, 2, 0, 2, tmp_path)
    for one, two in zip(refs, there, strict=False):
        assert params.digest(one.now.state.public) == params.digest(two.now.state.public)


# -- controls -------------------------------------------------------------------------------------


def test_a_shift_lowers_every_score_and_changes_no_list(story):
    before, _, _ = story
    fake = shifted(before)
    records = before.now.vault.holdings.records[torch.arange(0, 500, 7)]
    assert torch.allclose(before.query(records) - fake.query(records), torch.tensor(2.0).double())
    ids = torch.arange(20)
    assert torch.equal(lists(before, ids), lists(fake, ids))
    # A fixed threshold on the loss, fitted before, is beaten without forgetting anything.
    limit = before.query(records, "loss").median()
    assert float((fake.query(records, "loss") < limit).double().mean()) == 0.0


def test_purging_alone_takes_data_and_rows_and_leaves_the_table(story, case):
    before, event, _ = story
    after = purged(case)
    assert torch.equal(after.now.state.public["item"], before.now.state.public["item"])
    assert after.now.state.memory == Memory()
    assert not bool(after.world.shared.among(event.records).any())
    people = case.people
    found = person_rows(after.now.state.own, after.world.sizes.clients, moments=True)
    assert len(found) == 3  # the rows and two moments
    for name, rows in found.items():
        old = before.now.state.own[name]
        assert not torch.equal(rows[people], old[people])
        stay = torch.ones(len(rows), dtype=torch.bool)
        stay[people] = False
        assert torch.equal(rows[stay], old[stay])


# -- single checks --------------------------------------------------------------------------------


def test_rows_are_spread_once_over_what_the_server_still_has(story):
    before, _, _ = story
    user = before.now.state.own["user"].double()
    item = before.now.state.public["item"].double()
    near, _ = spread_once(before, user, item)
    shared = set(
        zip(before.world.shared.client.tolist(), before.world.shared.item.tolist(), strict=True)
    )
    who = int(before.world.shared.client[0])
    mine = [i for c, i in shared if c == who]
    often = {i: sum(1 for _, j in shared if j == i) for i in mine}
    expected = user[who] + sum(item[i] / (len(mine) * often[i]) ** 0.5 for i in mine)
    assert torch.allclose(near[who], expected)


def test_what_a_server_keeps_gives_the_no_op_away_and_a_retrain_not(story, case):
    before, _, refs = story
    for look in (kept, kept_rows):
        no_op = float((look(case, before).value * look(case, before).weight).sum())
        no_op /= look(case, before).size
        clean = [look(case, r) for r in refs]
        means = [float((c.value * c.weight).sum() / c.size) for c in clean]
        assert no_op > max(means)
    assert stale(case, before).value.tolist() == kept_rows(case, before).value.tolist()


def test_a_table_that_was_merely_turned_hides_from_an_old_row_and_not_from_who_turns_it_back(
    story, case
):
    before, _, _ = story
    table = before.now.state.public["item"]
    turned, _ = torch.linalg.qr(randoms(table.shape[1], table.shape[1], seed=5))
    public = {**before.now.state.public, "item": table @ turned.to(table)}
    fake = before.with_(state=replace(before.now.state, public=public))
    by_row, by_both, whole = (
        float((found.value * found.weight).sum() / found.size)
        for found in (stale(case, fake), carried(case, fake), stale(case, before))
    )
    assert abs(by_both - whole) < 0.002
    assert whole - by_row > 0.03
    back = rotation(table.double(), (table @ turned.to(table)).double())
    assert torch.allclose(back, turned.double(), atol=1e-4)


def test_a_server_that_dropped_its_rows_has_nothing_to_read(story, case):
    _, _, refs = story
    bare = refs[0].with_(state=replace(refs[0].now.state, own={}))
    assert set(kept(case, bare).value.tolist()) == {0.5}


def test_a_loan_taken_back_is_judged_beside_retrains_that_keep_it_on_the_device(story):
    before, event, _ = story
    back = Unshare(event.records)
    refs = retrains(before, back, workers=1)
    report = examine(before, before, back, refs)
    findings = {f.check: f for f in report.findings}
    assert bool(refs[0].now.vault.holdings.records.among(event.records).any())
    assert findings["kept"].verdict == "FAIL"
    # The device goes on using its own records, with and without the loan.
    assert findings["Q1 population"].reference > 0.55


def test_nothing_is_seen_in_lists_that_did_not_change(story, case):
    before, _, refs = story
    assert set(by_lists(case, before).value.tolist()) == {0.5}
    assert by_lists(case, refs[0]).value.mean() > 0.5  # erased items may be shown again


def test_a_model_is_at_no_distance_from_itself_alone(story):
    before, event, refs = story
    alone = Case.of(before, event, 0, [before])
    twin = replace(before)
    assert float(tables(alone, twin).value[0]) == 0.0
    assert float(jaccard(alone, twin).value.mean()) == 1.0
    assert float(tables(alone, refs[0]).value[0]) > 0.1


def test_bystanders_are_everybody_else(case):
    assert not bool(torch.isin(case.bystanders, case.people).any())
    assert len(case.bystanders) + len(case.people) == int(case.before.world.members.sum())


def test_quality_is_the_ndcg_of_the_evaluation(story, case):
    before, _, _ = story
    found = quality(case, before)
    mean = float((found.value * found.weight).sum() / found.size)
    assert mean == pytest.approx(before.evaluate(clients=case.bystanders)["NDCG@20"])


def test_tenths_share_everybody_out_once(story, case):
    before, _, _ = story
    groups = tenths(case, before)
    assert len(groups) == 20
    whole = quality(case, before)
    for kind, total in (
        ("activity", whole.weight),
        (
            "popularity",
            torch.bincount(case.test.client, minlength=before.world.sizes.clients)[case.bystanders],
        ),
    ):
        parts = [g.weight for name, g in groups.items() if name.startswith(kind)]
        assert torch.stack(parts).sum(0).tolist() == total.tolist()
        sizes = [float(p.sum()) for p in parts]
        assert max(sizes) - min(sizes) <= 3


def test_exposure_asks_about_people_who_stay(story, case):
    before, _, _ = story
    assert exposed(case, before).people <= len(case.bystanders)


def test_a_roc_curve_rises_from_nothing_to_everything(story, case):
    before, _, _ = story
    curve = roc(tail(case, before))
    assert curve["tpr"] == sorted(curve["tpr"])
    assert curve["tpr"][-1] == pytest.approx(1.0)
    assert curve["fpr"][0] == 0.0


def test_evidence_of_the_no_op_is_higher_than_that_of_a_retrain(story, case):
    before, _, refs = story
    member = case.targets.member
    gap = [
        float((e := evidence(f, case.targets.records))[member].mean() - e[~member].mean())
        for f in (before, *refs)
    ]
    assert gap[0] > max(gap[1:])
