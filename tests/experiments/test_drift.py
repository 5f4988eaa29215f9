"""Static and dynamic people and items, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from rescind.core.federation import Federation
from rescind.core.run_state import RoundResult
from rescind.core.tasks.metrics import Ranking
from rescind.data import load
from rescind.data.blocks import arrange, chronological
from rescind.experiments.drift import Drift, moved_ranks, scores_of
from rescind.experiments.streams import Blocks, Stream, run_stream
from rescind.methods.additive.gram import Gram
from rescind.methods.continual.f3crec import F3CRec
from rescind.models.mf import MF

METHOD = F3CRec(model=MF(dim=8, spread=0.1), rate=0.3, private_rate=3.0)


def stream() -> Stream:
    data = load("synthetic", users=120, items=80, interactions=2400)
    return Stream.of(arrange(data, chronological(data, base=0.8, parts=2)), 0)


def two_blocks() -> tuple[Federation, Federation, Federation]:
    """At the end of the first block, after one round of the second, and at its end."""
    whole = stream()
    before = Federation.start(whole.first, METHOD, 1).run(6)
    first = before.apply(next(iter(whole.later))).run(1)
    return before, first, first.run(5)


def ranking(fed: Federation, client: int) -> list[int]:
    score = scores_of(fed, torch.tensor([client]))[0].tolist()
    return sorted(range(len(score)), key=lambda i: -score[i])


def test_the_static_moved_least_in_the_first_round_of_the_second_block() -> None:
    before, first, after = two_blocks()
    seen = Drift()
    seen.ended(0, before)
    seen(RoundResult(first.now, {}, None))
    shift = {}
    for client in range(len(before.world.members)):
        there = [bool(f.now.vault.holdings.available[client]) for f in (before, first)]
        if all(there):
            old, new = ranking(before, client)[:30], ranking(first, client)
            shift[client] = sum(abs(new.index(item) - place) for place, item in enumerate(old))
    order = sorted(shift, key=lambda client: shift[client])
    many = math.ceil(0.2 * len(order))
    assert many > 3
    assert max(shift[c] for c in seen.people["static"].tolist()) == shift[order[many - 1]]
    assert min(shift[c] for c in seen.people["dynamic"].tolist()) == shift[order[-many]]
    seen.ended(1, after)
    for name in ("static", "dynamic"):
        then, now = (
            f.evaluate(metric=Ranking(mask=("own", "valid"), block=0), clients=seen.people[name])
            for f in (before, after)
        )
        lost = (then["NDCG@20"] - now["NDCG@20"]) / then["NDCG@20"]
        assert seen.found()[f"{name} users NDCG@20"] == pytest.approx(now["NDCG@20"])
        assert seen.found()[f"{name} users loss"] == pytest.approx(lost)


def test_ranks_of_people_who_stayed_away_move_more_for_items_that_moved() -> None:
    before, _, after = two_blocks()
    old, new = (f.now.state.public["item"] for f in (before, after))
    moved = [float((old[i] - new[i]).square().sum()) for i in range(len(old))]
    order = sorted(range(len(old)), key=lambda i: moved[i])
    many = math.ceil(0.2 * len(order))
    away = [
        c for c in range(len(before.world.members))
        if before.now.vault.holdings.available[c] and not after.now.vault.holdings.available[c]
    ]  # fmt: skip
    assert away
    expected = {}
    for name, items in (("static", order[:many]), ("dynamic", order[-many:])):
        change = []
        for client in away:
            then, now = ranking(before, client), ranking(after, client)
            now = [item for item in now if item < len(old)]
            change += [abs(now.index(i) - then.index(i)) / (then.index(i) + 1) for i in items]
        expected[name] = sum(change) / len(change)
    assert moved_ranks(before, after) == pytest.approx(expected)
    assert expected["dynamic"] > expected["static"]


def test_whoever_missed_the_first_block_tells_nothing() -> None:
    _, first, after = two_blocks()
    late = Drift()
    late(RoundResult(first.now, {}, None))
    late.ended(1, after)
    assert late.found() == {}


def test_watching_changes_nothing() -> None:
    seen, how = Drift(), Blocks(rounds=3, patience=2)
    watched = run_stream(stream(), METHOD, 1, how, watch=(seen,), answer=seen.ended)
    alone = run_stream(stream(), METHOD, 1, how)
    assert watched.matrix("NDCG@20") == alone.matrix("NDCG@20")
    assert set(seen.found()) == {
        f"{kind} {what}"
        for kind in ("static", "dynamic")
        for what in ("users NDCG@20", "users loss", "items")
    }
    assert len(seen.items["static"]) == 2


def test_a_closed_form_has_no_rows_that_could_move_and_still_runs() -> None:
    seen = Drift()
    done = run_stream(stream(), Gram(), 1, Blocks(rounds=1), watch=[seen], answer=seen.ended)
    assert len(done.blocks) == 3
    assert {"static users NDCG@20", "dynamic users NDCG@20"} <= seen.found().keys()
    assert not any("items" in name for name in seen.found())
