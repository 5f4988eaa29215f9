"""The server's own steps again: against a plain loop, and against the run that was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.params import nbytes
from rescind.core.records import Erase, Share, Unshare, Withdraw
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import CostMeter
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing._server_rerun import SUMS, USUAL_PULL, moved, paths, pull, sums_of
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.sharing.fedshare_unlearn import FedShareUnlearn
from rescind.methods.unlearning.server_replay import ServerReplay
from rescind.models.lightgcn import LightGCN
from worlds import lendable, silent, tiny_holdings

LENDERS = (0, 1, 2)
ROUNDS = 4
WANTED = torch.linspace(-1, 1, 14 * 4).view(14, 4)


def learnt(method=None, rounds: int = ROUNDS) -> Federation:
    """Some people lend all they train on; a few rounds in which what devices sent is kept."""
    method = method or FedShare(keep_sums=True)
    method = replace(method, model=LightGCN(dim=4), clients_per_round=4)
    fed = Federation.start(tiny_holdings(9, 14), method)
    return fed.apply(Share(lendable(fed.now.vault.holdings, *LENDERS))).run(rounds)


def table(fed: Federation):
    return fed.now.state.public["item"]


def test_keeping_sums_changes_no_bit_of_what_is_learnt_and_costs_a_table_a_round():
    plain, kept = learnt(FedShare()), learnt()
    for part in ("public", "own"):
        one, two = (getattr(fed.now.state, part) for fed in (plain, kept))
        assert params.digest(one) == params.digest(two)
    more = kept.now.state.memory.nbytes - plain.now.state.memory.nbytes
    assert more == ROUNDS * nbytes({"item": table(kept)})


def test_the_first_run_is_the_run_that_was_bit_for_bit():
    fed = learnt()
    after = fed.apply(Erase(lendable(fed.now.vault.holdings, 0)))
    sums = sums_of(fed.now.state.memory, ROUNDS)
    one, two = paths(fed.method, fed, after, sums, 0.1)
    assert torch.equal(one.public["item"], table(fed))
    assert torch.equal(one.own["user"], fed.now.state.own["user"])
    assert not torch.equal(two.public["item"], one.public["item"])


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_two_runs_are_the_recursion_written_down(damping):
    """A loop over rounds in which the table's step and the server's refinement stand apart."""
    fed = learnt()
    after = fed.apply(Erase(lendable(fed.now.vault.holdings, 0, 1)))
    seen = []
    fed.restart().run(ROUNDS, watch=[lambda m: seen.append((m.sums, m.now.state))])
    tables = [table(fed.restart()), *(state.public["item"] for _, state in seen)]
    state = after.restart().now.state
    for turn, (sums, _) in enumerate(seen, 1):
        sent = sums["train"].totals["item"] / sums["train"].weight
        sent = sent - damping * (state.public["item"] - tables[turn - 1])
        step = {"train": Sum({"item": sent}, 1.0, 1)}
        state = fed.method.server_step(state, step, after.world, fed.clock.at(turn))
    sums = sums_of(fed.now.state.memory, ROUNDS)
    _, two = paths(fed.method, fed, after, sums, damping)
    assert_close(two.public["item"], state.public["item"])
    assert_close(two.own["user"], state.own["user"])


def test_devices_that_pull_as_assumed_make_the_replay_exact():
    """Where devices' sums are A - h V, the damped replay is the retraining itself."""
    fed = learnt()
    after = fed.apply(Erase(lendable(fed.now.vault.holdings, 0)))
    strength = 0.25
    runs, sums = [], []
    for world in (fed, after):
        state = world.restart().now.state
        for turn in range(1, ROUNDS + 1):
            sent = {"item": strength * (WANTED - state.public["item"])}
            if world is fed:
                sums.append(sent)
            step = {"train": Sum(sent, 1.0, 1)}
            state = fed.method.server_step(state, step, world.world, fed.clock.at(turn))
        runs.append(state)
    begun = replace(runs[0], memory=fed.now.state.memory)
    event = Erase(lendable(fed.now.vault.holdings, 0))
    found = moved(begun, fed.method, fed, after, fed.request(event), sums, strength)
    assert_close(found.public["item"], runs[1].public["item"], atol=1e-5, rtol=1e-4)
    other = moved(begun, fed.method, fed, after, fed.request(event), sums, 0.0)
    assert not torch.allclose(other.public["item"], runs[1].public["item"], atol=1e-3)


class Linear(InProcess):
    """Devices that pull every table towards one point, and remember whom they were asked as."""

    def train(self, method, public, mail, vault, ids, roles, clock):
        self.__dict__.setdefault("asked", []).append((ids, clock, public["item"]))
        return {"train": Sum({"item": 0.25 * (WANTED - public["item"])}, 1.0, 1)}, vault


class Silent(InProcess):
    """Nobody answers."""

    def train(self, method, public, mail, vault, ids, roles, clock):
        return {}, vault


def test_asked_devices_say_how_strongly_they_pull():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 0))
    devices = Linear()
    after = replace(fed.apply(event), executor=devices)
    sums = sums_of(fed.now.state.memory, ROUNDS)
    assert pull(fed.method, fed, after, fed.now.state, sums) == pytest.approx(0.25, rel=1e-4)
    (ids, clock, one), (same, again, two) = devices.asked
    assert torch.equal(ids, same)
    assert clock == again
    assert torch.equal(one, table(fed))
    astray = paths(fed.method, fed, after, sums, 0.0)
    assert_close(two - one, astray[1].public["item"] - astray[0].public["item"])


def test_where_nobody_answers_the_pull_is_the_usual_one():
    fed = learnt()
    after = replace(fed.apply(Erase(lendable(fed.now.vault.holdings, 0))), executor=Silent())
    sums = sums_of(fed.now.state.memory, ROUNDS)
    assert pull(fed.method, fed, after, fed.now.state, sums) == USUAL_PULL


def test_asking_takes_two_of_the_rounds_and_leaves_nothing_else_behind():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 1))
    asks = FedShareUnlearn(rounds=5, damping="measured")
    spent = CostMeter()
    after = asks.unlearn(replace(fed, watch=(spent,)), event)
    assert (spent.rounds, spent.client_rounds) == (5, 20)
    sums = sums_of(fed.now.state.memory, ROUNDS)
    found = pull(fed.method, fed, fed.apply(event), fed.now.state, sums)
    assert 0 < found < 1
    told = replace(asks, rounds=3, damping=found).unlearn(fed, event)
    assert torch.equal(table(after), table(told))


def test_a_replay_asks_no_device_and_keeps_sums_for_the_next_request():
    fed = learnt(FedShare(keep_sums=True))
    spent = CostMeter()
    event = Erase(lendable(fed.now.vault.holdings, 0))
    after, evidence = forget(replace(fed, watch=(spent,)), event, ServerReplay(), audits="none")
    assert (spent.rounds, spent.client_rounds) == (0, 0)
    assert evidence.receipt.done.unlearning == "ServerReplay"
    assert evidence.receipt.done.level == "L1"  # not audited
    assert len(after.now.state.memory.named(SUMS)) == ROUNDS
    old = {id(s) for s in fed.now.state.memory}
    assert not any(id(s) in old for s in after.now.state.memory)
    again, _ = forget(
        after, Erase(lendable(after.now.vault.holdings, 1)), ServerReplay(), audits="none"
    )
    assert spent.rounds == 0
    assert not torch.equal(table(again), table(after))


@pytest.mark.parametrize("kind", ["kept records", "leaves"])
def test_what_a_device_trained_on_is_in_its_sums_so_it_is_trained_again(kind):
    fed = learnt(FedShare(keep_sums=True))
    who = next(c for c in range(3, 8) if int(fed.past.first[c]))
    event = Withdraw(who)
    if kind == "kept records":
        event = Erase(lendable(fed.now.vault.holdings, who))
    after = ServerReplay().unlearn(fed, event)
    assert torch.equal(table(after), table(fed.retrained(event)))


def test_loans_that_came_between_the_rounds_are_forgotten_by_training_again():
    fed = learnt(FedShare(keep_sums=True))
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 3))).run(2)
    event = Erase(lendable(fed.now.vault.holdings, 0))
    assert torch.equal(table(ServerReplay().unlearn(fed, event)), table(fed.retrained(event)))


def test_without_sums_it_needs_nothing_kept_and_says_so_otherwise():
    fed = learnt(FedShare())
    event = Unshare(lendable(fed.now.vault.holdings, 0))
    with pytest.raises(ConfigError, match=r"keep_sums = true.*sums = 'none'.*Retrain"):
        ServerReplay().unlearn(fed, event)
    after = ServerReplay(sums="none", damping=0.0).unlearn(fed, event)
    runs = []
    for world in (fed, fed.apply(event)):
        state = world.restart().now.state
        for turn in range(1, ROUNDS + 1):
            state = fed.method.server_step(state, {}, world.world, fed.clock.at(turn))
        runs.append(state.public["item"])
    assert_close(table(after), table(fed) + runs[1] - runs[0])
    with pytest.raises(ConfigError, match="not for FedAvg"):
        ServerReplay().unlearn(learnt(FedAvg()), event)


def test_forgetting_by_contrast_begins_where_the_replay_ends():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 0))
    small = FedShareUnlearn(rounds=1)
    begun = ServerReplay().unlearn(fed, event)
    # A rate of nearly nothing: the one round of each is then the devices' alone.
    still = replace(small, unlearn_rate=1e-12, contrast_forgotten=0.0)
    after = still.unlearn(fed, event)
    sent = after.now.state.memory.named(SUMS)[-1].values["item"]
    assert_close(table(after), table(begun) + sent, atol=1e-6, rtol=1e-5)
    plain = replace(still, replay=False).unlearn(fed, event)
    assert not torch.allclose(table(plain), table(after), atol=1e-4)


def test_a_person_who_never_trained_and_lent_leaves_no_sum_out():
    fed = learnt()
    event = Withdraw(silent(9))
    small = FedShareUnlearn(rounds=1)
    after, _ = forget(fed, event, small, audits="none")
    assert bool(table(after).isfinite().all())
