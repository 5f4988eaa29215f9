"""Evaluation in parts: scores are ranked while they are in the cache, and nothing changes."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

import rescind as rs
from rescind.core import executor, jagged
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.model import TakenRows, summed_rows
from rescind.core.table import Table
from rescind.core.tasks.metrics import InParts, top_k
from rescind.errors import BoundaryError, DataError
from rescind.experiments.validation import measured_users
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN
from worlds import randoms, tiny_holdings

CLIENTS, ITEMS = 9, 40


def drawn_lot(seed: int = 0) -> Lot:
    cell = torch.unique((randoms(120, 1, seed=seed).squeeze(1).abs() * 997).long() % (8 * ITEMS))
    cell = cell + ITEMS * (cell >= ITEMS)  # client 1 has nothing
    return Lot(cell // ITEMS, cell % ITEMS, CLIENTS)


def as_the_page_says(fed: Federation, k: int, hidden: tuple[int, ...] = (0,)) -> dict[str, float]:
    """Measure Popularity on test as docs/recipes.md describes it. hidden: splits that are hidden"""
    held = fed.now.vault.holdings
    rows = list(
        zip(held.records.client.tolist(), held.records.item.tolist(), held.split.tolist(),
            strict=True)
    )  # fmt: skip
    owners = Counter(item for _, item in {(c, i) for c, i, split in rows if split == 0})
    order = sorted(range(held.items), key=lambda item: (-owners[item], item))
    found: list[tuple[float, float, float]] = []
    for user in range(held.clients):
        test = {i for c, i, split in rows if c == user and split == 2}
        out = {i for c, i, split in rows if c == user and split in hidden}
        ranks = [n for n, i in enumerate([i for i in order if i not in out][:k], 1) if i in test]
        if test:
            ideal = sum(1 / math.log2(n + 1) for n in range(1, min(k, len(test)) + 1))
            gain = sum(1 / math.log2(n + 1) for n in ranks)
            found.append((float(bool(ranks)), gain / ideal, len(ranks) / len(test)))
    means = [sum(column) / len(found) for column in zip(*found, strict=True)]
    return {"users": len(found), **dict(zip(("HR", "NDCG", "Recall"), means, strict=True))}


def test_a_ranking_is_measured_as_the_page_says():
    data = rs.load("synthetic", users=60, items=50, interactions=500)
    fed = Federation.start(data, rs.methods.Popularity(), seed=0).run(1)
    found, said = fed.evaluate("test", 10), as_the_page_says(fed, 10)
    for name in ("HR", "NDCG", "Recall"):
        assert found[f"{name}@10"] == pytest.approx(said[name], abs=1e-12)
    users = measured_users(fed)["measured_users"]
    assert users["test"] == said["users"] < fed.world.sizes.clients, "some have no test row"
    other = as_the_page_says(fed, 10, hidden=(0, 1))
    assert other["NDCG"] != pytest.approx(said["NDCG"], abs=1e-6), "hiding more is another number"


@pytest.mark.parametrize("few", [1, 2, 4, 9])
def test_lists_of_scores_in_parts_are_those_of_all_scores(few):
    scores, masked = randoms(CLIENTS, ITEMS, seed=3), drawn_lot()
    in_parts = InParts(lambda: torch.split(scores, few))
    whole = top_k(scores, masked, 5)
    assert torch.equal(top_k(in_parts, masked, 5), whole)
    assert torch.equal(top_k(in_parts, None, 5), top_k(scores, None, 5))
    assert not torch.equal(top_k(in_parts, None, 5), whole)  # what is masked matters here


def test_parts_of_a_cohort_are_its_clients():
    own, train = drawn_lot(), drawn_lot(seed=1)
    cohort = Cohort(torch.arange(CLIENTS) + 100, ITEMS, train, own, held=drawn_lot(seed=2),
                    weight=torch.arange(CLIENTS).float())  # fmt: skip
    parts = [cohort.part(begin, min(begin + 4, CLIENTS)) for begin in range(0, CLIENTS, 4)]
    assert torch.cat([part.ids for part in parts]).tolist() == cohort.ids.tolist()
    assert torch.cat([part.weight for part in parts]).tolist() == cohort.weight.tolist()
    for name in ("own", "train", "held"):
        lots = [getattr(part, name) for part in parts]
        whole = getattr(cohort, name)
        assert torch.equal(torch.cat([lot.item for lot in lots]), whole.item)
        assert torch.equal(
            torch.cat([lot.owner + 4 * n for n, lot in enumerate(lots)]), whole.owner
        )
        for lot in lots:
            assert torch.equal(lot.count, jagged.counts(lot.owner, lot.clients))


@pytest.mark.parametrize("model", [LightGCN(dim=4), Bag(dim=4)])
def test_measures_in_parts_are_equal_to_the_last_digit(monkeypatch, model):
    fed = Federation.start(tiny_holdings(12, 20), FedAvg(model=model), seed=0).run(2)
    asked = []
    scores = FedAvg.client_scores

    def counting(self, public, private, cohort):
        asked.append(len(cohort))
        return scores(self, public, private, cohort)

    monkeypatch.setattr(FedAvg, "client_scores", counting)
    whole = fed.evaluate("test", k=5)
    assert asked == [12]
    monkeypatch.setattr(executor, "CACHED_CELLS", 5 * 20)
    assert fed.evaluate("test", k=5) == whole
    assert asked == [12, 5, 5, 2]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_rows_are_added_up_in_the_same_order_without_a_copy(kind):
    lot, table = drawn_lot(), randoms(ITEMS, 32, seed=5).to(kind)
    taken = TakenRows({"item": table}, ("item",), lot)
    copied = {"item": table.index_select(0, lot.item)}
    assert torch.equal(taken["item"], copied["item"])
    assert list(taken) == ["item"]
    found = summed_rows(taken, "item", lot)
    assert torch.equal(found, summed_rows(copied, "item", lot))
    backward = Lot(lot.owner.flip(0), lot.item.flip(0), CLIENTS)  # another order, other bits
    other = summed_rows({"item": table.index_select(0, backward.item)}, "item", backward)
    assert not torch.equal(found, other)


@pytest.mark.parametrize("ids", [[0, 1, 2], [2, 3, 4, 5], [1, 3], [5, 0], [4, 3, 2], [7, 8], []])
def test_rows_of_neighbours_are_those_of_each_alone(ids):
    client = torch.tensor([0, 0, 2, 3, 3, 3, 5, 6])
    table = Table({"client": client, "item": torch.arange(8)})
    owner, rows = table.take(torch.tensor(ids, dtype=torch.int64))
    wanted = [(at, n) for at, i in enumerate(ids) for n in range(8) if int(client[n]) == i]
    assert list(zip(owner.tolist(), rows["item"].tolist(), strict=True)) == wanted


def loaded(code: str, module: str) -> bool:
    """Return whether a process that runs this code loads a module."""
    code = f"import sys\n{code}\nprint({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def test_a_single_list_does_not_load_the_compiler():
    code = (
        "import torch; from rescind.core.tasks.metrics import top_k; top_k(torch.rand({}), None, 5)"
    )
    assert not loaded(code.format("1, 4000"), "numba")
    assert loaded(code.format("100, 4000"), "numba")


@pytest.mark.parametrize(
    ("shape", "wrong"),
    [
        ("transposed", [20, 12]), ("fewer items", [12, 13]), ("one row", [1, 20]),
        ("right", None),
    ],
)  # fmt: skip
def test_scores_of_another_shape_are_refused_before_they_are_ranked(shape, wrong):
    @dataclass(frozen=True, kw_only=True)
    class Sketch(FedAvg):
        def client_scores(self, public, private, cohort):
            scores = super().client_scores(public, private, cohort)
            return {
                "transposed": scores.T, "fewer items": scores[:, 7:], "one row": scores[:1],
                "right": scores,
            }[shape]  # fmt: skip

    fed = Federation.start(tiny_holdings(12, 20), Sketch(model=Bag(dim=4)), seed=0)
    if wrong is None:
        assert fed.evaluate()
        return
    with pytest.raises(BoundaryError) as refused:
        fed.evaluate()
    assert f"Sketch.client_scores returned {wrong}; expected [12, 20]" in str(refused.value)
    if shape != "one row":  # for one user that is right
        with pytest.raises(BoundaryError, match=r"Sketch\.client_scores returned"):
            fed.recommend(user=3, k=2)


def test_recommend_takes_one_user_at_a_time():
    fed = Federation.start(tiny_holdings(12, 20), FedAvg(model=Bag(dim=4)), seed=0)
    with pytest.raises(DataError, match="no user"):
        fed.recommend(user=[3])
    assert fed.recommend(user="3", k=2) == fed.recommend(user=3, k=2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_not_finite_are_refused_and_minus_infinity_hides_an_item(value):
    @dataclass(frozen=True, kw_only=True)
    class Mix(FedAvg):
        def client_scores(self, public, private, cohort):
            scores = super().client_scores(public, private, cohort).clone()
            scores[:, 3] = value
            return scores

    fed = Federation.start(tiny_holdings(12, 20), Mix(model=Bag(dim=4)), seed=0)
    if value == -torch.inf:
        assert fed.evaluate()
        assert "3" not in [one.item for one in fed.recommend(user=3, k=20)]
        return
    said = r"Mix\.client_scores returned values that are not finite"
    with pytest.raises(BoundaryError, match=said):
        fed.evaluate()
    with pytest.raises(BoundaryError, match=said):
        fed.recommend(user=3, k=2)
    with pytest.raises(BoundaryError, match=said):
        fed.recommend(history=[1, 2])
