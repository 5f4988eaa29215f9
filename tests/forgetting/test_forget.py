"""Forgetting from the request to the receipt, and a canary that must be found nowhere after."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
import torch

from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.records import Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.request import Request
from rescind.errors import BoundaryError, ConfigError
from rescind.forgetting.forget import Evidence, forget
from rescind.forgetting.pipeline import CostMeter
from rescind.forgetting.purge import inventory, purge, traces
from rescind.methods._lent_graph.graph import _KNOWN
from rescind.methods.additive.gram import Gram
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.privacy.keys import own_public_key
from rescind.receipts.receipt import finish
from rescind.receipts.verify import verify
from worlds import lendable, tiny_holdings

METHOD = FedShare(
    model=LightGCN(dim=4), clients_per_round=6, refine_pairs=16, contrast_items=4, private_rate=0.1
)
CANARY = 3


def begin() -> Federation:
    fed = Federation.start(tiny_holdings(12, 15), METHOD, seed=1, keep_every=2)
    return fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, CANARY))).run(6)


def canary(fed: Federation) -> Records:
    return lendable(fed.now.vault.holdings, CANARY)


@dataclass(frozen=True, kw_only=True)
class Keeps(FedShare):
    """An unlearner that only applies the event: the model and everything beside it stay."""

    exact = False

    def forget(self, fed: Federation, request: Request) -> Federation:
        return replace(fed.apply(request.event), method=self)


@dataclass(frozen=True, kw_only=True)
class Refuses(FedShare):
    """An unlearner that does not even do that."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return fed


def keeper(kind: type[FedShare]) -> FedShare:
    return kind(**vars(METHOD))


def test_without_an_audit_the_receipt_is_made_when_it_is_read(monkeypatch):
    from rescind.forgetting import forget as module
    from rescind.methods.additive.gram import Gram

    fed = Federation.start(tiny_holdings(12, 15), Gram())
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, CANARY))).run(1)
    made = []
    monkeypatch.setattr(module, "finish", lambda *a, **k: made.append(a) or finish(*a, **k))
    after, evidence = forget(fed, Withdraw(CANARY), audits="none")
    before = weakref.ref(fed.now.vault.holdings)
    done = datetime.now(UTC)
    del fed
    assert not made
    assert before() is not None
    assert evidence.exact.claims["sum after"] == after.method.rebuilt(after)
    assert evidence.receipt.done.level == "L3"
    assert evidence.receipt.time <= done.strftime("%Y-%m-%dT%H:%M:%SZ"), "when it was forgotten"
    assert evidence.receipt is evidence.receipt
    assert len(made) == 1
    gc.collect()
    assert before() is None, "a receipt that is made keeps nothing"


def test_the_canary_is_everywhere_before():
    fed = begin()
    found = traces(fed, fed.request(Erase(canary(fed))), fed)
    assert set(found) == {
        "the server's copy",
        "devices",
        "the past",
        "the story",
        "server rows 'user'",
        "server rows 'refine/server/first/user'",
        "server rows 'refine/server/second/user'",
        "snapshots",
        "points",
    }


@pytest.mark.parametrize("method", [None, "keeps"])
@pytest.mark.parametrize("kind", ["unshare", "erase", "withdraw"])
def test_the_canary_is_nowhere_after(kind, method):
    fed = begin()
    event: Event = {
        "unshare": Unshare(canary(fed)),
        "erase": Erase(canary(fed)),
        "withdraw": Withdraw(CANARY),
    }[kind]
    after, evidence = forget(fed, event, method and keeper(Keeps), audits="none")
    assert traces(after, fed.request(event), fed) == {}
    assert not set(after.world.shared.client.tolist()) & {CANARY}
    mine = after.now.vault.holdings.records.client == CANARY
    assert bool(mine.any()) == (kind != "withdraw")
    held_out = int((fed.now.vault.holdings.records.client == CANARY).sum()) - len(canary(fed))
    expected = {"unshare": held_out + len(canary(fed)), "erase": held_out, "withdraw": 0}
    assert int(mine.sum()) == expected[kind]
    first = METHOD.client_init(torch.tensor([CANARY]), fed.clock)["user"]
    if kind != "unshare":
        assert torch.equal(after.now.vault.private["user"][[CANARY]], first)
    assert evidence.receipt.asked.kind == type(event).__name__
    assert evidence.receipt.done.level == ("L3" if method is None else "L1")


def test_graphs_of_the_past_are_not_kept_in_a_cache():
    fed = begin()
    after, _ = forget(fed, Erase(canary(fed)), audits="none")
    lent = weakref.ref(fed.world.shared)
    assert lent() in _KNOWN
    del fed
    gc.collect()
    assert lent() is None, "nobody holds what was lent, so the cache has dropped its graph"
    assert after.world.shared in _KNOWN


def test_a_method_that_leaves_traces_is_a_defect_not_a_receipt():
    fed = begin()
    with pytest.raises(BoundaryError, match=r"left traces of the request: .* in the server's copy"):
        forget(fed, Unshare(canary(fed)), keeper(Refuses), audits="none")


def test_what_the_server_keeps_of_a_sum_is_named_so():
    for method, says in ((Gram(), "Sums over what"), (METHOD, "Rows of people who lend")):
        fed = Federation.start(tiny_holdings(12, 15), method, seed=1)
        kept = {one.name: one.says for one in inventory(fed)}
        assert kept["server's own values"].startswith(says)


def test_private_values_of_one_process_are_not_said_to_be_on_devices_of_people():
    fed = Federation.start(tiny_holdings(12, 15), METHOD, seed=1)
    remote = replace(fed, executor=object())  # control: whatever is not this process
    for one, says in ((fed, "a simulated device, on the operator's"), (remote, "of its owner")):
        kept = {line.name: line.says for line in inventory(one)}
        assert says in kept["private values on devices"]


def test_exact_forgetting_says_what_it_cost():
    fed = begin()
    after, evidence = forget(fed, Unshare(canary(fed)), audits="none")
    done = evidence.exact.done
    assert done.unlearning == "Retrain"
    assert done.rounds == 6
    assert done.client_rounds == done.rounds * 6
    assert 0 < done.online["others"] <= 11
    assert done.model_after == params.digest(after.now.state.public)
    kept = {k.name: k.bytes for k in evidence.exact.kept}
    assert kept == {k.name: k.bytes for k in inventory(after)}
    assert kept["model"] == params.nbytes(after.now.state.public)
    assert kept["points to go back to"] == after.past.nbytes > 0


def test_evidence_shows_how_many_took_part_and_not_who():
    cost = CostMeter(rounds=2, participants=set(range(1892)))
    shown = repr(
        Evidence(lambda: pytest.fail("it is only shown"), lambda _: pytest.fail("too"), cost=cost)
    )
    assert "rounds=2" in shown
    assert "participants=1892 people" in shown
    assert len(shown) < 200


def test_one_who_never_took_part_costs_nothing():
    fed = Federation.start(tiny_holdings(12, 15), METHOD, seed=1).run(1)
    never = next(c for c in range(12) if int(fed.past.first[c]) == 0 and fed.world.available[c])
    after, evidence = forget(fed, Withdraw(never), audits="none")
    assert evidence.exact.done.rounds == 0
    assert params.digest(after.now.state.public) == params.digest(fed.now.state.public)


def test_the_receipt_verifies_and_the_next_one_is_chained(tmp_path):
    from rescind.receipts.receipt import Issued, canonical, write

    fed = begin()
    event = Unshare(canary(fed)[:2])
    after, first = forget(fed, event, audits="none")
    path = tmp_path / "receipt.json"
    write(Issued(first.receipt, first.key), path)
    pinned = {own_public_key() or "": "mine"}
    assert verify(path.read_bytes(), pinned).valid
    again, second = forget(
        after, Erase(canary(after)), audits="none", previous=canonical(first.receipt)
    )
    assert second.receipt.previous.startswith("sha256:")
    assert len(again.world.shared) < len(after.world.shared)


def test_only_requests_to_forget_are_answered():
    fed = begin()
    with pytest.raises(ConfigError, match="no Unshare, Erase or Withdraw"):
        forget(fed, Join(12))
    with pytest.raises(ConfigError, match="standard, full, none"):
        forget(fed, Withdraw(2), audits="some")  # type: ignore[arg-type]


def test_purge_leaves_an_exact_model_alone():
    fed = begin()
    event = Unshare(canary(fed)[:1])
    exact = fed.retrained(event)
    assert params.digest(
        purge(fed, exact, fed.request(event), True).now.state.own
    ) == params.digest(exact.now.state.own)
    assert isinstance(exact.method, Method)
