"""At the size of ML-1M: a thousand events, a thousand leavers, and an audit that can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Join, Share, Unshare, Withdraw
from rescind.core.tasks.metrics import top_k
from rescind.data import load
from rescind.data.simulated_lending import draw_groups, draw_regret, draw_share
from rescind.forgetting.examine import examine
from rescind.methods.additive.gram import Gram
from rescind.receipts.claims import sum_digest

pytestmark = [pytest.mark.slow, pytest.mark.data]


def lending(name: str, method: Gram) -> Federation:
    """People lend 1 : 2 : 7, and everybody is counted once."""
    fed = Federation.start(load(name), method, seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(1)


def random_event(fed: Federation, number: int) -> Event | None:
    """Somebody does something that fits: a few records lent, taken back or erased, or a move."""
    dice = Clock(7).at(number)
    kind = int(dice.integers("kind", torch.tensor(0), 0, 20))
    if kind < 2:
        gone = (~fed.world.members).nonzero().squeeze(1)
        here = fed.world.members.nonzero().squeeze(1)
        pool = gone if kind and len(gone) else here
        who = int(pool[dice.integers("who", torch.tensor(0), 0, len(pool))])
        return Join(who) if kind and len(gone) else Withdraw(who)
    held = fed.now.vault.holdings
    current = held.split == 0
    chosen: type[Share | Unshare | Erase] = Share if kind < 8 else Unshare if kind < 14 else Erase
    pool = held.records[current & (held.lent if chosen is Unshare else ~held.lent)]
    if chosen is Erase:
        pool = held.records[current]
    at = dice.integers("record", torch.arange(4), 0, len(pool))
    near = torch.unique((at[0] + at % 5).clamp(max=len(pool) - 1))  # mostly of one person
    return chosen(pool[near])


def same_lists(one: Federation, other: Federation) -> bool:
    """Whether everybody gets the same twenty items from both."""
    for ids in torch.split(torch.arange(one.world.sizes.clients), 1000):
        cohort = InProcess().cohort(one.method, one.now.vault, ids)
        lists = [
            top_k(
                fed.method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort),
                cohort.own,
                20,
            )
            for fed in (one, other)
        ]
        if not torch.equal(*lists):
            return False
    return True


def test_a_thousand_random_events_on_ml_1m_leave_the_digest_of_a_rebuild():
    fed = replace(lending("ml-1m", Gram()), past=None)  # a sum needs no past, and it costs time
    kinds: dict[str, int] = {}
    for number in range(1000):
        event = random_event(fed, number)
        fed = fed.method.follow(fed, event)
        kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
        if number in (9, 99):
            assert sum_digest(fed.now.state.own) == fed.method.rebuilt(fed), f"event {number}"
    assert sum_digest(fed.now.state.own) == fed.method.rebuilt(fed)
    without = fed.restart().run(1)
    assert sum_digest(fed.now.state.own) == sum_digest(without.now.state.own)
    assert min(kinds.values()) >= 20, kinds
    assert same_lists(fed, without)
    print(f"ML-1M after {kinds}: {sum_digest(fed.now.state.own)}")


def test_a_thousand_people_leave_ml_1m():
    fed = replace(lending("ml-1m", Gram(resolve_every=10**6)), past=None)
    for client in range(0, 6000, 6):
        fed = fed.method.unlearn(fed, Withdraw(client))
    assert int(fed.now.state.own["changes"]) >= 1000, "downdated, never solved anew"
    without = fed.restart().run(1)
    assert sum_digest(fed.now.state.own) == sum_digest(without.now.state.own)
    inverse = without.now.state.own["inverse"]
    error = float((fed.now.state.own["inverse"] - inverse).abs().max() / inverse.abs().max())
    print(f"ML-1M, a thousand left: largest error {error:.1e} of the largest entry")
    assert error < 1e-12
    assert same_lists(fed, without)


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_the_audit_passes_what_was_subtracted_and_fails_what_was_not(name):
    fed = lending(name, Gram())
    event = Erase(draw_regret(fed.world.shared, fed.clock, 0.3))
    after = fed.method.follow(fed, event)
    report = examine(fed, after, event, workers=1)
    print(f"{name}: {report.verdict}, controls {report.subjects}")
    assert report.verdict == "PASS"
    unerased = replace(fed.apply(event), now=replace(fed.apply(event).now, state=fed.now.state))
    nothing = examine(fed, unerased, event, workers=1)
    print(f"{name}, un-erased: {nothing.verdict}")
    assert nothing.verdict == "FAIL"
