"""What every unlearner promises, whoever asks for whatever. New files are collected by themselves.

A world of nine people: three lend all they train on, one lends half of it, the others never share.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from rescind import methods
from rescind.core.federation import Federation
from rescind.core.method import Method, Unlearner
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.errors import ConfigError
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.forgetting.purge import traces
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.unlearning.fedaccum import LOG, FedAccum, read_log
from rescind.methods.unlearning.finetune import FineTuneUnlearn
from rescind.methods.unlearning.fru import FRU
from rescind.methods.unlearning.no_op import Nothing
from rescind.methods.unlearning.purge_only import PurgeOnly
from rescind.models.lightgcn import LightGCN
from worlds import lendable, tiny_holdings

ROUNDS = 3
ALL, HALF, KEEPS = (0, 1, 2), 3, 4
UNLEARNERS = {
    name: cls
    for name, cls in methods.all_unlearners().items()
    if "ranking" in cls.tasks and cls.forget is not Method.forget
}
every_unlearner = pytest.mark.parametrize("cls", UNLEARNERS.values(), ids=UNLEARNERS.keys())
MODEL_STAYS = (Nothing, PurgeOnly)
"""They change no parameter: controls."""


def learnt(cls: type[Unlearner]) -> Federation:
    """A run of who forgets, or of FedShare where it forgets for others."""
    return run_of(cls if issubclass(cls, Method) else FedShare)


@cache
def run_of(cls: type[Method]) -> Federation:
    """Three rounds, once for all tests: a federation is a value."""
    learner = cls()
    if isinstance(learner, FedShare):
        learner = replace(learner, model=LightGCN(dim=4))
        if not isinstance(learner, FedAccum):
            learner = replace(learner, keep_sums=True)
    fed = Federation.start(tiny_holdings(9, 14), replace(learner, clients_per_round=6))
    held = fed.now.vault.holdings
    half = lendable(held, HALF)
    loans = lendable(held, *ALL) + half[: len(half) // 2]
    return fed.apply(Share(loans)).run(ROUNDS)


def all_of(fed: Federation, *clients: int) -> Records:
    """All that people train on, lent or not."""
    return lendable(fed.now.vault.holdings, *clients)


REQUESTS = {
    "one record of a person": lambda fed: [Erase(all_of(fed, 0)[:1])],
    "one kept record": lambda fed: [Erase(all_of(fed, KEEPS)[:1])],
    "all of a person who lent half": lambda fed: [Erase(all_of(fed, HALF))],
    "all of one who never shared": lambda fed: [Erase(all_of(fed, KEEPS))],
    "several people at once": lambda fed: [Erase(all_of(fed, 0, HALF, KEEPS))],
    "all who lend": lambda fed: [Erase(fed.world.shared)],
    "all who lend take it back": lambda fed: [Unshare(fed.world.shared)],
    "the same person twice": lambda fed: [Erase(all_of(fed, 0)[:1]), Erase(all_of(fed, 0)[1:])],
    "takes back, then leaves": lambda fed: [Unshare(all_of(fed, 1)), Withdraw(1)],
    "one who never shared leaves": lambda fed: [Withdraw(KEEPS)],
    "two leave": lambda fed: [Withdraw(2), Withdraw(5)],
}


@every_unlearner
@pytest.mark.parametrize("request_", REQUESTS)
def test_any_request_is_answered_and_leaves_no_trace(cls, request_):
    fed = learnt(cls)
    events: list[Event] = REQUESTS[request_](fed)
    for event in events:
        if not cls.answers:  # a control: used by audits, never for an answer
            with pytest.raises(ConfigError, match="answers no request"):
                forget(fed, event, cls(), audits="none")
            fed = unlearn_and_purge(fed, fed.request(event), cls()).fed
            continue
        after, evidence = forget(fed, event, cls(), audits="none")
        assert traces(after, fed.request(event), fed, made=not cls.exact) == {}
        for name, value in after.now.state.public.items():
            assert bool(torch.isfinite(value.double()).all()), name
        assert evidence.receipt.verdict == "UNAUDITED"
        assert cls.exact or evidence.receipt.done.level == "L1"
        fed = after
    assert fed.run(1).now.state.round == fed.now.state.round + 1


@pytest.mark.parametrize("kind", ["erase", "withdraw"])
@pytest.mark.parametrize(
    "cls",
    [c for n, c in UNLEARNERS.items() if not c.exact and c not in MODEL_STAYS],
    ids=[n for n, c in UNLEARNERS.items() if not c.exact and c not in MODEL_STAYS],
)
def test_what_was_never_shared_is_forgotten_too_and_the_model_moves(cls, kind):
    """The person took part, so their updates are in the model."""
    fed = learnt(cls)
    assert int(fed.past.first[KEEPS]) > 0
    event = Withdraw(KEEPS) if kind == "withdraw" else Erase(all_of(fed, KEEPS))
    assert not len(fed.world.shared[fed.world.shared.client == KEEPS])
    after = cls().unlearn(fed, event)
    old, new = fed.now.state.public["item"], after.now.state.public["item"]
    assert not torch.equal(old, new)
    if kind == "withdraw":
        assert not bool(after.world.members[KEEPS])
    if issubclass(cls, FedAccum):  # and no update of theirs is in a log any more
        kept = [read_log(s.values)[0] for s in after.now.state.memory.named(LOG)]
        assert not any(bool((ids == KEEPS).any()) for ids in kept)
    if issubclass(cls, FRU) and kind == "withdraw":
        logged = [rows.owner for _, _, rows in after.now.vault.log.entries]
        assert not any(bool((owner == KEEPS).any()) for owner in logged)


# -- requests that no audit can judge --------------------------------------------------------------


def test_a_request_too_small_to_be_audited_is_answered_exactly_and_the_receipt_says_why():
    fed = learnt(FedShare)
    event = Erase(all_of(fed, 0))
    after, evidence = forget(fed, event, FineTuneUnlearn(rounds=2))
    exact = fed.retrained(event).now.state.public["item"]
    assert torch.equal(after.now.state.public["item"], exact)
    done, (why, who, audit) = evidence.exact.done, evidence.receipt.findings
    assert (done.unlearning, done.level, done.rounds) == ("Retrain", "L3", ROUNDS)
    assert (why.check, who.check) == ("escalation", "exactness")
    assert "FineTuneUnlearn is approximate" in why.note
    assert "too few records to audit it (100 are needed)" in why.note
    assert (audit.verdict, evidence.receipt.verdict) == ("UNAUDITED", "UNAUDITED")


def test_whoever_asks_for_no_audit_gets_the_unlearner_they_named():
    fed = learnt(FedShare)
    event = Erase(all_of(fed, 0))
    _, evidence = forget(fed, event, FineTuneUnlearn(rounds=2), audits="none")
    assert evidence.receipt.done.unlearning == "FineTuneUnlearn (rounds = 2)"
    assert [f.check for f in evidence.receipt.findings] == ["audit"]


def test_without_a_past_there_is_nothing_to_train_again_so_the_unlearner_stays():
    fed = replace(learnt(FedShare), past=None)
    _, evidence = forget(fed, Erase(all_of(fed, 0)), FineTuneUnlearn(rounds=2))
    assert evidence.receipt.done.unlearning == "FineTuneUnlearn (rounds = 2)"
