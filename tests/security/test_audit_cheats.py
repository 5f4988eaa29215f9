"""Cheats that audits must not let pass, and claims that the platform must not repeat unchecked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import ClassVar

import pytest

from cheats import CHEATS, Hoard, claims_exact
from rescind.audits.battery import drawn
from rescind.audits.case import Case
from rescind.audits.hold_out import HoldOut
from rescind.audits.layout import surplus
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.method import Unlearner
from rescind.core.records import Erase, Share, Withdraw
from rescind.core.request import Request
from rescind.data.simulated_lending import draw_regret
from rescind.forgetting import forget as forgetting
from rescind.forgetting.exactness import Exactness, differences, exactness
from rescind.forgetting.examine import COMMITMENTS, committed, examine, forgotten, retrains
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.unlearning.purge_only import PurgeOnly
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.lightgcn import LightGCN
from worlds import lendable, tiny_holdings

EVERY = pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())


def learnt(method=None) -> Federation:
    method = method or FedShare(model=LightGCN(dim=4), clients_per_round=6)
    fed = Federation.start(tiny_holdings(12, 15), method, seed=1)
    return fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, 3))).run(4)


def noted(evidence, check: str) -> str:
    return next((f.note for f in evidence.receipt.findings if f.check == check), "")


# -- a claim is not a proof ------------------------------------------------------------------------


@EVERY
def test_a_cheat_that_claims_to_be_exact_gets_no_receipt_that_says_so(cheat):
    fed, by = learnt(), claims_exact(cheat)
    _, evidence = forget(fed, Erase(lendable(fed.now.vault.holdings, 3)), by, audits="none")
    assert evidence.receipt.done.level == "L1"
    name = type(by).__name__
    assert noted(evidence, "exactness") == f"{name} counts as exact (exact = True), not checked."
    assert evidence.receipt.done.unlearning == name, "not 'Retrain', as it says of itself"


@EVERY
def test_a_cheat_that_claims_to_be_exact_is_found_out_and_the_platform_retrains(cheat):
    fed, by = learnt(), claims_exact(cheat)
    event = Erase(lendable(fed.now.vault.holdings, 3))
    after, evidence = forget(fed, event, by)
    exact = fed.retrained(event)
    assert params.digest(after.now.state.public) == params.digest(exact.now.state.public)
    assert params.digest(after.now.state.own) == params.digest(exact.now.state.own)
    done = evidence.receipt.done
    assert (done.unlearning, done.level) == ("Retrain", "L3")
    assert f"{type(by).__name__} claims to be exact, but" in noted(evidence, "escalation")


def test_hoarded_records_are_named():
    fed = learnt()
    _, evidence = forget(fed, Erase(lendable(fed.now.vault.holdings, 3)), claims_exact(Hoard))
    assert "server 'cache/left' int64" in noted(evidence, "escalation")


@dataclass(frozen=True, kw_only=True)
class Honest(Unlearner):
    """Somebody else's retraining, which is what it claims to be."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return fed.retrained(request.event, from_start=True)


def test_an_honest_claim_is_checked_and_then_believed():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 3))
    _, evidence = forget(fed, event, Honest())
    assert evidence.receipt.done.level == "L3"
    assert "Honest gave the same bits" in noted(evidence, "exactness")
    assert not noted(evidence, "escalation")
    _, evidence = forget(fed, event, Honest(), audits="none")
    assert evidence.receipt.done.level == "L1"


@pytest.mark.parametrize("by", [None, Retrain()])
def test_the_platforms_own_retraining_needs_no_second_one(by):
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 3))
    _, evidence = forget(fed, event, by, audits="none")
    assert (evidence.exact.done.level, evidence.exact.done.rounds) == ("L3", 4)
    assert "The platform trained the rounds again" in noted(evidence, "exactness")


def test_a_subtraction_is_exact_if_what_remains_adds_up_to_it():
    fed = learnt(Gram())
    request = fed.request(Erase(lendable(fed.now.vault.holdings, 3)))
    done = unlearn_and_purge(fed, request)
    assert exactness(done).shown
    state = done.fed.now.state
    name = next(n for n in state.own if n.startswith("gram/"))
    wrong = {**state.own, name: state.own[name] + 1}
    forged = replace(done, fed=done.fed.with_(state=replace(state, own=wrong)))
    assert not exactness(forged).shown
    assert "do not add up" in exactness(forged).says


class Follows(Honest):
    """Updates the solved sum for each change, as a running federation does: rounding stays."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return fed.method.follow(fed, request.event, request.away)


def test_following_changes_is_not_taken_for_a_model_that_never_had_them(monkeypatch):
    fed = learnt(Gram(solve_above=1.0))
    event = Erase(lendable(fed.now.vault.holdings, 3)[:2])
    ours = fed.retrained(event)
    after, evidence = forget(fed, event, Follows())
    assert (evidence.receipt.done.level, list(differences(after, ours))) == ("L3", [])
    assert "server 'inverse'" in noted(evidence, "escalation"), "what was solved differs in bits"
    _, evidence = forget(fed, event, Follows(), audits="none")
    assert evidence.receipt.done.level == "L1"
    monkeypatch.setattr(forgetting, "exactness", lambda done: Exactness(True, "It followed."))
    after, evidence = forget(fed, event, Follows(), audits="none")
    assert evidence.receipt.done.level == "L3", "the control: whoever trusts it signs this"
    assert "server 'inverse'" in differences(after, ours)


def test_a_subclass_of_an_additive_learner_is_not_the_learner():
    by = claims_exact(Gram)
    fed = learnt(Gram())
    _, evidence = forget(fed, Erase(lendable(fed.now.vault.holdings, 3)), by, audits="none")
    assert evidence.receipt.done.level == "L1"


def test_a_state_has_nothing_that_a_retrained_one_has_not():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 3))
    exact = fed.retrained(event)
    assert surplus(exact, forgotten(None, fed, event)) == []
    assert len(surplus(forgotten(Hoard(), fed, event), exact)) == 2


# -- the attack by lot -----------------------------------------------------------------------------


def test_the_attack_is_committed_to_before_the_unlearner_runs(tmp_path, monkeypatch):
    seen: list[str] = []

    @dataclass(frozen=True, kw_only=True)
    class Looks(PurgeOnly):
        answers: ClassVar[bool] = True

        def forget(self, fed: Federation, request: Request) -> Federation:
            seen.append((tmp_path / COMMITMENTS).read_text().split()[-1])
            return super().forget(fed, request)

    lots: list[HoldOut] = []

    def watched(*_, lot, **__):
        lots.append(lot)
        raise InterruptedError

    monkeypatch.setattr("rescind.forgetting.examine.examine", watched)
    monkeypatch.setattr(forgetting, "FEWEST", 1)
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 3))
    with pytest.raises(InterruptedError):
        forget(fed, event, Looks(), folder=tmp_path)
    assert seen == [lots[0].digest]
    opened = drawn(lots[0]).note
    secret = bytes.fromhex(opened.split("secret ")[1].split(",")[0])
    assert seen[0] == "sha256:" + sha256(b"rescind hold-out" + secret).hexdigest()
    assert seen[0] in opened
    assert committed(tmp_path).digest != seen[0], "every audit draws its own"


def test_two_lots_are_two_attacks_and_one_secret_is_one():
    one, two = HoldOut(), HoldOut()
    same = HoldOut(one.secret)
    assert (one.known, one.power, one.directions) == (same.known, same.power, same.directions)
    assert one.power != two.power
    assert one.secret.hex() not in repr(one)


def test_the_attack_by_lot_sees_what_nobody_forgot(small):
    fed, event, refs = small
    case = Case.of(fed, event, 0, refs[1:])
    lot = HoldOut(bytes(32))
    kept, fresh = (lot.attack(case, f) for f in (fed, refs[0]))
    values = [float((s.value * s.weight).sum() / s.size) for s in (kept, fresh)]
    assert values[0] > 0.55
    assert abs(values[1] - 0.5) < values[0] - 0.5


# -- audits ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def small_story():
    import rescind as rs

    data = rs.load("synthetic", users=240, items=300, interactions=9600)
    method = FedAvg(model=LightGCN(dim=32), clients_per_round=240)
    fed = Federation.start(data, method, seed=5).run(30)
    held = fed.now.vault.holdings
    event = Erase(draw_regret(held.records[held.split == TRAIN], fed.clock, 0.3))
    return fed, event, retrains(fed, event, 6, workers=1)


@pytest.fixture
def small():
    return small_story()


@pytest.mark.parametrize("name", ["purge only", "flatten", "hoard"])
def test_a_cheat_fails_its_audit(small, name):
    fed, event, refs = small
    by = CHEATS[name]()
    report = examine(fed, forgotten(by, fed, event), event, refs[1:], unlearner=by)
    assert report.verdict == "FAIL", report.findings
    found = {f.check: f.verdict for f in report.findings}
    assert found["state" if name == "hoard" else "Q2 canaries"] == "FAIL"


@dataclass(frozen=True, kw_only=True)
class LooksGood(Unlearner):
    """Forgets the request that is audited, and of any other deletes the records alone."""

    audited: str

    def forget(self, fed: Federation, request: Request) -> Federation:
        if request.event.digest() == self.audited:
            return fed.retrained(request.event)
        return PurgeOnly().forget(fed, request)


@pytest.mark.parametrize("told", ["unlearn", pytest.param("rs.forget", marks=pytest.mark.slow)])
def test_an_audit_asks_who_made_the_model_even_if_nobody_names_it(small, told, caplog):
    fed, event, refs = small
    by = LooksGood(audited=event.digest())
    if told == "unlearn":
        after = by.unlearn(fed, event)
    else:
        after, _ = forget(fed, event, by, audits="none")
    found = {f.check: f.verdict for f in examine(fed, after, event, refs[1:]).findings}
    assert (found["Q1 population"], found["Q2 canaries"]) == ("PASS", "FAIL")
    assert not caplog.records
    hidden = replace(after, forgot_by=None)
    report = examine(fed, hidden, event, refs[1:])
    found = {f.check: f.verdict for f in report.findings}
    assert found["Q2 canaries"] != "FAIL", "control: another unlearner answers for it"
    assert "planted records are forgotten by FedAvg" in caplog.text
    named = examine(fed, hidden, event, refs[1:], unlearner=by)
    assert {f.check: f.verdict for f in named.findings}["Q2 canaries"] == "FAIL"


def test_who_forgot_is_not_taken_from_an_earlier_request(small):
    fed, event, _ = small
    one, *others = event.records.client.unique().tolist()
    first = PurgeOnly().unlearn(fed, Withdraw(one))
    assert isinstance(first.forgot_by, PurgeOnly)
    assert first.run(1).forgot_by is first.forgot_by, "learning on does not change it"
    assert first.apply(Withdraw(others[0])).forgot_by is None


def test_a_retrain_does_not_fail_its_audit(small):
    fed, event, refs = small
    report = examine(fed, refs[0], event, refs[1:], unlearner=Retrain())
    assert report.verdict in ("PASS", "INCONCLUSIVE"), report.findings


@pytest.mark.parametrize("by", [PurgeOnly(), Retrain()], ids=["purge only", "retrain"])
def test_nothing_is_said_about_one_person(small, by):
    fed, event, _ = small
    alone = Withdraw(int(event.records.client[0]))
    refs = retrains(fed, alone, workers=1)
    report = examine(fed, forgotten(by, fed, alone), alone, refs, unlearner=by)
    assert report.verdict == ("INCONCLUSIVE" if isinstance(by, Retrain) else "FAIL")
    mine = [f for f in report.findings if f.verdict == "PASS"]
    assert {f.check for f in mine} <= {"Q2 canaries", "Q8 exposed", "Q8 quality"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_no_cheat_passes_and_no_retrain_fails_on_ml_100k(seed):
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).parents[2] / "papers"))
    from audit_cheats import ONE, RETRAIN, Story

    story = Story("ml-100k", seed, 60, None)
    assert story.report(RETRAIN).verdict != "FAIL"
    for cheat in (*CHEATS, ONE):
        assert story.report(cheat).verdict != "PASS", cheat


def test_a_hold_out_attack_without_anybody_to_attack_says_nothing() -> None:
    """One record: it is either known or attacked, so nobody is both."""
    fed = learnt()
    one = Erase(lendable(fed.now.vault.holdings, 3)[:1])
    assert HoldOut(bytes(32)).attack(Case.of(fed, one, 0, [fed] * 5), fed) is None


@dataclass(frozen=True, kw_only=True)
class OwnWay(FedShare):
    """A learner of another author with a `forget` of its own, that says nothing of itself."""

    def forget(self, fed, request):
        return fed.apply(request.event)


def test_a_receipt_names_who_forgot_and_not_the_way_of_a_class_above():
    fed = learnt(OwnWay(model=LightGCN(dim=4), clients_per_round=6))
    _, evidence = forget(fed, Erase(lendable(fed.now.vault.holdings, 3)), audits="none")
    assert evidence.receipt.done.unlearning == "OwnWay"
    assert evidence.receipt.done.level == "L1"
    control = learnt()
    _, evidence = forget(control, Erase(lendable(control.now.vault.holdings, 3)), audits="none")
    assert evidence.receipt.done.unlearning == "Retrain"
