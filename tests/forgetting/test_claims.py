"""A receipt of an additive learner states a sum; whoever has the data can add it up again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from rescind.cli import app
from rescind.core import params
from rescind.core.claims import ITEMS
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.core.world import Host
from rescind.errors import ConfigError, DataError
from rescind.forgetting.forget import forget
from rescind.methods.additive._additive import rebuilt
from rescind.methods.additive._pairs import weight_of
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.methods.additive.seq_gram import SeqGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.receipts.claims import (
    AFTER,
    BEFORE,
    NEXT,
    OPEN,
    check,
    sum_digest,
)
from rescind.receipts.page import page
from rescind.receipts.parts import PEOPLE
from rescind.receipts.receipt import Issued, sealed, write
from rescind.storage.federations import save_federation
from worlds import lendable, next_block, tiny_holdings

METHODS = [Gram(), Gram(cross=True), Gram(forgetting=0.5), LocalGram(), SeqGram()]
NAMES = ["strict", "cross", "fading", "local", "ordered"]


def lending(method: Gram = METHODS[0]) -> Federation:
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    own = lendable(fed.now.vault.holdings, 0, 2)
    return fed.apply(Share(own[torch.arange(len(own)) % 3 > 0])).run(1)


def request(fed: Federation, kind: type) -> Event:
    return Withdraw(2) if kind is Withdraw else kind(fed.world.shared[fed.world.shared.client == 2])


@pytest.mark.parametrize("kind", [Unshare, Erase, Withdraw])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_receipt_states_the_sum_and_the_remaining_data_give_it(method, kind):
    if kind is Unshare and method.cross:
        pytest.skip("with cross pairs nothing of a loan is in the sum, so taking it back is none")
    fed = lending(method)
    after, evidence = forget(fed, request(fed, kind), audits="none")
    receipt = evidence.exact
    assert receipt.claims[AFTER] == sum_digest(after.now.state.own)
    assert receipt.claims[OPEN] == "0 owed, 0 lost"
    assert check(receipt, after, "the run").holds
    assert not check(receipt, fed, "the run").holds, "the data of before give another sum"
    before = sum_digest(fed.now.state.own)
    assert receipt.claims[BEFORE].startswith("sealed:")
    assert before not in str(receipt)
    assert receipt.claims[BEFORE] == sealed(before, evidence.key)


def whole_and_part(method: Gram) -> Federation:
    """Client 0 lends all that it trains on, client 2 two thirds."""
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    own = lendable(fed.now.vault.holdings, 0, 2)
    return fed.apply(Share(own[(own.client == 0) | (torch.arange(len(own)) % 3 > 0)])).run(1)


@pytest.mark.parametrize(("client", "same"), [(0, True), (2, False)])
def test_where_devices_count_what_was_lent_the_model_stays_and_the_receipt_says_so(
    client, same, tmp_path
):
    fed = whole_and_part(Gram())
    event = Unshare(fed.world.shared[fed.world.shared.client == client])
    after, evidence = forget(fed, event, audits="none")
    weights = [params.digest(one.now.state.public) for one in (fed, after)]
    assert (weights[0] == weights[1]) is same, "one who lent a part gains pairs across"
    receipt, key = evidence.exact, tmp_path / "receipt.key"
    assert receipt.done.level == "L3"
    assert "The records themselves: the device keeps them, and trains on them." in (
        receipt.not_covered
    )
    for text in [one.note for one in receipt.findings] + [one.says for one in receipt.kept]:
        assert "without the records" not in text
        assert "with the records" not in text
        assert " share" not in text, "people lend"
    shown = page(evidence.receipt, key=evidence.key)
    unchanged = "The model is the same as before, bit for bit."
    assert (unchanged in shown) is same
    assert unchanged not in page(evidence.receipt), "a stranger is not told"
    write(Issued(evidence.receipt, evidence.key), tmp_path / "receipt.json")
    ask = ["verify", str(tmp_path / "receipt.json")]
    said = CliRunner().invoke(app, [*ask, "--event-key", str(key)]).output
    assert "Devices keep the records" in said
    assert ("model    the same as before, bit for bit" in said) is same
    assert "never had the records" not in said
    assert "the same as before" not in CliRunner().invoke(app, ask).output


def test_a_receipt_of_retraining_names_the_lent_copy_too():
    fed = Federation.start(tiny_holdings(), FedAvg(model=MF(dim=2)))
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 1))).run(1)
    receipt = forget(fed, Unshare(fed.world.shared), audits="none")[1].exact
    notes = " ".join(one.note for one in receipt.findings)
    assert "The platform trained the rounds again" in notes
    assert "without the records" not in notes, "devices keep them"


def test_the_page_tells_of_the_sum_where_there_is_one():
    fed = lending()
    _, evidence = forget(fed, request(fed, Erase), audits="none")
    told, stated = page(evidence.receipt, key=evidence.key), evidence.exact.claims
    assert "one integer sum over all users" in told
    assert stated[AFTER] in told
    assert stated[BEFORE].startswith("sealed:")
    assert sum_digest(fed.now.state.own) not in told, "the sum before stays sealed"
    plain = replace(evidence.receipt, claims={})
    assert "one integer sum over all users" not in page(plain)
    for_strangers = page(evidence.receipt)
    assert "one integer sum over all users" in for_strangers
    assert stated[AFTER] not in for_strangers


@pytest.mark.parametrize("method", METHODS[:3], ids=NAMES[:3])
def test_blocks_and_hosted_clients_are_added_up_too(method):
    fed = lending(method)
    fed = fed.method.follow(fed, Host(12, tiny_holdings(clients=14, items=14, seed=5)))
    fed = fed.apply(next_block(clients=11, items=16)).run(1)
    held = fed.now.vault.holdings
    more = held.records[(held.split == 0) & (held.block == 1) & (held.records.client == 4)]
    fed = fed.method.follow(fed, Share(more[:1]))
    found = rebuilt(fed.method, fed)
    kept = {n: v for n, v in fed.now.state.own.items() if n.startswith("gram/")}
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name].long()) for name in found)


def test_a_sum_that_was_tampered_with_does_not_pass():
    fed = lending()
    after, evidence = forget(fed, request(fed, Erase), audits="none")
    held = after.now.vault.holdings
    mine = (held.split == 0) & ~held.lent
    other = replace(
        held, split=torch.where(torch.cumsum(mine, 0) == 1, 2, held.split).to(torch.int8)
    )
    odd = after.with_(vault=replace(after.now.vault, holdings=other))
    found = check(evidence.exact, odd, "the run")
    assert not found.holds
    assert "not to the stated sum" in found.says
    fewer = replace(after, world=replace(after.world, shared=after.world.shared[1:]))
    assert "lent records differ" in check(evidence.exact, fewer, "the run").says


def test_what_devices_owe_is_said_and_does_not_pass_as_exact():
    fed = lending()
    away = fed.method.unlearn(fed, fed.request(request(fed, Unshare), away=[2]))
    stated = away.method.claims(fed, away)
    assert stated.plain[OPEN] == "1 owed, 0 lost"
    assert stated.not_covered
    assert away.method.rebuilt(away) != stated.bound[AFTER]
    gone = fed.method.unlearn(fed, fed.request(Withdraw(4), away=[4]))
    assert gone.method.claims(fed, gone).plain[OPEN] == "0 owed, 1 lost"
    assert gone.method.claims(fed, gone).not_covered


def keeper_of(fed: Federation) -> int:
    """Somebody who lends nothing and has something."""
    lends = torch.zeros_like(fed.world.members)
    lends[fed.world.shared.client] = True
    return int((fed.world.announced.keeps & ~lends).nonzero()[0])


def test_the_device_of_one_who_lends_nothing_sends_the_negative_of_what_it_added():
    fed = lending()
    who, seen = keeper_of(fed), []
    mine = fed.now.vault.holdings.of_clients("own", torch.tensor([who])).item
    watched = replace(fed, watch=(lambda moment: seen.append(moment.sums),))
    after, evidence = forget(watched, Withdraw(who), audits="none")
    (sums,) = seen
    (sent,) = sums.values()
    assert not sent.totals["plus/0000"].any()
    weight = int(weight_of(torch.tensor(len(mine))))
    assert sent.totals["minus/0000"].squeeze(1).nonzero().squeeze(1).tolist() == mine.tolist()
    assert set(sent.totals["minus/0000"][mine].flatten().tolist()) == {weight}
    apart = fed.now.state.own["gram/0000"] - after.now.state.own["gram/0000"]
    assert int(apart.sum()) == weight * len(mine) * (len(mine) + 1) // 2
    assert evidence.exact.done.online == {"requester": 1, "others": 0}
    assert evidence.receipt.done.level == "L1", "a callback of others saw the round"
    assert forget(fed, Withdraw(who), audits="none")[1].receipt.done.level == "L3"
    assert check(evidence.exact, after, "the run").holds


def test_a_device_that_is_gone_for_ever_is_said_so_with_what_follows():
    fed = lending()
    who = keeper_of(fed)
    after, evidence = forget(fed, Withdraw(who), audits="none", away=[who])
    receipt = evidence.exact
    assert receipt.claims[OPEN] == "0 owed, 1 lost"
    assert receipt.done.online == {"requester": 0, "others": 0}
    assert receipt.done.level == "L1", "the records are gone, what was counted of them is not"
    found = check(receipt, after, "the run")
    assert not found.holds
    assert "0 owed, 1 lost" in found.says
    # What follows: everybody is counted anew, and the sum is that of a history without them.
    anew = after.restart().run(1)
    assert sum_digest(anew.now.state.own) == sum_digest(
        fed.apply(Withdraw(who)).restart().run(1).now.state.own
    )
    with pytest.raises(ConfigError, match="Only additive methods"):
        forget(fed, Withdraw(who), FedAvg(model=MF(dim=2)), "none", away=[who])


def test_a_release_that_waits_is_no_exact_forgetting_yet():
    fed = lending(Gram(release_every=4))
    who = keeper_of(fed)
    after, evidence = forget(fed, Withdraw(who), audits="standard")
    receipt = evidence.exact
    assert receipt.done.level == "L1"
    assert receipt.claims[NEXT] == "due when 3 more people have changed something"
    assert receipt.verdict == "UNAUDITED"
    assert any("released before the request" in f.note for f in receipt.findings)
    assert check(receipt, after, "the run").holds, "the sum itself has forgotten"


def test_a_method_without_a_sum_claims_nothing_and_is_refused_as_data():
    fed = Federation.start(tiny_holdings(), FedAvg(model=MF(dim=2))).run(1)
    _, evidence = forget(fed, Withdraw(1), audits="none")
    assert set(evidence.receipt.claims) == {"names", PEOPLE, ITEMS}
    with pytest.raises(DataError, match="keeps no sum"):
        check(evidence.receipt, fed, "the run")
    additive = lending()
    assert "states no sum" in check(evidence.receipt, additive, "a run of Gram").says
    _, other = forget(additive, Withdraw(1), audits="none")
    with pytest.raises(DataError, match="FedAvg"):
        check(other.receipt, fed, "the run")


def test_the_digest_does_not_depend_on_how_wide_numbers_are_kept():
    numbers = torch.arange(6)
    assert sum_digest({"gram/0000": numbers.int()}) == sum_digest({"gram/0000": numbers})
    assert sum_digest({"gram/0000": numbers}) == params.digest({"gram/0000": numbers})


def test_the_command_rebuilds_the_sum(tmp_path):
    fed = lending()
    after, evidence = forget(fed, request(fed, Erase), audits="none")
    for name, saved in (("new", after), ("old", fed)):
        save_federation(saved, tmp_path / name / "model")
        write(Issued(evidence.receipt, evidence.key), tmp_path / name / "receipt.json")
    call = ["verify", str(tmp_path / "new" / "receipt.json"), "--data"]
    good = CliRunner().invoke(app, [*call, str(tmp_path / "new")])
    assert good.exit_code == 0, good.output
    assert "add up to the stated sum, bit for bit" in good.output
    bad = CliRunner().invoke(app, [*call, str(tmp_path / "old")])
    assert bad.exit_code == 1
    assert "not to the stated sum" in bad.output
    (tmp_path / "new" / "run.key").unlink()
    closed = CliRunner().invoke(app, [*call, str(tmp_path / "new")])
    assert closed.exit_code == 1
    missing = CliRunner().invoke(app, [*call, str(tmp_path / "nowhere")])
    assert missing.exit_code != 0
    assert f"there is no folder {tmp_path / 'nowhere'}" in missing.output + str(missing.exception)


def test_the_sum_of_nobody_is_zero():
    fed = Federation.start(tiny_holdings(clients=3, items=4), Gram()).run(1)
    for client in range(3):
        fed = fed.method.unlearn(fed, Withdraw(client))
    assert not any(bool(total.any()) for total in rebuilt(fed.method, fed).values())
    assert fed.method.rebuilt(fed) == sum_digest(fed.now.state.own)
    assert len(Records.of([], [])) == len(fed.world.shared)
