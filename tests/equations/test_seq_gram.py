"""SeqGram: ordered pairs in whole numbers, the ridge on them, and what a device notes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Arrive, Erase, Event, Records, Share, Unshare, Withdraw
from rescind.methods.additive import _additive as events
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive._notes import ORDER, ranks
from rescind.methods.additive._ordered import Nearness
from rescind.methods.additive.seq_gram import SeqGram
from worlds import lendable, next_block, silent, tiny_holdings

Times = dict[int, dict[int, int]]
"""When each client's items came: times[client][item]."""


def tied_holdings(clients: int = 7, items: int = 12) -> Holdings:
    """A tiny world in which two or three items of a client share each time."""
    holdings = tiny_holdings(clients, items)
    mine = holdings.records
    return replace(holdings, records=Records(mine.client, mine.item, mine.time * 2 // 5))


def times_now(holdings: Holdings) -> Times:
    now = (holdings.split == TRAIN) & (holdings.block == holdings.now)
    mine, out = holdings.records[now], Times()
    columns = (mine.client.tolist(), mine.item.tolist(), mine.time.tolist())
    for client, item, time in zip(*columns, strict=True):
        out.setdefault(client, {})[item] = time
    return out


def slow_sum(times: Times, items: int, near: Nearness) -> np.ndarray:
    """The slow, obvious sum of ordered pairs. [I, I, 2]"""
    total = np.zeros((items, items, 2), dtype=np.int64)
    for mine in times.values():
        weight = round(4096 / len(mine) ** near.power)
        place = {
            i: sum(t < mine[i] for t in mine.values())
            + (sum(t == mine[i] for t in mine.values()) - 1) / 2
            for i in mine
        }
        for i in mine:
            total[i, i] += weight
            for j in mine:
                if mine[i] < mine[j]:
                    apart = place[j] - place[i]
                    for k, reach in enumerate(near.reach):
                        decay = round(4096 * math.exp(-apart / reach))
                        total[i, j, k] += weight * decay // 4096
                elif mine[i] == mine[j] and i != j:
                    total[i, j] += weight // 2
    return total


def stored(total: np.ndarray) -> torch.Tensor:
    """The square in the order in which new items append."""
    items = len(total)
    flat = np.zeros((items**2, 2), dtype=np.int64)
    for i in range(items):
        for j in range(items):
            flat[j * j + i if i < j else i * i + i + j] = total[i, j]
    return torch.tensor(flat)


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_the_sum_equals_the_slow_one(executor):
    method, holdings = SeqGram(near=2.5, far=6.0), tied_holdings()
    fed = Federation.start(holdings, method, executor=executor).run(1)
    slow = slow_sum(times_now(holdings), 12, method.nearness)
    assert torch.equal(fed.now.state.own["gram/0000"].long(), stored(slow))
    assert np.array_equal(ordered.square(stored(slow)[:, 1], 12).numpy(), slow[:, :, 1])


def test_weights_and_scores_equal_the_slow_ones():
    method, holdings = (
        SeqGram(near=3.0, far=7.0, ridge=2.0, recent=2.0, own_power=0.15),
        tied_holdings(),
    )
    fed = Federation.start(holdings, method).run(1)
    times = times_now(holdings)
    near, far = np.moveaxis(slow_sum(times, 12, method.nearness) / 4096, 2, 0)
    each = np.diag(near).copy()
    assert np.array_equal(each, np.diag(far))
    near, far = near - np.diag(each), far - np.diag(each)
    both = near + near.T + np.diag(each + 2.0 + 0.3 * each)
    weights = np.linalg.solve(both, far + 0.5 * far.T)
    rare = 1 / (each + 2.0)
    weights *= np.outer(rare**0.15, rare**0.5)
    assert_close(fed.now.state.public["weights"], torch.tensor(weights).float())
    client = 2
    mine = times[client]
    x = np.zeros(12)
    for i in mine:
        later = sum(t > mine[i] for t in mine.values())
        tied = sum(t == mine[i] for t in mine.values()) - 1
        x[i] = 0.1 + 0.9 * math.exp(-(later + tied / 2) / 2.0)
    ids = torch.tensor([client])
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    scores = method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort)
    assert_close(scores[0], torch.tensor(x @ weights).float())


def test_what_comes_next_is_recommended_before_what_came_earlier():
    # Eight people have 0, 1, 2 in this order; the ninth has 1 only. 2 follows, 0 does not.
    rows = [(u, i, 10 * u + i) for u in range(8) for i in range(3)] + [(8, 1, 99)]
    records = Records.of(*zip(*rows, strict=True))
    holdings = Holdings.of(records, torch.zeros(len(records)), 9, 3)
    for method, differ in ((SeqGram(back=0.0, ridge=1.0), True), (SeqGram(back=1.0), False)):
        fed = Federation.start(holdings, method).run(1)
        ids = torch.tensor([8])
        cohort = InProcess().cohort(method, fed.now.vault, ids)
        first, _, last = method.client_scores(
            fed.now.state.public, fed.now.vault.read(ids), cohort
        )[0].tolist()
        assert (last > first + 0.01) == differ


def test_equal_times_share_the_mean_of_their_places():
    # Owner 0 has times 5, 3, 5, 9: places 1.5, 0, 1.5, 3, doubled. Owner 1 has one time only.
    lot = Lot(
        torch.tensor([0, 0, 0, 0, 1, 1]),
        torch.tensor([1, 4, 6, 7, 0, 4]),
        2,
        torch.tensor([5, 3, 5, 9, 8, 8]),
    )
    assert ranks(lot).tolist() == [3, 0, 3, 6, 1, 1]
    assert ranks(replace(lot, time=None)).tolist() == [3, 3, 3, 3, 1, 1]


def test_ids_do_not_decide_where_all_times_are_equal():
    holdings = tiny_holdings()
    mine = holdings.records
    tied = replace(holdings, records=Records(mine.client, mine.item, torch.zeros_like(mine.time)))
    total = Federation.start(tied, SeqGram()).run(1).now.state.own["gram/0000"]
    for full in (ordered.square(total[:, k], 12) for k in range(2)):
        assert torch.equal(full, full.T)
        assert float(full.sum()) > 0


# -- what a device notes --------------------------------------------------------------------------


def test_a_note_keeps_the_order_and_no_time():
    lot = Lot(torch.tensor([0, 0, 0]), torch.tensor([1, 4, 6]), 1, torch.tensor([900, 70, 900]))
    table = ORDER.of(lot, 8)
    assert table.tolist() == [[0, 2, 0, 0, 1, 0, 2, 0]]
    assert ranks(ORDER.read(table)).tolist() == ranks(lot).tolist() == [3, 0, 3]
    left = ORDER.without(table, Lot(torch.tensor([0]), torch.tensor([4]), 1))
    assert ranks(ORDER.read(left)).tolist() == [1, 1]


@pytest.mark.parametrize(("again", "place"), [(-1.0, "last"), (1.0, "first")])
def test_items_of_earlier_blocks_come_last_or_first(again, place):
    method = SeqGram(again=again)
    fed = Federation.start(tied_holdings(), method).run(1)
    noted = times_now(fed.now.vault.holdings)
    fed = fed.apply(next_block(7, 14)).run(1)
    ids = torch.arange(7)
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    scores = method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort)
    for client, mine in noted.items():
        old = torch.zeros(14, dtype=torch.bool)
        old[list(mine)] = True
        low, high = (old, ~old) if place == "last" else (~old, old)
        assert float(scores[client][low].max()) < float(scores[client][high].min()) + 1e-6, client


def test_earlier_items_count_in_a_recommendation():
    plain, more = SeqGram(), SeqGram(earlier=0.5)
    fed = Federation.start(tied_holdings(), more).run(1)
    noted = times_now(fed.now.vault.holdings)
    fed = fed.apply(next_block(7, 14)).run(1)
    ids, public = torch.arange(7), fed.now.state.public
    cohort = InProcess().cohort(more, fed.now.vault, ids)
    private = fed.now.vault.read(ids)
    difference = more.client_scores(public, private, cohort) - plain.client_scores(
        public, private, cohort
    )
    for client in range(7):
        rows = public["weights"][list(noted.get(client, {}))].sum(0)
        assert_close(difference[client], 0.5 * rows)
    assert silent(7) not in noted


# -- forgetting in a stream -----------------------------------------------------------------------


@dataclass
class Ledger:
    """The slow, obvious twin: what remains of every block, with its times."""

    earlier: list[Times] = field(default_factory=list)

    def see(self, event: Event, before: Holdings) -> None:
        if isinstance(event, Arrive):
            self.earlier.append(times_now(before))
        elif isinstance(event, Withdraw):
            for times in self.earlier:
                times.pop(event.client, None)
        elif isinstance(event, Erase):
            for client, item in zip(
                event.records.client.tolist(), event.records.item.tolist(), strict=True
            ):
                for times in self.earlier:
                    times.get(client, {}).pop(item, None)

    def sums(self, fed: Federation) -> dict[str, torch.Tensor]:
        method, items = fed.method, fed.world.sizes.items
        every = [*self.earlier, times_now(fed.now.vault.holdings)]
        parts = [
            stored(slow_sum({c: mine for c, mine in times.items() if mine}, items, method.nearness))
            for times in every
        ]
        if method.forgetting == 1:
            parts = [torch.stack(parts).sum(0)]
        return {f"gram/{block:04d}": total for block, total in enumerate(parts)}


def same_sum(fed: Federation, ledger: Ledger) -> None:
    own = {n: v.long() for n, v in fed.now.state.own.items() if n.startswith("gram/")}
    assert params.digest(own) == params.digest(ledger.sums(fed))
    assert fed.method.rebuilt(fed) == events.sum_digest(own)


def some(holdings: Holdings, client: int, step: int = 2) -> Records:
    now = (holdings.split == TRAIN) & (holdings.block == holdings.now)
    mine = holdings.records[now & (holdings.records.client == client)]
    return mine[torch.arange(len(mine)) % step == 0]


@pytest.mark.parametrize("few", [0, 32])
@pytest.mark.parametrize("delta", [1.0, 0.5])
def test_after_requests_in_a_stream_the_sum_is_that_of_what_remains(few, delta, monkeypatch):
    monkeypatch.setattr(events, "ALONE", few)  # devices answer in one sum, or each alone
    method = SeqGram(forgetting=delta, near=3.0)
    fed, ledger = Federation.start(tied_holdings(), method).run(1), Ledger()

    def after(fed: Federation, event: Event) -> Federation:
        before = fed.now.vault.holdings
        fed = method.follow(fed, event)
        ledger.see(event, before)
        same_sum(fed, ledger)
        return fed

    old = some(fed.now.vault.holdings, 3)
    fed = after(fed, Share(lendable(fed.now.vault.holdings, 0, 1, 3)))
    fed = after(fed, Unshare(lendable(fed.now.vault.holdings, 0)))
    fed = after(fed, Erase(some(fed.now.vault.holdings, 2)))
    fed = after(fed, next_block(8, 14, seed=3))
    fed = after(fed, Erase(old))  # of a block that is over: the device has only its note
    fed = after(fed, Erase(some(fed.now.vault.holdings, 1)))
    fed = after(fed, next_block(8, 15, seed=4))
    fed = after(fed, Withdraw(4))
    fed = after(fed, Withdraw(3))
    fed = after(fed, Unshare(fed.world.shared))
    solved = method.server_weights(ledger.sums(fed))
    assert torch.equal(fed.now.state.public["weights"], solved)


def test_who_never_came_leaves_the_same_state_as_who_withdrew():
    holdings = tied_holdings()
    method = SeqGram()
    gone = Federation.start(holdings, method).run(1)
    gone = method.follow(method.follow(gone, next_block(7, 14)), Withdraw(2))
    never = Federation.start(holdings, method).apply(Withdraw(2)).run(1)
    never = method.follow(never, next_block(7, 14))
    assert events.sum_digest(gone.now.state.own) == events.sum_digest(never.now.state.own)
    weights = [fed.now.state.public["weights"] for fed in (gone, never)]
    assert torch.equal(*weights)


# -- the compiled form, and settings --------------------------------------------------------------


def test_the_compiled_loop_adds_what_the_readable_form_lists():
    clock, people, items = Clock(5), 40, 30
    has = clock.uniform("has", torch.arange(people).unsqueeze(1), torch.arange(items)) < 0.3
    owner, item = has.nonzero().unbind(1)
    time = clock.integers("time", torch.arange(len(owner)), 0, 6)
    lot, near = Lot(owner, item, people, time), Nearness((1.0, 3.0), 0.25)
    sign = torch.where(torch.arange(people) % 3 == 0, -1, 1)
    part, place, value = ordered.ordered_pairs(lot, near)
    signed = value * sign[part].unsqueeze(1)
    expected = torch.zeros(items**2, 2).long().index_add_(0, place, signed)
    total, owners = ordered.ordered_sums(lot, sign, items, near)
    assert torch.equal(total, expected)
    assert torch.equal(owners, torch.bincount(place, minlength=items**2))
