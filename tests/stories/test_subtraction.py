"""People lend, keep, regret and leave; what is left is the sum of those who stayed, exactly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core import named, params
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.tasks.metrics import top_k
from rescind.core.update import Sum
from rescind.core.world import Host
from rescind.data.simulated_lending import draw_regret, draw_share
from rescind.errors import ConsentError
from rescind.methods.additive import _additive as gram_events
from rescind.methods.additive._exchange import outstanding
from rescind.methods.additive._pairs import mirrored, square, weight_of
from rescind.methods.additive._solve import inverse_of
from rescind.methods.additive._solving import Ridge, half
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation, save_federation
from worlds import lendable, next_block, tiny_holdings

Sets = dict[int, set[int]]


@dataclass
class Ledger:
    """The slow, obvious twin: who has what counted, in plain sets."""

    items: int
    block: int = 0
    lent: dict[tuple[int, int], int] = field(default_factory=dict)
    earlier: list[Sets] = field(default_factory=list)

    def see(self, event: Event, before: Holdings) -> None:
        """Write down what an event does to loans and to blocks that are over."""
        if isinstance(event, Arrive):
            self.earlier.append(kept_now(before))
            self.block, self.items = self.block + 1, event.items
        elif isinstance(event, Withdraw):
            self.lent = {p: b for p, b in self.lent.items() if p[0] != event.client}
            for sets in self.earlier:
                sets.pop(event.client, None)
        elif isinstance(event, Share | Unshare | Erase):
            pairs = set(
                zip(event.records.client.tolist(), event.records.item.tolist(), strict=True)
            )
            if isinstance(event, Share):
                self.lent |= {p: self.block for p in pairs if p not in self.lent}
            else:
                self.lent = {p: b for p, b in self.lent.items() if p not in pairs}
            if isinstance(event, Erase):
                for sets in self.earlier:
                    for client, item in pairs:
                        sets.get(client, set()).discard(item)

    def grams(self, holdings: Holdings) -> list[torch.Tensor]:
        """The lower half of the sum of each block, from what remains."""
        out = []
        for block in range(self.block + 1):
            loans: Sets = {}
            for (client, item), when in self.lent.items():
                if when == block:
                    loans.setdefault(client, set()).add(item)
            kept = kept_now(holdings) if block == self.block else self.earlier[block]
            total = [0] * half(self.items)
            for mine in (*loans.values(), *kept.values()):
                weight = int(weight_of(torch.tensor(len(mine))))
                for i in mine:
                    for j in mine:
                        if i >= j:
                            total[i * (i + 1) // 2 + j] += weight
            out.append(torch.tensor(total))
        return out


def kept_now(holdings: Holdings) -> Sets:
    kept: Sets = {}
    lot = holdings.of_clients("unshared", torch.arange(holdings.clients))
    for client, item in zip(lot.owner.tolist(), lot.item.tolist(), strict=True):
        kept.setdefault(client, set()).add(item)
    return kept


@dataclass
class Dice:
    """Numbers one after another, from the clock."""

    clock: Clock
    thrown: int = 0

    def below(self, many: int) -> int:
        self.thrown += 1
        return int(self.clock.integers("dice", torch.tensor(self.thrown), 0, many))

    def some(self, kind: type, records: Records) -> Event | None:
        """An event about one to five of these records."""
        chosen = [self.below(len(records)) for _ in range(1 + self.below(5)) if len(records)]
        return kind(records[torch.tensor(chosen)]) if chosen else None


def draw(fed: Federation, dice: Dice) -> Event:
    """Somebody does something that fits the world as it is."""
    holdings, world = fed.now.vault.holdings, fed.world
    current = (holdings.split == 0) & (holdings.block == holdings.now)
    gone = (~world.members).nonzero().squeeze(1).tolist()
    here = world.members.nonzero().squeeze(1).tolist()
    event: Event | None = None
    while event is None:
        kind = dice.below(50)
        if kind < 17:
            event = dice.some(Share, holdings.records[current & ~holdings.lent])
        elif kind < 31:
            event = dice.some(Unshare, world.shared)
        elif kind < 42:
            event = dice.some(Erase, holdings.records[current | holdings.lent])
        elif kind < 45 and len(here) > 2:
            event = Withdraw(here[dice.below(len(here))])
        elif kind < 48 and gone:
            event = Join(gone[dice.below(len(gone))])
        elif kind >= 48:
            items = min(world.sizes.items + dice.below(2), 20)
            event = next_block(world.sizes.clients, items, seed=dice.below(1000))
    return event


def live(method: Gram, many: int, seed: int = 0, every: int = 1) -> tuple[Federation, Ledger]:
    """A federation after so many random events, compared with the ledger on the way."""
    fed = Federation.start(tiny_holdings(clients=8, items=13), method, seed).run(1)
    ledger, dice = Ledger(items=13), Dice(Clock(seed))
    for step in range(many):
        event, before = draw(fed, dice), fed.now.vault.holdings
        fed = method.follow(fed, event)
        ledger.see(event, before)
        if step % every == 0 or step == many - 1:
            same_sum(fed, ledger)
    return fed, ledger


def same_sum(fed: Federation, ledger: Ledger) -> None:
    """The sums of the federation have the digest of sums made from what remains."""
    blocks = ledger.grams(fed.now.vault.holdings)
    if fed.method.forgetting == 1:
        blocks = [torch.stack(blocks).sum(0)]
    expected = {f"gram/{b:04d}": total for b, total in enumerate(blocks)}
    found = {n: v.long() for n, v in fed.now.state.own.items() if n.startswith("gram/")}
    assert params.digest(found) == params.digest(expected)


def solved_anew(fed: Federation) -> torch.Tensor:
    own, method = fed.now.state.own, fed.method
    names = sorted(n for n in own if n.startswith("gram/"))
    grams = [(own[n], method.forgetting ** (len(names) - 1 - k)) for k, n in enumerate(names)]
    return inverse_of(grams, fed.world.sizes.items, Ridge(method.ridge, method.ridge_per_item))


def same_lists(fed: Federation, inverse: torch.Tensor) -> bool:
    """Whether everybody gets the same list from another inverse of the same sum."""
    ids = torch.arange(fed.world.sizes.clients)
    cohort = InProcess().cohort(fed.method, fed.now.vault, ids)
    lists = []
    for each in (fed.now.state.own["inverse"], inverse):
        public = fed.method.server_public({"inverse": each}, fed.world)
        scores = fed.method.client_scores(public, fed.now.vault.read(ids), cohort)
        # In a world this small every item is listed; what differs by rounding only is a tie.
        lists.append(top_k(scores.double().mul(1e9).round(), cohort.own, 20))
    return torch.equal(*lists)


# -- any order, any number ------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Gram(solve_above=1.0), Gram(forgetting=0.5, solve_above=1.0)])
def test_after_any_events_the_sum_is_that_of_what_remains(method):
    fed, _ = live(method, many=25, every=4)
    assert_close(fed.now.state.own["inverse"], solved_anew(fed), atol=1e-15, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        Gram(solve_above=1.0, resolve_every=10**6),
        Gram(forgetting=0.5, solve_above=1.0, resolve_every=10**6),
        Gram(ridge_per_item=0.3),
        Gram(),
    ],
)
def test_a_thousand_events_leave_the_digest_of_what_remains(method):
    fed, _ = live(method, many=1000, seed=1, every=7)
    inverse = solved_anew(fed)
    error = float((fed.now.state.own["inverse"] - inverse).abs().max() / inverse.abs().max())
    assert error < 1e-12
    assert same_lists(fed, inverse)


def test_the_order_of_events_does_not_matter():
    fed = lending().run(1)
    holdings = fed.now.vault.holdings
    mine = lendable(holdings, 2)
    two = [
        Unshare(lendable(holdings, 0)),
        Erase(mine[:2]),
        Withdraw(3),
        Share(lendable(holdings, 5)),
    ]
    one = other = fed
    for event in two:
        one = fed.method.follow(one, event)
    for event in reversed(two):
        other = fed.method.follow(other, event)
    assert params.digest(sums_of(one)) == params.digest(sums_of(other))
    assert_close(one.now.state.public["weights"], other.now.state.public["weights"])


def lending(method: Gram | None = None, executor: InProcess | None = None) -> Federation:
    """Nine people: two lend everything, three a part, four nothing."""
    fed = Federation.start(tiny_holdings(clients=9, items=14), method or Gram(), 2, executor)
    groups = torch.tensor([2, 2, 1, 1, 1, 0, 0, 0, 0])
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def sums_of(fed: Federation) -> dict[str, torch.Tensor]:
    names = ("gram/", "lent/")
    return {n: v for n, v in fed.now.state.own.items() if n.startswith(names)}


def part(fed: Federation, kind: type, client: int) -> Event:
    """Half of what somebody lends, or of what they keep."""
    holdings = fed.now.vault.holdings
    pool = fed.world.shared if kind is Unshare else lendable(holdings, client)
    mine = pool[pool.client == client]
    return kind(mine[torch.arange(len(mine)) % 2 == 0])


EVENTS = {
    "withdraw one who lends a part": lambda fed: Withdraw(3),
    "withdraw one who keeps all": lambda fed: Withdraw(6),
    "withdraw one who lends all": lambda fed: Withdraw(0),
    "erase some of a keeper": lambda fed: part(fed, Erase, 6),
    "erase some of a lender": lambda fed: part(fed, Erase, 2),
    "erase everything of one": lambda fed: Erase(lendable(fed.now.vault.holdings, 4)),
    "unshare all": lambda fed: Unshare(fed.world.shared),
    "unshare what somebody lends who keeps nothing": lambda fed: part(fed, Unshare, 1),
    "share more": lambda fed: part(fed, Share, 5),
    "regret": lambda fed: Unshare(draw_regret(fed.world.shared, fed.clock, 0.5)),
}


def test_somebody_named_by_an_original_id_is_subtracted_like_one_named_by_an_index():
    fed = lending(Gram()).run(1)
    user = fed.labels.user_id(3)
    by_name, by_index = (Gram().follow(fed, one) for one in (named.Withdraw(user), Withdraw(3)))
    assert params.digest(sums_of(by_name)) == params.digest(sums_of(by_index))
    assert params.digest(sums_of(by_name)) != params.digest(sums_of(fed))


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("few", [0, 32])
@pytest.mark.parametrize("method", [Gram(), Gram(cross=True), Gram(ridge_per_item=0.3)])
def test_forgetting_is_never_having_had_it(name, few, method, monkeypatch):
    monkeypatch.setattr(gram_events, "ALONE", few)  # devices answer in one sum, or each alone
    fed = lending(method).run(1)
    event = EVENTS[name](fed)
    after = method.follow(fed, event)
    without = fed.apply(event).restart().run(1)
    assert params.digest(sums_of(after)) == params.digest(sums_of(without))
    if not (method.cross and isinstance(event, Share | Unshare)):  # a loan is not counted there
        assert params.digest(sums_of(after)) != params.digest(sums_of(fed))
    assert_close(
        after.now.state.own["inverse"], without.now.state.own["inverse"], atol=1e-15, rtol=1e-11
    )
    assert after.world.digest() == without.world.digest()
    assert after.now.state.round == fed.now.state.round
    again = after.run(1)
    assert params.digest(sums_of(again)) == params.digest(sums_of(after)), "nothing was left over"
    assert not outstanding(after.now.state.own)


def test_one_by_one_forgets_the_same():
    digests = set()
    for executor in (InProcess(), OneByOne()):
        fed = lending(executor=executor).run(1)
        for name in ("erase some of a lender", "withdraw one who lends a part"):
            fed = fed.method.unlearn(fed, EVENTS[name](fed))
        digests.add(params.digest(sums_of(fed)))
    assert len(digests) == 1


def test_the_last_owner_of_an_item_takes_every_trace_of_it_along():
    fed = lending(Gram(solve_above=1.0)).run(1)
    records = fed.now.vault.holdings.records
    item = 3
    owners = torch.unique(records.client[(records.item == item) & (records.client < 9)])
    after = fed
    for client in owners.tolist():
        after = after.method.unlearn(after, Withdraw(client))
    inverse = mirrored(after.now.state.own["inverse"])
    assert int(after.now.state.own["changes"]) > 0, "changed, not solved anew"
    assert int(inverse[item].count_nonzero()) == 1
    assert float(inverse[item, item]) == 1 / after.method.ridge
    assert not after.now.state.public["weights"][item].any()


def test_what_was_there_before_stays_a_value():
    fed = lending().run(1)
    before = params.digest(fed.now.state.own), params.digest(fed.now.vault.private)
    fed.method.unlearn(fed, Withdraw(3))
    fed.method.unlearn(fed, part(fed, Erase, 6))
    assert (params.digest(fed.now.state.own), params.digest(fed.now.vault.private)) == before


def test_before_the_first_round_there_is_nothing_to_subtract():
    fed = lending()
    after = fed.method.unlearn(fed, Withdraw(3)).run(1)
    assert params.digest(sums_of(after)) == params.digest(sums_of(fed.apply(Withdraw(3)).run(1)))


def test_a_request_that_does_not_fit_changes_nothing():
    fed = lending().run(1)
    with pytest.raises(ConsentError, match="does not share"):
        fed.method.unlearn(fed, Unshare(lendable(fed.now.vault.holdings, 6)))
    with pytest.raises(ConsentError, match="not a member"):
        fed.method.unlearn(fed, Withdraw(77))


class Silent(InProcess):
    """Devices that do not answer when something is to be subtracted, as of a silo that is away."""

    def train(self, *words, **more):
        sums, vault = super().train(*words, **more)
        return {role: Sum({}, 0.0, 0, refused={"no answer": 2}) for role in sums}, vault


@pytest.mark.parametrize("few", [0, 32])
def test_an_event_of_which_a_part_was_not_subtracted_is_refused(few, monkeypatch):
    """As one sum of many devices, or one by one: it would count as done."""
    monkeypatch.setattr(gram_events, "ALONE", few)
    fed = lending().run(1)
    event = Erase(fed.now.vault.holdings.records[:8])
    silent = replace(fed, executor=Silent())
    with pytest.raises(ConsentError, match="2 no answer"):
        fed.method.follow(silent, event)
    after = fed.method.follow(fed, event)
    assert params.digest(sums_of(after)) != params.digest(sums_of(fed)), "control"


def test_a_saved_federation_forgets_as_the_living_one(tmp_path):
    fed = lending().run(1)
    back = load_federation(save_federation(fed, tmp_path / "model"))
    for event in (part(fed, Erase, 2), Withdraw(6)):
        fed, back = fed.method.follow(fed, event), back.method.follow(back, event)
    assert params.digest(fed.now.state.own) == params.digest(back.now.state.own)


# -- nobody home ----------------------------------------------------------------------------------


def test_what_was_lent_is_forgotten_with_no_device_online():
    fed = lending().run(1)
    gone = Erase(lendable(fed.now.vault.holdings, 0))  # lends all: no device is needed
    after = fed.method.unlearn(fed, fed.request(gone, away=range(9)))
    without = fed.apply(gone).restart().run(1)
    assert params.digest(sums_of(after)) == params.digest(sums_of(without))
    assert not outstanding(after.now.state.own).lost.tolist()


def test_a_device_that_was_away_sends_the_difference_when_it_is_back():
    fed = lending().run(1)
    event = part(fed, Unshare, 2)
    after = fed.method.unlearn(fed, fed.request(event, away=[2]))
    assert outstanding(after.now.state.own).owes.tolist() == [2]
    # The loan itself is gone at once: less one old part of person 2, plus what they still lend.
    assert not len(after.world.shared[after.world.shared.among(event.records)])
    exact = fed.method.follow(fed, event)
    assert params.digest(sums_of(after)) != params.digest(sums_of(exact))
    home = after.run(1)
    assert params.digest(sums_of(home)) == params.digest(sums_of(exact))
    assert not outstanding(home.now.state.own)


def test_a_device_that_is_gone_for_good_is_said_to_be_lost():
    fed = lending().run(1)
    kept = kept_now(fed.now.vault.holdings)[3]
    after = fed.method.unlearn(fed, fed.request(Withdraw(3), away=[3]))
    exact = fed.method.unlearn(fed, Withdraw(3))
    assert outstanding(after.now.state.own).lost.tolist() == [3]
    stays = after.now.state.own["gram/0000"] - exact.now.state.own["gram/0000"]
    weight = int(weight_of(torch.tensor(len(kept))))
    assert int(stays.sum()) == weight * len(kept) * (len(kept) + 1) // 2, "just what they kept"
    anew = after.restart().run(1)  # everybody is counted anew: the only way to lose it
    assert params.digest(sums_of(anew)) == params.digest(sums_of(exact))
    assert not outstanding(anew.now.state.own)


def test_who_comes_back_after_leaving_is_counted_again():
    fed = lending().run(1)
    left = fed.method.unlearn(fed, Withdraw(6))
    back = left.method.follow(left, Join(6))
    block = next_block(clients=9, items=14)
    after = back.method.follow(back, block)
    assert int(after.now.state.own["counted"][6]) == 1
    without = left.method.follow(left, block)
    assert params.digest(sums_of(after)) != params.digest(sums_of(without))


# -- blocks ---------------------------------------------------------------------------------------


def test_a_difference_that_is_late_for_its_block_still_arrives():
    fed = lending().run(1)
    event, block = part(fed, Unshare, 2), next_block(clients=9, items=14)
    late = fed.method.unlearn(fed, fed.request(event, away=[2])).apply(block).run(1)
    in_time = fed.method.follow(fed, event).apply(block).run(1)
    assert params.digest(sums_of(late)) == params.digest(sums_of(in_time))
    assert not outstanding(late.now.state.own)


def test_erasing_a_pair_takes_it_out_of_blocks_that_are_over():
    fed = lending().run(1)
    holdings = fed.now.vault.holdings
    item = int(lendable(holdings, 6).item[0])
    again = Arrive(Records.of([6, 6, 7], [item, 13, 1]), torch.zeros(3), 9, 14)
    pair = Records.of([6], [item])
    after = fed.method.unlearn(fed.apply(again).run(1), Erase(pair))
    never = fed.method.unlearn(fed, Erase(pair)).apply(again).run(1)
    never = never.method.unlearn(never, Erase(pair))
    assert params.digest(sums_of(after)) == params.digest(sums_of(never))


def test_a_block_that_arrives_is_a_round_of_everybody():
    fed = lending().run(1)
    block = next_block(clients=10, items=16)
    at_once, later = fed.method.follow(fed, block), fed.apply(block).run(1)
    assert params.digest(sums_of(at_once)) == params.digest(sums_of(later))
    assert_close(at_once.now.state.own["inverse"], later.now.state.own["inverse"])


def test_hosted_clients_are_counted_and_taken_back():
    fed = lending().run(1)
    data = tiny_holdings(clients=12, items=14, seed=5)
    hosted = fed.method.follow(fed, Host(10, data))
    lot = data.of_clients("own", torch.tensor([10]))
    more = int(hosted.now.state.own["gram/0000"].sum() - fed.now.state.own["gram/0000"].sum())
    assert more == int(weight_of(lot.count)[0]) * len(lot) * (len(lot) + 1) // 2
    assert params.digest(sums_of(hosted.run(1))) == params.digest(sums_of(hosted))
    gone = hosted.method.unlearn(hosted, Withdraw(10))
    assert params.digest(sums_of(gone)) == params.digest(sums_of(fed))


# -- what the sum gives away ----------------------------------------------------------------------


def peeled(gram: torch.Tensor) -> list[set[int]]:
    """Histories that can be read off a sum: an item with one owner has their items as its row.

    gram: [I, I] whole numbers, symmetric. Such a row is n times one number, and that number is the
    weight of n items; subtract the person and look again.
    """
    gram, found = gram.clone(), []
    while True:
        own, many = gram.diagonal(), (gram > 0).sum(1)
        alone = (own > 0) & (gram.sum(1) == own * many) & (own == weight_of(many))
        alone &= ((gram == own[:, None]) | (gram == 0)).all(1)
        if not bool(alone.any()):
            return found
        row = int(alone.nonzero()[0])
        mine = (gram[row] > 0).long()
        found.append(set(mine.nonzero().squeeze(1).tolist()))
        gram -= int(own[row]) * torch.outer(mine, mine)


def whole_sum(fed: Federation) -> torch.Tensor:
    lower = square(fed.now.state.own["gram/0000"], fed.world.sizes.items).long()
    return lower + lower.tril(-1).T


def test_a_sum_does_not_hide_who_alone_owns_an_item():
    records = Records.of([0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 2, 3, 1, 2, 3])
    fed = Federation.start(Holdings.of(records, torch.zeros(8), 3, 5), Gram()).run(1)
    # Item 0 has one owner; without them item 1 has one, and then person 1 is what is left.
    assert peeled(whole_sum(fed)) == [{0, 1, 2}, {1, 2, 3}, {2, 3}]


def test_the_difference_of_two_sums_is_the_history_of_who_left():
    fed = lending().run(1)
    after = fed.method.unlearn(fed, Withdraw(6))
    assert peeled(whole_sum(fed) - whole_sum(after)) == [kept_now(fed.now.vault.holdings)[6]]


@pytest.mark.slow
@pytest.mark.data
def test_the_sum_of_ml_100k_gives_most_histories_away():
    from rescind.data import load

    fed = Federation.start(load("ml-100k"), Gram(), seed=0).run(1)
    truth = {frozenset(mine) for mine in kept_now(fed.now.vault.holdings).values()}
    found = {frozenset(mine) for mine in peeled(whole_sum(fed))}
    assert found <= truth
    assert len(found) > len(truth) / 2
    print(f"{len(found)} of {len(truth)} histories")
