"""Words for printed numbers: the rule on simulated reproductions, and each word's own case."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rescind.experiments.tables import Entry
from rescind_papers.exhibits import rows
from rescind_papers.index import Shelf, chosen, finding, looked_up
from rescind_papers.judging import Row
from rescind_papers.tally import KINDS, distinct, kind
from rescind_papers.verdicts import (
    ABSENT,
    ALONE,
    BETTER,
    BOTH_WORSE,
    EXCLUSIVE,
    LATER,
    MEANINGS,
    ONE_RUN,
    OTHER,
    REPRODUCED,
    TRIVIAL,
    UNJUDGED,
    WORSE,
    beside,
    least_ndcg,
    verdict,
)

ROOT = Path(__file__).resolve().parents[2]
SHELF = Shelf(ROOT / "recipes")


@cache
def every() -> dict[str, list[Row]]:
    """All rows of all exhibits by place: read by the first test that asks, not by collecting."""
    return {one.place: rows(one, SHELF) for one in chosen(SHELF.folder, None)}


def two_errors(printed: float, runs: list[float]) -> str:
    """The rule that we had: the paper's number as a constant, two standard errors wide."""
    near = 2 * statistics.stdev(runs) / math.sqrt(len(runs))
    better = statistics.fmean(runs) - printed
    return BETTER if better > near else WORSE if better < -near else REPRODUCED


@pytest.mark.parametrize("count", [3, 5])
def test_a_true_reproduction_is_called_other_one_time_in_twenty(count):
    """The printed number is one more draw from the distribution of ours."""
    draws = torch.randn((4000, count + 1), generator=torch.Generator().manual_seed(22)).tolist()
    new = Counter(beside(printed, runs) for printed, *runs in draws)
    old = Counter(two_errors(printed, runs) for printed, *runs in draws)
    assert 0.04 < 1 - new[REPRODUCED] / len(draws) < 0.06
    # Control: two standard errors called more than a fifth worse, and as many better.
    assert 0.20 < old[WORSE] / len(draws) < 0.24


def test_a_printed_number_of_one_leaver_is_judged_by_single_leavers():
    """Ten leavers at five seeds; the paper ran one of these leavers at a seed of its own."""
    draw = torch.Generator().manual_seed(22)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    outside, too_narrow, trials = 0, 0, 1500
    for trial in range(trials):
        leaver, seed = 2 * normal(10), normal(5, 1)
        ours = leaver + seed + normal(5, 10)
        printed = float(leaver[trial % 10] + normal(1) + normal(1))
        outside += beside(printed, ours.flatten().tolist()) != REPRODUCED
        too_narrow += beside(printed, ours.mean(1).tolist()) != REPRODUCED
    assert outside / trials < 0.09
    # Control: the spread of means over leavers is not that of one leaver.
    assert too_narrow / trials > 0.2


def test_a_word_follows_its_rule():
    def word(values, paper, floor=None, **how):
        return verdict(Entry("x", "HR@20", values, paper, (0, 1, 2), floor), **how)

    # Mean .5, deviation .01, t(2) = 4.303: 4.303 * .01 * sqrt(4 / 3) = .0497.
    near, low = (0.49, 0.50, 0.51), (0.39, 0.40, 0.41)
    assert word(near, 0.549) == word(near, 0.451) == REPRODUCED
    assert word(near, 0.45) == BETTER
    assert word(near, 0.55) == WORSE
    assert word(near, 0.45, lower=True) == WORSE
    assert word(near, 0.55, authors=low) == BOTH_WORSE
    assert word(near, 0.55, authors=(0.54, 0.55, 0.56)) == WORSE
    assert word(near, 0.45, authors=low) == BETTER
    assert word(near, 0.45, floor=0.46) == TRIVIAL
    assert word(near, 0.45, floor=0.46, lower=True) == WORSE
    assert word(near, 0.55, apart=EXCLUSIVE) == EXCLUSIVE
    assert word((0.5,), 0.5) == ONE_RUN
    assert word((), 0.5) == LATER
    assert word((), 0.5, apart=EXCLUSIVE) == LATER
    assert word((), 0.5, apart=ABSENT) == ABSENT
    assert word(near, None) == ALONE


# -- the bound -------------------------------------------------------------------------------------


def ndcg(ranks: tuple[int, ...], held: int, k: int) -> float:
    ideal = sum(1 / math.log2(r + 1) for r in range(1, min(held, k) + 1))
    return sum(1 / math.log2(r + 1) for r in ranks) / ideal


def test_the_least_ndcg_is_the_least_of_all_lists():
    # Three users with 1, 2 and 3 test items and lists of 4: every way to place the hits.
    held, k = (1, 2, 3), 4
    ways = [
        [p for n in range(min(h, k) + 1) for p in itertools.combinations(range(1, k + 1), n)]
        for h in held
    ]
    for hit in (0, 1, 2, 3):
        reached = [
            sum(ndcg(ranks, h, k) for ranks, h in zip(lists, held, strict=True)) / 3
            for lists in itertools.product(*ways)
            if sum(map(bool, lists)) == hit
        ]
        assert least_ndcg(np.array(held), hit / 3, k) == pytest.approx(min(reached))


def test_only_the_pairs_of_video_games_exclude_each_other():
    pairs = finding(SHELF.folder, "least_ndcg")
    below = {r["data"] for r in pairs if r["printed NDCG@20"] < r["least possible NDCG@20"]}
    assert below == {"amazon-video-games-2018-5core"}
    games = [r for r in pairs if r["data"] in below]
    assert all(r["printed NDCG@20"] < r["least possible NDCG@20"] for r in games)
    found = [row for row in every()["fedshare/table3"] if row.entry.paper is not None]
    mine = [row for row in found if row.entry.cell.startswith("video-games/")]
    assert len(mine) == 16
    assert {row.verdict for row in mine} == {EXCLUSIVE}
    assert EXCLUSIVE not in {row.verdict for row in found if row not in mine}


# -- the pages -------------------------------------------------------------------------------------


def test_every_worse_has_its_reason_or_says_that_we_do_not_know():
    for place, found in every().items():
        for row in found:
            if row.verdict in (WORSE, BOTH_WORSE, *OTHER):
                assert row.reason, f"{place}: {row.part.recipe}: {row.entry.cell} is {row.verdict}"
                assert row.reason[1].endswith(".")


def test_every_word_is_explained():
    given = {row.verdict for found in every().values() for row in found} - {ALONE}
    assert given <= MEANINGS.keys()
    assert {kind(row) for found in every().values() for row in found} - {ALONE} <= set(KINDS)


def test_a_rate_of_an_attack_has_no_verdict_but_a_distance_to_a_retraining():
    found = {(r.entry.cell, r.entry.metric): r for r in every()["fedgcv/table1"]}
    row = found["cora/FedGCV", "MIA, distance to a retraining"]
    assert row.verdict == UNJUDGED
    assert row.entry.paper == pytest.approx(0.0556 - 0.0370)
    assert row.entry.mean < 0.1
    above = found["cora/FedGCV, before repair", "MIA, distance to a retraining"].entry
    assert above.mean > 0.3, "far below a retraining is as far as far above"
    assert not [m for _, m in found if m == "MIA"]


def test_no_floor_for_diagnostics_or_where_lower_is_better():
    for place in ("f3crec/table4", "f3crec/table5", "f3crec/table7"):
        assert all(row.entry.floor is None for row in every()[place])


def test_the_second_best_is_one_of_the_papers_learners():
    table = SHELF.table(chosen(SHELF.folder, "f3crec/fig3")[0].parts[0])
    mean = {e.cell: e.mean for e in table.entries}
    learners = [c for c in mean if c.startswith("ml-100k/") and c in table.recipe.paper]
    if None in (mean["ml-100k/Gram"], *(mean[c] for c in learners)):
        pytest.skip("f3crec/table2-fedmf has no results")
    best = max(mean[c] for c in learners if not c.endswith(("/F3CRec", "/FT")))
    assert mean["ml-100k/Gram"] > best, "the control would be second best"
    drawn = {r.entry.cell: r.entry for r in every()["f3crec/fig3"][:6]}
    gain = 100 * (best / mean["ml-100k/FT"] - 1)
    assert drawn["ml-100k/second best"].mean == pytest.approx(gain, abs=2)


def test_a_number_printed_in_two_tables_counts_once():
    found = distinct(chosen(SHELF.folder, None), SHELF)
    numbers = [row.number for mine in found.values() for row in mine]
    assert len(numbers) == len(set(numbers))
    # Tables 2, 3 and 6 print F3CRec and fine-tuning on ML-100K and Last.fm: only Table 2 counts.
    again = {row.entry.cell for row in (*found["f3crec/table3"], *found["f3crec/table6"])}
    assert again == {"without c.c", "without a.r.m", "without s.c", "without i.t.m"}
    assert "ml-1m/FedShare" not in {row.entry.cell for row in found["fedshare/table4"]}
    assert not found["f3crec/fig3"], "its numbers follow from Table 2"
    # Two rows of one table with the same value are two numbers.
    same = [r.entry.cell for r in found["f3crec/table2"] if r.entry.paper == 0.0938]
    assert {"ml-100k/KD", "ml-100k/SPP"} <= set(same)


def test_authors_methods_stand_beside_ours():
    found = {(r.entry.cell, r.entry.metric): r for r in every()["fedgcv/table1"]}
    theirs = found["cora/FedGCV", "kept accuracy"].authors
    assert theirs.cell == "cora/FedGCV as published"
    assert len(theirs.values) == 50
    found = {(r.entry.cell, r.entry.metric): r for r in every()["fedshare/table3"]}
    assert found["ml-1m/FedShare", "HR@20"].authors.cell == "ml-1m/as published"
    assert found["ml-1m/PDC-FRS-R", "HR@20"].authors is None


def test_a_star_stands_for_the_same_text_on_both_sides():
    table = {"one/table: a/x": "exact", "one/*: */y": "two/*: */z", "one/*: *": "rest"}
    assert looked_up(table, "one/table: a/x") == ("one/table: a/x", "exact")
    assert looked_up(table, "one/table: b/y") == ("one/*: */y", "two/table: b/z")
    assert looked_up(table, "one/table: w/o x") == ("one/*: *", "rest")
    assert looked_up(table, "two/table: b/y") is None
