"""The unlearners that FedShare is compared with: the checks of their specification."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind.audits.battery import Report
from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.records import Erase, Share, Unshare, Withdraw
from rescind.core.update import Rows, Update
from rescind.errors import ConfigError
from rescind.forgetting import forget as forgetting
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import CostMeter
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import GraphSteps
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing._server_rerun import targets
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.unlearning.ascent import Ascent
from rescind.methods.unlearning.cfru import CFRU, drift
from rescind.methods.unlearning.cufru import CUFRUR
from rescind.methods.unlearning.fedaccum import (
    HISTORY,
    LOG,
    FedAccum,
    excluding,
    joint_norm,
    mean_of,
    read_log,
    to_log,
)
from rescind.methods.unlearning.federaser import FedEraser
from rescind.methods.unlearning.finetune import FineTuneUnlearn
from rescind.methods.unlearning.fru import FRU, KEPT, STORED, TOOK_PART, longest_rows
from rescind.methods.unlearning.no_op import Nothing
from rescind.methods.unlearning.purge_only import PurgeOnly
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.lightgcn import LightGCN
from worlds import lendable, randoms, silent, tiny_holdings

ROUNDS = 5
LENDERS = (0, 1)
PLAIN = {"refine_bpr": 0.0, "contrast": 0.0}
"""FedShare without a server of its own: federated averaging."""
SERVER_LOGS = (FedAccum, CUFRUR, FedEraser, CFRU)
REPLAYS = (FedAccum, CUFRUR, FedEraser, FRU)


def learnt(method, rounds: int = ROUNDS, clients: int = 9, items: int = 14) -> Federation:
    """A small run in which two people lend all they train on; the readable form of a round."""
    method = replace(method, clients_per_round=4)
    executor = InProcess(fused=False)
    fed = Federation.start(tiny_holdings(clients, items), method, executor=executor)
    return fed.apply(Share(lendable(fed.now.vault.holdings, *LENDERS))).run(rounds)


def make(cls, **given):
    return cls(model=LightGCN(dim=4), **given)


def table(fed: Federation):
    return fed.now.state.public["item"]


def nobody(fed: Federation) -> Withdraw:
    """A leaver who has nothing to train on and lent nothing: no target at all."""
    return Withdraw(silent(fed.world.sizes.clients))


# -- logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*SERVER_LOGS, FRU])
def test_a_log_changes_no_bit_of_what_is_learnt(cls):
    plain, logged = learnt(make(FedShare, snapshots=0)), learnt(make(cls))
    for part in ("public", "own"):
        one, two = (getattr(fed.now.state, part) for fed in (plain, logged))
        assert params.digest(one) == params.digest(two)
    assert params.digest(plain.now.vault.private) == params.digest(logged.now.vault.private)


def test_a_log_is_read_as_it_was_written_and_without_some_clients():
    rows = Rows(torch.tensor([2, 0, 2, 1]), torch.tensor([5, 3, 0, 3]), randoms(4, 3), 7)
    ids, update = torch.tensor([4, 6, 9]), Update(3, {"item": rows, "bias": randoms(3, 2)})
    back_ids, back = read_log(to_log(ids, update))
    assert_close(mean_of((back_ids, back)), mean_of((ids, update)))
    assert back_ids.tolist() == [4, 6, 9]
    left_ids, left = excluding((ids, update), torch.tensor([6, 7]))
    assert left_ids.tolist() == [4, 9]
    expected = torch.zeros(7, 3, dtype=torch.float64)
    for place in (0, 1, 2):  # the entries of clients 4 (place 0) and 9 (place 2)
        expected[rows.index[place]] += rows.value[place]
    assert_close(mean_of((left_ids, left))["item"], expected / 2)
    assert_close(mean_of((left_ids, left))["bias"], update.entries["bias"][[0, 2]].mean(0))
    assert mean_of(excluding((ids, update), ids)) == {}


@pytest.mark.parametrize(("cls", "share"), [(FedAccum, 1.0), (CFRU, 0.5), (FRU, 0.5)])
def test_storage_is_the_formula_within_five_percent(cls, share):
    """Sum over rounds and clients of ceil(share R) rows of 4 d + 4 bytes, d = 32."""
    fed = learnt(replace(cls(), **PLAIN), rounds=3, clients=30, items=80)
    whole = learnt(replace(FedAccum(), **PLAIN), rounds=3, clients=30, items=80)
    expected = measured = 0
    for snapshot in whole.now.state.memory.named(LOG):
        for many in snapshot.values["item/many"].tolist():
            expected += math.ceil(share * many) * (4 * 32 + 4)
        if cls is CFRU:
            expected += 4 * 80 * 32  # one table a round, which `norm` needs
    for snapshot in fed.now.state.memory.named(LOG):
        measured += len(params.to_bytes(snapshot.values))
    for _, _, rows in fed.now.vault.log.entries:
        measured += len(params.to_bytes({"index": rows.index.int(), "value": rows.value}))
    assert measured == pytest.approx(expected, rel=0.05)


def test_only_the_longest_rows_are_kept():
    rows = Rows(torch.tensor([0, 0, 0, 1, 1]), torch.arange(5), randoms(5, 3), 9)
    kept = longest_rows(rows, 2, 0.5)
    by = rows.value.norm(dim=1)
    expected = {*sorted([0, 1, 2], key=lambda i: -float(by[i]))[:2], 3 if by[3] > by[4] else 4}
    assert set(kept.index.tolist()) == expected


# -- controls --------------------------------------------------------------------------------------


def test_retrain_is_the_exact_way_whatever_a_federation_learns_with():
    fed = learnt(make(FedShare))
    event = Erase(fed.world.shared[:3])
    after = Retrain().unlearn(fed, event)
    assert params.digest(after.now.state.public) == params.digest(
        fed.retrained(event, from_start=True).now.state.public
    )
    assert Retrain.exact
    _, evidence = forget(fed, event, Retrain(), audits="none")
    assert (evidence.receipt.done.unlearning, evidence.receipt.done.level) == ("Retrain", "L3")


def test_nothing_keeps_everything_and_purge_only_keeps_the_model():
    fed = learnt(make(FedShare))
    event = Erase(lendable(fed.now.vault.holdings, 0))
    kept, purged = Nothing().unlearn(fed, event), PurgeOnly().unlearn(fed, event)
    for after in (kept, purged):
        assert torch.equal(table(after), table(fed))
        assert not bool((after.world.shared.client == 0).any())
    assert torch.equal(kept.now.state.own["user"], fed.now.state.own["user"])
    first = fed.method.server_init(fed.world, fed.clock).own["user"]
    rows = purged.now.state.own["user"]
    assert torch.equal(rows[0], first[0])
    assert torch.equal(rows[1], fed.now.state.own["user"][1])
    assert not torch.equal(rows[1], first[1])
    assert set(purged.now.state.own) == {"user"}
    assert len(fed.now.state.own) > 1
    assert not purged.now.state.memory.snapshots


def test_fine_tuning_is_the_purge_and_more_rounds_of_the_same_learner():
    fed = learnt(make(FedShare))
    event = Erase(lendable(fed.now.vault.holdings, 0))
    after = FineTuneUnlearn(rounds=3).unlearn(fed, event)
    by_hand = PurgeOnly().unlearn(fed, event).run(3)
    assert params.digest(after.now.state.public) == params.digest(by_hand.now.state.public)
    assert after.now.state.round == ROUNDS + 3


@pytest.mark.parametrize("learner", [FedShare, FedAvg])
def test_ascent_raises_the_loss_of_what_goes(learner):
    fed = learnt(make(learner))
    event = Erase(lendable(fed.now.vault.holdings, 0))
    method = Ascent(climbs=10, repairs=0, climb_rate=0.01)
    gone = graph_of(replace(fed.world, shared=event.records))
    steps = GraphSteps(layers=1)
    zeros = torch.zeros(fed.world.sizes.clients, 4)
    user = fed.now.state.own.get("user", zeros).index_select(0, gone.sharers)

    def loss(item) -> float:
        drawn = steps.draw(gone, 0, fed.clock.at(99))
        return float(steps.loss(*gone.propagate(user, item, 1), drawn))

    after = method.unlearn(fed, event)
    assert loss(table(after)) > loss(table(fed)) + 0.01
    kept = Ascent(repairs=0).unlearn(fed, Erase(lendable(fed.now.vault.holdings, 4)))
    assert torch.equal(table(kept), table(fed))  # nothing lent goes, so there is nothing to climb


# -- FedAccum, CUFRU-R, FedEraser, FRU: replays ----------------------------------------------------


def slow_accumulation(fed: Federation, leaver: int):
    """V_0 plus, round by round, the mean of the stored updates of everybody else, by loops."""
    total = Federation.start(tiny_holdings(9, 14), fed.method).now.state.public["item"].clone()
    for snapshot in fed.now.state.memory.named(LOG):
        ids, update = read_log(snapshot.values)
        stay = [place for place, client in enumerate(ids.tolist()) if client != leaver]
        step, rows = torch.zeros_like(total), update.entries["item"]
        for owner, index, value in zip(rows.owner, rows.index, rows.value, strict=True):
            if int(owner) in stay:
                step[index] += value
        total += step / max(len(stay), 1)
    return total


def test_fedaccum_adds_up_what_the_others_sent():
    fed = learnt(make(FedAccum, **PLAIN))
    assert any(4 in s.values["client"].tolist() for s in fed.now.state.memory.named(LOG))
    after = fed.method.unlearn(fed, Withdraw(4))
    assert_close(table(after), slow_accumulation(fed, 4), atol=1e-6, rtol=1e-5)
    assert float((table(after) - table(fed)).abs().max()) > 1e-3
    assert_close(table(fed.method.unlearn(fed, nobody(fed))), table(fed), atol=1e-6, rtol=1e-5)


def test_a_mixture_without_anything_new_is_fedaccum():
    fed = learnt(make(CUFRUR, mixture=0.0))
    other = learnt(make(FedAccum))
    event = Withdraw(4)
    one, two = (f.method.unlearn(f, event) for f in (fed, other))
    assert params.digest(one.now.state.public) == params.digest(two.now.state.public)


TWICE = {"epochs": 2}
TRAINED = {"private_rate": 0.1}  # FedEraser does not train its first round again, so not for it


@pytest.mark.parametrize(
    "method",
    [
        make(CUFRUR, mixture=1.0, **TWICE),
        make(CUFRUR, mixture=1.0, **TRAINED),
        make(FedEraser, interval=1, effort=1.0, **TWICE),
        make(FedEraser, interval=1, effort=1.0, calibrate="mean", **TWICE),
        make(FRU, kept_share=1.0, effort=1.0, **TWICE),
        make(FRU, kept_share=1.0, effort=1.0, **TRAINED),
        make(FRU, kept_share=1.0, effort=1.0, calibration="row", **TWICE),
    ],
)
def test_without_a_target_the_replay_gives_the_run_again(method):
    fed = learnt(method)
    after = fed.method.unlearn(fed, nobody(fed))
    assert_close(table(after), table(fed), atol=2e-5, rtol=1e-4)
    assert float((table(fed) - table(learnt(fed.method, 0))).abs().max()) > 0.05
    assert after.now.state.round == ROUNDS


@pytest.mark.parametrize("mixture", [0.25, 0.5, 1.0])
def test_a_mixed_step_is_as_long_as_the_stored_one(mixture):
    def sent(seed):
        rows = Rows(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 1]), randoms(3, 4, seed=seed), 5)
        return torch.tensor([3, 8]), Update(2, {"item": rows})

    stored, fresh = sent(1), sent(2)
    step, logged = make(CUFRUR, mixture=mixture).server_replay_mean(stored, fresh)
    old, new = mean_of(stored)["item"], mean_of(fresh)["item"]
    mixed = mixture * new / new.norm() + (1 - mixture) * old / old.norm()
    assert_close(step["item"], old.norm() * mixed / mixed.norm())
    assert_close(joint_norm(mean_of(logged)), joint_norm(mean_of(stored)))
    ids, update = fresh
    louder = (ids, update.scale(torch.full((2,), 7.0)))
    assert_close(make(CUFRUR, mixture=mixture).server_replay_mean(stored, louder)[0], step)


def test_a_share_of_the_clients_is_asked_again():
    fed = learnt(make(CUFRUR, online=0.5))
    spent = CostMeter()
    fed.method.unlearn(replace(fed, watch=(spent,)), nobody(fed))
    assert spent.client_rounds == ROUNDS * 2  # half of four


def test_federaser_gives_each_client_its_stored_length():
    ids = torch.tensor([7, 2])
    rows = Rows(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 1]), randoms(3, 4), 5)
    stored = (ids, Update(2, {"item": rows}))
    other = Rows(torch.tensor([0, 1]), torch.tensor([3, 0]), randoms(2, 4, seed=5), 5)
    fresh = (torch.tensor([2, 7]), Update(2, {"item": other}))  # in another order
    mean, logged = make(FedEraser).server_replay_mean(stored, fresh)
    assert_close(logged[1].norms(), stored[1].norms()[[1, 0]])
    direction = other.value / other.value.norm(dim=1, keepdim=True)
    expected = torch.zeros(5, 4, dtype=torch.float64)
    expected[3] = direction[0] * rows.value[2].norm() / 2
    expected[0] = direction[1] * rows.value[:2].norm() / 2
    assert_close(mean["item"], expected)


def test_federaser_keeps_and_replays_every_second_round():
    fed = learnt(make(FedEraser))
    assert [s.round for s in fed.now.state.memory.named(LOG)] == [0, 2, 4]
    spent = CostMeter()
    after = fed.method.unlearn(replace(fed, watch=(spent,)), Withdraw(4))
    assert spent.rounds == 3
    assert [s.round for s in after.now.state.memory.named(LOG)] == [0, 2, 4]
    assert after.now.state.round == ROUNDS


def test_fru_takes_the_fresh_direction_at_the_stored_length():
    fresh, stored = randoms(6, 4), randoms(6, 4, seed=1)
    stored[2] = 0.0
    method = make(FRU)
    mean = {"item": fresh, f"{STORED}item": stored, KEPT: torch.tensor(1.0)}
    move = method.server_calibrated(mean)
    assert set(move) == {"item"}
    assert_close(move["item"], fresh * stored.norm() / fresh.norm())
    louder = method.server_calibrated({**mean, "item": 9 * fresh})
    assert_close(louder, move)
    half = method.server_calibrated({**mean, KEPT: torch.tensor(0.5)})  # half of them have a log
    assert_close(half["item"], 2 * move["item"])
    rows = replace(method, calibration="row").server_calibrated(mean)["item"]
    assert_close(rows[[0, 1, 3]].norm(dim=1), stored[[0, 1, 3]].norm(dim=1))
    assert_close(rows[2], fresh[2])


@pytest.mark.parametrize("cls", REPLAYS)
@pytest.mark.parametrize("kind", ["withdraw", "erase kept", "erase lent", "unshare"])
def test_replays_answer_two_requests_and_read_nothing_of_leavers(cls, kind):
    fed = learnt(make(cls))
    held = fed.now.vault.holdings
    event = {
        "withdraw": Withdraw(4),
        "erase kept": Erase(lendable(held, 4)),
        "erase lent": Erase(lendable(held, 0)),
        "unshare": Unshare(lendable(held, 0)),
    }[kind]
    spent = CostMeter()
    after, evidence = forget(replace(fed, watch=(spent,)), event, audits="none")
    assert evidence.receipt.done.level == "L1"  # not audited
    assert float((table(after) - table(fed)).abs().max()) > 1e-6
    leaver = 4 if kind in ("withdraw", "erase kept") else 0
    if kind in ("withdraw", "erase kept"):
        assert leaver not in spent.participants
        for snapshot in after.now.state.memory:
            assert leaver not in snapshot.values["client"].tolist()
    assert not any(leaver in rows.owner.tolist() for _, _, rows in after.now.vault.log.entries)
    assert not after.now.state.memory.named(HISTORY)
    again, _ = forget(after, Withdraw(2), audits="none")
    assert bool(table(again).isfinite().all())
    assert again.run(1).now.state.round == ROUNDS + 1


def test_who_must_be_corrected():
    fed = learnt(make(FedAccum))
    held = fed.now.vault.holdings
    lent, kept = lendable(held, 0), lendable(held, 4)
    assert targets(fed, fed.request(Withdraw(3)), fed.method).tolist() == [3]
    assert targets(fed, fed.request(Erase(lent)), fed.method).tolist() == []
    assert targets(fed, fed.request(Erase(kept)), fed.method).tolist() == [4]
    assert targets(fed, fed.request(Unshare(lent)), fed.method).tolist() == []
    both = replace(fed.method, local_includes_shared=True)
    assert targets(fed, fed.request(Erase(lent)), both).tolist() == [0]


@pytest.mark.parametrize("cls", [*SERVER_LOGS, FRU])
def test_without_a_log_that_reaches_back_it_trains_again(cls):
    fed = learnt(make(cls))
    late = fed.apply(Share(lendable(fed.now.vault.holdings, 2))).run(2)
    event = Withdraw(4)
    after = late.method.unlearn(late, event)
    exact = late.retrained(event, from_start=True)
    assert params.digest(after.now.state.public) == params.digest(exact.now.state.public)


@pytest.mark.parametrize("cls", [*SERVER_LOGS, FRU])
def test_another_learner_kept_no_log_and_is_told_so(cls):
    with pytest.raises(ConfigError, match=f"trained with FedShare.*Train it with {cls.__name__}"):
        make(cls).unlearn(learnt(make(FedShare), 1), Withdraw(4))


# -- CFRU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["norm", "raw"])
def test_on_isotropic_quadratics_the_recursion_is_the_run_without_the_leavers(form):
    """Client k takes E steps of rate r down h / 2 |x - c_k|^2: an update is -alpha (x - c_k)."""
    rate, curve, steps, clients, gone = 0.1, 0.7, 3, 6, (1, 4)
    alpha = 1 - (1 - rate * curve) ** steps
    centre = randoms(clients, 3)
    with_them = without_them = randoms(3, seed=9)
    error: dict = {}
    for round_ in range(12):
        # One round is of leavers alone.
        there = [k for k in range(clients) if float(randoms(1, seed=100 * round_ + k)) > -0.4]
        there = list(gone) if round_ == 7 else there
        if not there:
            continue
        weight = 1 / len(there)
        sent = {k: -alpha * (with_them - centre[k]) for k in there}
        left = [k for k in there if k not in gone]
        mean = sum(sent.values()) * weight
        theirs = [sent[k] for k in there if k in gone]
        share = len(theirs) * weight
        target = {"x": sum(theirs) / len(theirs)} if theirs else {}
        error = drift(error, {"x": mean}, target, share, alpha, form)
        with_them = with_them + mean
        if left:
            among = 1 / len(left) if form == "norm" else weight
            step = [-alpha * (without_them - centre[k]) * among for k in left]
            without_them = without_them + sum(step)
    assert_close(with_them + error["x"], without_them, atol=1e-14, rtol=0.0)
    assert float((with_them - without_them).abs().max()) > 0.01


def test_undamped_it_is_fedaccum_in_one_form_and_subtraction_in_the_other():
    fed = learnt(make(CFRU, damping=0.0, kept_share=1.0, **PLAIN))
    event = Withdraw(4)
    after = fed.method.unlearn(fed, event)
    other = learnt(make(FedAccum, **PLAIN))
    assert_close(table(after), table(other.method.unlearn(other, event)), atol=1e-6, rtol=1e-5)
    raw = replace(fed, method=replace(fed.method, form="raw"))
    total = torch.zeros_like(table(fed))
    for snapshot in other.now.state.memory.named(LOG):
        ids, update = read_log(snapshot.values)
        rows = update.entries["item"]
        for owner, index, value in zip(rows.owner, rows.index, rows.value, strict=True):
            if int(ids[owner]) == 4:
                total[index] += value / len(ids)
    assert float(total.abs().max()) > 1e-3
    expected = table(fed) - total
    assert_close(table(raw.method.unlearn(raw, event)), expected, atol=1e-6, rtol=1e-5)


def test_it_makes_no_round_and_the_more_it_damps_the_less_it_changes():
    moved = []
    for damping in (0.02, 0.1, 0.5):
        fed = learnt(make(CFRU, damping=damping, kept_share=1.0, **PLAIN))
        spent = CostMeter()
        after, _ = forget(replace(fed, watch=(spent,)), Withdraw(4), audits="none")
        assert spent.rounds == 0
        moved.append(float((table(after) - table(fed)).norm()))
    assert moved == sorted(moved, reverse=True)


def test_fru_knows_who_took_part_and_forgets_who_left():
    fed = learnt(make(FRU))
    told = fed.now.state.memory.named(TOOK_PART)[0].values
    for round_ in range(1, ROUNDS + 1):
        ids = fed.method.server_sample(fed.now.state, fed.world, fed.clock.at(round_))
        assert told["client"][told["round"] == round_].tolist() == ids.tolist()


# -- escalation ------------------------------------------------------------------------------------


def judged(*verdicts):
    """An audit with these verdicts, one after another, and a list of whom it looked at."""
    looked, left = [], list(verdicts)

    def examine(before, after, event, unlearner, **_):
        looked.append((type(unlearner).__name__, params.digest(after.now.state.public)))
        verdict = left.pop(0)
        return Report(verdict, (Finding("Q1 population", verdict),), {})

    return examine, looked


@pytest.mark.parametrize("verdict", ["FAIL", "INCONCLUSIVE", "VOID"])
def test_an_approximate_unlearner_that_fails_is_followed_by_an_exact_one(monkeypatch, verdict):
    fed = learnt(make(FedShare))
    event = Erase(lendable(fed.now.vault.holdings, 0))
    examine, looked = judged(verdict, "PASS")
    monkeypatch.setattr("rescind.forgetting.examine.examine", examine)
    monkeypatch.setattr(forgetting, "FEWEST", 1)  # small as it is, this request is audited
    after, evidence = forget(fed, event, FineTuneUnlearn(rounds=2))
    exact = params.digest(fed.retrained(event, from_start=True).now.state.public)
    assert [name for name, _ in looked] == ["FineTuneUnlearn", "Retrain"]
    assert looked[1][1] == exact == params.digest(after.now.state.public)
    done = evidence.exact.done
    assert (done.unlearning, done.level, evidence.receipt.verdict) == ("Retrain", "L3", "PASS")
    assert done.rounds == 2 + ROUNDS  # the costs of both
    told = evidence.receipt.findings[0]
    assert told.check == "escalation"
    assert "FineTuneUnlearn was tried first" in told.note


def test_a_pass_does_not_escalate(monkeypatch):
    fed = learnt(make(FedShare))
    examine, looked = judged("PASS")
    monkeypatch.setattr("rescind.forgetting.examine.examine", examine)
    monkeypatch.setattr(forgetting, "FEWEST", 1)
    _, evidence = forget(fed, Withdraw(4), FineTuneUnlearn(rounds=2))
    assert [name for name, _ in looked] == ["FineTuneUnlearn"]
    assert evidence.receipt.done.unlearning == "FineTuneUnlearn (rounds = 2)"
    assert evidence.receipt.done.level == "L2"


def test_without_a_history_the_receipt_says_that_nothing_is_shown(monkeypatch):
    fed = replace(learnt(make(FedShare)), past=None)
    examine, _ = judged("INCONCLUSIVE")
    monkeypatch.setattr("rescind.forgetting.examine.examine", examine)
    monkeypatch.setattr(forgetting, "FEWEST", 1)
    _, evidence = forget(fed, Withdraw(4), FineTuneUnlearn(rounds=2))
    assert (evidence.receipt.done.level, evidence.receipt.verdict) == ("L1", "INCONCLUSIVE")
    assert "it is not shown that the influence was removed" in evidence.receipt.findings[0].note


def test_a_failed_exact_unlearner_is_not_tried_twice(monkeypatch):
    fed = learnt(make(FedShare))
    examine, looked = judged("FAIL", "FAIL")
    monkeypatch.setattr("rescind.forgetting.examine.examine", examine)
    monkeypatch.setattr(forgetting, "FEWEST", 1)  # small as it is, this request is audited
    _, evidence = forget(fed, Withdraw(4))
    assert len({model for _, model in looked}) == 1, "audited twice, and forgotten once"
    assert evidence.receipt.verdict == "FAIL"
