"""Exact forgetting: the same rounds again, from the last point before the records mattered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rescind import methods
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.run_state import EarlyStop
from rescind.errors import ConfigError
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.storage.federations import load_federation, save_federation
from worlds import lendable, next_block, pairs, tiny_holdings

METHOD = FedShare(model=LightGCN(dim=4), clients_per_round=4, refine_pairs=16, contrast_items=4)


def bits(fed: Federation) -> tuple[object, ...]:
    """Everything that could give a record away, on both sides."""
    state, vault = fed.now.state, fed.now.vault
    memory = [(s.name, s.round, params.digest(s.values)) for s in state.memory]
    parts = (state.public, state.own, vault.private)
    return (*map(params.digest, parts), str(memory), state.round, fed.world.digest(),
            vault.holdings.digest())  # fmt: skip


def begin(keep_every: int | None = 2) -> Federation:
    """Twelve clients; one shares all records, one half of them, from the start."""
    fed = Federation.start(tiny_holdings(12, 15), METHOD, seed=1, keep_every=keep_every)
    return fed.apply(Share(early(fed)))


def early(fed: Federation) -> Records:
    holdings = fed.now.vault.holdings
    return lendable(holdings, 0) + lendable(holdings, 1)[::2]


def late(fed: Federation) -> Records:
    return lendable(fed.now.vault.holdings, 2, 3)


def test_what_was_lent_late_is_forgotten_from_the_point_before_it() -> None:
    fed = begin().run(5).apply(Share(late(begin()))).run(4)
    for event in (Unshare(late(fed)), Erase(late(fed)[::2])):
        quick, slow = fed.retrained(event), fed.retrained(event, from_start=True)
        assert bits(quick) == bits(slow)
        assert bits(quick) != bits(fed)
    assert [p.round for p in fed.past.points] == [2, 4, 6, 8]
    quick = fed.retrained(Unshare(late(fed)))
    assert bits(quick) == bits(begin().run(9)), "as if it had never been shared"
    assert fed.past.influence(Unshare(late(fed)), 9) == 6


def test_an_erased_record_was_never_there() -> None:
    gone = early(begin())[::2]
    fed = begin().run(6).retrained(Erase(gone))
    never = Federation.start(tiny_holdings(12, 15).without(gone), METHOD, seed=1)
    kept = early(begin())
    never = never.apply(Share(kept[~kept.among(gone)])).run(6)
    assert bits(fed) == bits(never)
    assert not pairs(fed.past.origin.records) & pairs(gone)
    assert not any(pairs(e.records) & pairs(gone) for _, e in fed.past.story)


def test_two_requests_are_one() -> None:
    fed = begin().run(6)
    one, two = early(fed)[::2], early(fed)[1::2]
    both = fed.retrained(Erase(one + two))
    assert bits(fed.retrained(Erase(one)).retrained(Erase(two))) == bits(both)


def test_whoever_never_took_part_leaves_every_bit_as_it_is() -> None:
    fed = begin().run(3)
    never = [c for c in range(2, 12) if int(fed.past.first[c]) == 0 and fed.world.available[c]]
    some = [c for c in range(2, 12) if int(fed.past.first[c]) > 0]
    assert never
    assert some
    for client in never:
        assert fed.past.influence(Withdraw(client), 3) is None
        quick, slow = (fed.retrained(Withdraw(client), from_start=s) for s in (False, True))
        assert params.digest(quick.now.state.public) == params.digest(fed.now.state.public)
        assert bits(quick) == bits(slow)
    trace = fed.retrained(Withdraw(some[0]))
    assert params.digest(trace.now.state.public) != params.digest(fed.now.state.public)


def test_one_who_only_trained_on_their_device_is_forgotten_from_their_first_turn() -> None:
    fed = begin().run(8)
    first = {c: int(fed.past.first[c]) for c in range(2, 12) if int(fed.past.first[c]) > 2}
    assert first
    for client, round_ in first.items():
        assert fed.past.influence(Withdraw(client), 8) == round_
        assert bits(fed.retrained(Withdraw(client))) == bits(
            fed.retrained(Withdraw(client), from_start=True)
        )


def test_newcomers_and_second_thoughts_are_replayed() -> None:
    fed = begin().run(3).apply(Unshare(early(begin())[:2])).run(2).apply(Join(12)).run(3)
    event = Erase(lendable(fed.now.vault.holdings, 4))
    assert bits(fed.retrained(event)) == bits(fed.retrained(event, from_start=True))


def test_the_best_round_is_what_is_trained_again() -> None:
    until = EarlyStop(every=1, patience=None)
    fed = begin().run(9, until=until)
    assert all(p.round <= fed.now.state.round for p in fed.past.points)
    event = Unshare(early(fed))
    assert bits(fed.retrained(event)) == bits(fed.retrained(event, from_start=True))
    assert fed.retrained(event).now.state.round == fed.now.state.round


def test_in_a_stream_the_present_block_is_trained_again() -> None:
    fed = begin().run(3).apply(next_block(12, 15, seed=5)).run(4)
    lent = lendable(fed.now.vault.holdings, 5)
    lent = lent[lent.among(next_block(12, 15, seed=5).records)]
    fed = fed.apply(Share(lent)).run(2)
    quick, slow = (fed.retrained(Unshare(lent), from_start=s) for s in (False, True))
    assert bits(quick) == bits(slow)
    assert quick.now.state.round == 9


def test_another_seed_is_another_draw_of_the_same_law() -> None:
    fed = begin().run(4)
    event = Erase(early(fed))
    one, two = fed.retrained(event, seed=7), fed.retrained(event, seed=8)
    assert one.world.digest() == two.world.digest() == fed.retrained(event).world.digest()
    assert len({bits(f)[0] for f in (one, two, fed.retrained(event))}) == 3


@pytest.mark.parametrize(
    "name", [n for n, c in methods.all_methods().items() if "ranking" in c.tasks]
)
@pytest.mark.parametrize("kind", ["unshare", "erase", "withdraw"])
def test_every_method_forgets_exactly(name: str, kind: str) -> None:
    """The default of `unlearn` gives the model of a world without the records."""
    method = replace(methods.all_methods()[name](), clients_per_round=4)
    fed = Federation.start(tiny_holdings(12, 15), method, seed=1, keep_every=1)
    fed = fed.apply(Share(early(fed))).run(3)
    event: Event = {
        "unshare": Unshare(early(fed)[::2]),
        "erase": Erase(early(fed)[::2]),
        "withdraw": Withdraw(1),
    }[kind]
    assert bits(fed.retrained(event)) == bits(fed.retrained(event, from_start=True))


def test_the_past_is_saved_with_the_federation(tmp_path: Path) -> None:
    fed = begin().run(5).apply(Share(late(begin()))).run(4)
    streamed = fed.apply(next_block(12, 15, seed=5)).run(3)
    for number, one in enumerate((fed, streamed)):
        again = load_federation(save_federation(one, tmp_path / str(number)))
        lent = again.world.shared
        event = Unshare(lent[lent.among(again.now.vault.holdings.records)][:3])
        assert bits(again.retrained(event)) == bits(one.retrained(event))
        assert again.past.nbytes == one.past.nbytes
        assert again.keep_every == 2
    plain = save_federation(replace(fed, past=None), tmp_path / "0")
    with pytest.raises(ConfigError, match="has no history"):
        load_federation(plain).retrained(Withdraw(2))
