"""The live sum is `Gram` on the same loans: same digest, same lists; it loads no torch."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rescind as rs
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Records, Share, Unshare
from rescind.core.tasks.metrics import top_k
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _live_sum
from rescind.methods.additive._live_inverse import InstantSum, LiveInverse
from rescind.methods.additive._live_release import (
    Form,
    Weights,
    file_digest,
    packed,
    read,
    release_of,
    unpacked,
)
from rescind.methods.additive._live_sum import NOBODY, LiveSum, Moved, added_up
from rescind.methods.additive._solving import Solving
from rescind.receipts.claims import sum_digest

PEOPLE, ITEMS = 80, 50
TUNED = Form(neighbours=12, min_count=4)


def some_loans(people: int = PEOPLE, items: int = ITEMS) -> dict[bytes, np.ndarray]:
    """Return loans where neighbouring items go together, so that lists have a clear order."""
    clock, loans = Clock(3), {}
    at = torch.arange(items)
    for person in range(people):
        near = (at - int(clock.integers("near", torch.tensor(person), 0, items))).abs() < 9
        draw = clock.uniform("lends", torch.tensor(person), at)
        chosen = near & (draw < 0.65) | (draw < 0.1)
        loans[person.to_bytes(16, "big")] = chosen.nonzero().squeeze(1).numpy().astype(np.int32)
    return loans


def as_records(loans: dict[bytes, np.ndarray]) -> Records:
    people = [int.from_bytes(person, "big") for person in loans]
    counts = [len(items) for items in loans.values()]
    client = torch.from_numpy(np.repeat(people, counts))
    return Records.of(client, torch.from_numpy(np.concatenate(list(loans.values())).astype(int)))


def federation(loans: dict[bytes, np.ndarray], form: Form) -> Federation:
    """Return `Gram` in a federation where everybody lends everything."""
    settings = {name: getattr(form.solving, name) for name in form.solving.__dataclass_fields__}
    method = rs.methods.Gram(
        release="neighbours", release_size=form.neighbours, min_count=form.min_count, **settings
    )
    records = as_records(loans)
    held = Holdings.of(records, torch.zeros(len(records), dtype=torch.int8), PEOPLE, ITEMS)
    return Federation.start(held, method).apply(Share(records)).run(1)


def lists_of(fed: Federation, loans: dict[bytes, np.ndarray]) -> list[list[int]]:
    weights, out = fed.now.state.public["weights"], []
    for items in loans.values():
        score = weights[torch.from_numpy(items.astype(int))].sum(0, keepdim=True)
        score[0, torch.from_numpy(items.astype(int))] = -torch.inf
        out.append(top_k(score, None, 10)[0].tolist())
    return out


@pytest.mark.parametrize("form", [TUNED, replace(TUNED, solving=Solving())])
def test_it_is_gram_in_a_federation(form: Form) -> None:
    loans = some_loans()
    live = LiveSum(ITEMS, form.min_count)
    live.load(loans)
    fed = federation(loans, form)
    assert live.digest() == sum_digest(fed.now.state.own)
    weights = release_of(live.copy(), form)
    mine = [[line.item for line in weights.recommend(own, 10)] for own in loans.values()]
    assert mine == lists_of(fed, loans)
    dense = np.zeros((ITEMS, ITEMS), np.float32)
    dense[np.repeat(np.arange(ITEMS), np.diff(weights.first)), weights.target] = weights.weight
    theirs = fed.now.state.public["weights"].numpy()
    np.testing.assert_allclose(dense, theirs, rtol=1e-5, atol=1e-7)


def test_it_follows_gram_when_somebody_takes_back_and_a_missing_change_shows() -> None:
    loans = some_loans()
    live = LiveSum(ITEMS, TUNED.min_count)
    live.load(loans)
    fed, person = federation(loans, TUNED), next(iter(loans))
    gone = {person: loans[person][:2]}
    after = fed.method.follow(fed, Unshare(as_records(gone)))
    assert live.digest() != sum_digest(after.now.state.own)  # control: the change is not made yet
    live.change(person, loans[person], loans[person][2:])
    # The device keeps what it took back, and Gram counts kept items as a part of their own.
    kept = added_up(gone.values(), ITEMS)
    live.sums.total += kept.total
    live.sums.owners += kept.owners
    assert live.digest() == sum_digest(after.now.state.own)


def test_it_recommends_as_the_estimator_does() -> None:
    loans = some_loans()
    rows = [(person.hex(), str(item)) for person, items in loans.items() for item in items]
    model = rs.Gram().fit({"user": [r[0] for r in rows], "item": [r[1] for r in rows]})
    weights = release_of(added_up(loans.values(), ITEMS), Form(Solving(), ITEMS, 0))
    for person, own in list(loans.items())[:20]:
        theirs = [int(line.item) for line in model.recommend(person.hex(), 5)]
        assert [line.item for line in weights.recommend(own, 5)] == theirs


def test_changes_in_any_order_give_the_sum_of_what_remains() -> None:
    loans = some_loans()
    live = LiveSum(ITEMS)
    for person, items in loans.items():
        live.change(person, NOBODY, items[::2])
    for person, items in reversed(loans.items()):
        live.change(person, items[::2], items)
    assert live.digest() == added_up(loans.values(), ITEMS).digest()
    for person, items in loans.items():
        live.change(person, items, NOBODY)
    assert not live.sums.total.any()
    assert not live.sums.owners.any()
    assert not live.loans


def test_a_change_from_other_loans_is_refused_and_changes_nothing() -> None:
    loans = some_loans()
    live = LiveSum(ITEMS)
    live.load(loans)
    person, before = next(iter(loans)), live.digest()
    with pytest.raises(DataError, match="start"):
        live.change(person, loans[person][1:], NOBODY)
    for wrong in ([3, 2], [2, 2], [-1, 4], [4, ITEMS]):
        with pytest.raises(DataError, match="sorted places"):
            live.change(person, loans[person], np.array(wrong, np.int32))
    assert live.digest() == before


def test_a_sum_of_very_many_people_gets_wider_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    loans = some_loans()
    narrow = added_up(loans.values(), ITEMS)
    monkeypatch.setattr(_live_sum, "MOST_PEOPLE", 40)  # of 80
    live = LiveSum(ITEMS)
    for person, items in loans.items():
        live.change(person, NOBODY, items)
    assert (narrow.total.dtype, live.sums.total.dtype) == (np.int32, np.int64)
    assert added_up(loans.values(), ITEMS).total.dtype == np.int64
    assert live.digest() == narrow.digest()


def test_what_was_taken_back_is_known_until_it_is_settled() -> None:
    live, person = LiveSum(ITEMS), b"p" * 16
    lent = np.arange(6, dtype=np.int32)
    live.change(person, NOBODY, lent)
    live.change(person, lent, lent[2:])
    live.change(person, lent[2:], lent[1:])  # lent again: not taken back
    assert live.settle()[2][person].tolist() == [0]
    assert live.settle()[2] == {}


def test_a_person_leaves_in_a_thousandth_of_a_solve() -> None:
    items = 2500
    live = LiveSum(items)
    live.load(some_loans(40, items))
    person, lent = b"x" * 16, np.arange(0, 165 * 15, 15, dtype=np.int32)

    def leave() -> None:
        live.change(person, NOBODY, lent)
        live.change(person, lent, NOBODY)

    solve, pair = fastest(lambda: live.copy().inverse(Solving().ridges), 1), fastest(leave, 20)
    assert pair / 2 <= solve / 1000, (pair, solve)


def fastest(call: Callable[[], object], times: int) -> float:
    call()  # compiles
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def test_because_is_the_summand_and_without_is_the_rank_of_a_list_made_without_it() -> None:
    loans = some_loans()
    weights = release_of(added_up(loans.values(), ITEMS), TUNED)
    moved = 0
    for own in list(loans.values())[:30]:
        for rank, line in enumerate(weights.recommend(own, 8), 1):
            parts = {int(i): float(weights.scores(own[own == i])[line.item]) for i in own}
            most = sorted(parts, key=parts.__getitem__, reverse=True)
            assert [item for item, _ in line.because] == [i for i in most[:3] if parts[i] > 0]
            total = sum(max(value, 0) for value in parts.values())
            for item, share in line.because:
                assert share == pytest.approx(parts[item] / total, rel=1e-4)
                score = weights.scores(own[own != item]).astype(float)
                score[own] = -np.inf
                above = (score > score[line.item] + 1e-7).sum() + 1
                assert line.without[item] == above
                moved += above != rank
    assert moved > 20  # control: without its reasons a line is mostly elsewhere


def test_few_loans_get_what_is_popular_and_rare_items_are_never_shown() -> None:
    loans = some_loans()
    rare = np.array([ITEMS - 1], np.int32)
    loans = {person: items[items != rare] for person, items in loans.items()}
    loans[b"r" * 16] = np.arange(ITEMS - 8, ITEMS, dtype=np.int32)
    sums = added_up(loans.values(), ITEMS)
    weights = release_of(sums, TUNED)
    lines = weights.recommend(np.array([0, 1], np.int32), 6)
    assert all(line.because == () for line in lines)
    counts = sums.owners[[line.item for line in lines]]
    assert list(counts) == sorted(sums.owners[2:], reverse=True)[:6]
    everything = [line.item for own in loans.values() for line in weights.recommend(own, ITEMS)]
    assert rare not in everything
    shown = release_of(sums, replace(TUNED, min_count=0))  # control: it is there if none are hidden
    assert rare in [line.item for own in loans.values() for line in shown.recommend(own, ITEMS)]


def test_a_release_file_is_read_back_and_any_damage_is_found() -> None:
    sums, ids = added_up(some_loans().values(), ITEMS), [f"film {n}" for n in range(ITEMS)]
    weights = release_of(sums, TUNED)
    plain = weights.to_bytes(ids)
    again, names = read(unpacked(packed(plain)))
    assert names == ids
    assert packed(plain) == packed(again.to_bytes(ids))
    own = next(iter(some_loans().values()))
    assert again.recommend(own) == weights.recommend(own)
    assert file_digest(plain[:-1] + b"\1") != file_digest(plain)
    for broken in (b"", plain[:-4], plain + bytes(4), b"other" + plain[5:]):
        with pytest.raises(DataError, match="not a release"):
            read(broken)
    with pytest.raises(DataError, match=r"compressed|cut"):
        unpacked(packed(plain)[:-9])


def test_the_instant_form_follows_every_change() -> None:
    loans = some_loans()
    live = InstantSum(ITEMS)
    live.load(loans)
    inverse = live.ready()
    first = inverse.square.copy()
    for person, items in list(loans.items())[:20]:
        live.change(person, items, items[3:])
    live.change(person, items[3:], NOBODY)
    fresh = LiveInverse(live.copy(), inverse.form)
    np.testing.assert_allclose(inverse.square, fresh.square, rtol=0, atol=1e-12)
    assert np.abs(first - fresh.square).max() > 1e-5  # control: without the updates
    dense = release_of(live.copy(), Form(Solving(), ITEMS))
    for own in loans.values():
        mine, theirs = inverse.recommend(own, 8), dense.recommend(own, 8)
        assert [(m.item, m.without) for m in mine] == [(t.item, t.without) for t in theirs]


def test_the_instant_form_keeps_no_trace_of_the_last_owner_of_an_item() -> None:
    live = InstantSum(ITEMS)
    live.load({person: items[items != 7] for person, items in some_loans().items()})
    inverse, before = live.ready(), live.ready().square.copy()
    owner, lent = b"o" * 16, np.array([3, 7, 20], np.int32)
    live.change(owner, NOBODY, lent)
    assert inverse.square[7].any()
    assert not np.array_equal(inverse.square[7], before[7])
    live.change(owner, lent, NOBODY)
    assert np.array_equal(inverse.square[7], before[7])


def test_the_instant_form_solves_anew_and_refuses_ridges_that_change() -> None:
    live = InstantSum(ITEMS, form=Form(Solving(resolve_every=3)))
    live.load(some_loans())
    inverse = live.ready()
    for person, items in list(live.loans.items())[:3]:
        live.change(person, items, items[1:])
    assert inverse.changes == 2  # the second change would have been the fourth part
    inverse._subtract(Moved(items[1:], NOBODY).parts * 3)  # more than two parts at once
    assert np.isfinite(inverse.square).all()
    with pytest.raises(ConfigError, match="instant"):
        LiveInverse(live.sums, TUNED)


def test_a_service_loads_no_torch() -> None:
    code = (
        "import sys, rescind.ledger.book, rescind.ledger.release_worker;"
        "from rescind.methods.additive._live_inverse import InstantSum;"
        "import numpy as np; live = InstantSum(9); live.change(b'p', np.empty(0, np.int32),"
        "np.arange(6, dtype=np.int32)); live.ready().weights(); print('torch' in sys.modules);"
        "import rescind.core.params; print('torch' in sys.modules)"  # control: the look finds it
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_rounded_weights_are_few_steps_and_change_rarely() -> None:
    """Take one person out: of the rounded weights fewer change than of the exact ones."""
    loans = some_loans()
    less = dict(list(loans.items())[1:])
    changed = {}
    for rounding in (0.0, 2.0):
        form = Form(neighbours=ITEMS, min_count=1, rounding=rounding)
        before, after = (
            dense_of(release_of(added_up(each.values(), ITEMS), form)) for each in (loans, less)
        )
        step = np.abs(before[before != 0]).min()
        changed[rounding] = float((np.abs(before - after) > step / 2).mean())
        steps = before / step
        assert (np.abs(steps - np.rint(steps)).max() < 1e-3) == bool(rounding)  # with its control
    assert 0 < changed[2.0] < changed[0.0] / 2
    other = Form(neighbours=ITEMS, min_count=1, rounding=2.0)
    again = release_of(added_up(reversed(list(loans.values())), ITEMS), other)
    same = release_of(added_up(loans.values(), ITEMS), other)
    assert again.to_bytes(["x"] * ITEMS) == same.to_bytes(["x"] * ITEMS)


def dense_of(weights: Weights) -> np.ndarray:
    out = np.zeros((weights.items, weights.items))
    source = np.repeat(np.arange(weights.items), np.diff(weights.first))
    out[source, weights.target] = weights.weight
    return out


HALF = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from ledgers import opened, joined, done, take_back
from rescind.methods.additive import _live_kernels
from rescind.methods.additive._live_sum import LiveSum
def half(total, owners, old, new, was, now):
    total[: len(total) // 2] -= 1
    raise MemoryError
ledger = opened(Path(sys.argv[2]), live=LiveSum)
people = [joined(ledger, n, n + 1, n + 2) for n in range(4)]
_live_kernels.replace_part = half
done(ledger, take_back(people[1], "leave"))
"""


def test_a_change_of_the_sum_that_ends_in_its_midst_ends_the_service(tmp_path):
    """The loans are in the database: the next start adds them up."""
    from ledgers import opened
    from rescind.ledger.writer import EXIT

    helpers = str(Path(__file__).parents[1] / "helpers")
    words = [sys.executable, "-c", HALF, helpers, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == EXIT, ended.stderr
    assert "MemoryError" in ended.stderr
    ledger = opened(tmp_path, live=LiveSum)
    try:
        assert ledger.live.people == 3
        assert same_sums(ledger.live)
    finally:
        ledger.close()


def test_control_a_sum_that_is_used_after_it_is_another(monkeypatch):
    live = LiveSum(ITEMS)
    live.load(some_loans())
    assert same_sums(live)

    def half(total, *_):
        total[: len(total) // 2] -= 1
        raise MemoryError

    monkeypatch.setattr(_live_sum.kernels, "replace_part", half)
    with pytest.raises(MemoryError):
        live.change(next(iter(live.loans)), next(iter(live.loans.values())), NOBODY)
    assert not same_sums(live)


def same_sums(live: LiveSum) -> bool:
    """Whether a sum is that of its loans."""
    return live.copy().digest() == added_up(live.loans.values(), live.items).digest()
