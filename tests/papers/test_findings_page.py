"""Every sentence in italics on the page of findings is held against the committed results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rescind.errors import DataError
from rescind.experiments.recipe import Column
from rescind.experiments.tables import collect
from rescind_papers.exhibits import rows
from rescind_papers.index import Shelf, chosen, finding

ROOT = Path(__file__).resolve().parents[2]
SHELF = Shelf(ROOT / "recipes")


def mean(recipe: str, cell: str, path: str) -> float:
    """The mean over seeds of one number; a cell without results is skipped, and says so."""
    table = collect(SHELF.recipe(recipe), [Column(path)])
    found = next(e for e in table.entries if e.cell == cell)
    if found.mean is None:
        pytest.skip(f"{recipe}: {cell} waits for a run")
    return found.mean


def script(name: str):
    """A script of papers/scripts/findings/ as a module."""
    folder = ROOT / "papers" / "scripts" / "findings"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"finding_{name}", folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def test_every_number_of_table_3_on_two_datasets_lies_below_popularity():
    (exhibit,) = chosen(SHELF.folder, "fedshare/table3")
    for label in ("ml-1m/", "gowalla/"):
        found = [r.entry for r in rows(exhibit, SHELF) if r.entry.cell.startswith(label)]
        printed = [e for e in found if e.paper is not None]
        assert len(printed) >= 16
        assert all(e.paper_below_floor for e in printed)


def test_some_numbers_of_f3crecs_table_2_lie_below_popularity_too():
    (exhibit,) = chosen(SHELF.folder, "f3crec/table2")
    printed = [r.entry for r in rows(exhibit, SHELF) if r.entry.paper is not None]
    below = {e.cell for e in printed if e.paper_below_floor}
    assert "ml-latest-small/FT" in below
    assert {cell.split("/")[0] for cell in below} == {"ml-latest-small"}


def test_fedgcv_before_repair_lies_below_a_retraining_and_tells_shadows_more():
    cell = "cora/FedGCV, before repair"
    assert mean("fedgcv/table1", cell, "forget.leaver.MIA gap") < -0.05
    after = mean("fedgcv/ulira", cell, "forget.ulira.AUC")
    assert after > mean("fedgcv/ulira", cell, "forget.ulira.before")


def test_leaving_the_model_as_it_is_scores_like_a_retraining():
    for measure in ("HR@20", "NDCG@20"):
        left = mean("unlearning/ml-1m", "ml-1m/PurgeOnly", measure)
        assert abs(left - mean("unlearning/ml-1m", "ml-1m/Retrain", measure)) < 0.01


def test_after_twenty_rounds_most_replay_nothing():
    found = {
        row["round of D1"]: row["replay nothing"] for row in finding(SHELF.folder, "empty_replay")
    }
    assert found[20] > 0.75
    assert found[1] < 0.25


def test_the_papers_fedavg_on_tolokers_is_the_larger_class_and_unlearners_are_below():
    shares = {row["graph"]: row for row in finding(SHELF.folder, "majority")}
    printed = SHELF.recipe("fedgcv/large").paper
    assert printed["tolokers/FedAvg, before"]["accuracy"] == pytest.approx(
        shares["tolokers"]["accuracy"], abs=0.001
    )
    (exhibit,) = chosen(SHELF.folder, "fedgcv/table1")
    others = [
        r.entry
        for r in rows(exhibit, SHELF)
        if r.entry.cell.startswith("tolokers/") and r.entry.metric == "kept accuracy"
        and r.entry.paper is not None and not r.entry.cell.endswith((", before", "/retrain"))
    ]  # fmt: skip
    assert len(others) == 8
    assert all(e.paper < shares["tolokers"]["when one leaves"] for e in others)


def test_the_virtual_client_gives_edges_away():
    found = finding(SHELF.folder, "virtual_client")
    assert all(row["edges told, AUC"] > 0.95 for row in found)


@pytest.mark.data
def test_a_finding_is_found_again():
    """The one that takes seconds is made anew and gives what is committed."""
    try:
        _, made = script("majority").found()
    except DataError as error:
        pytest.skip(str(error))
    assert made == finding(SHELF.folder, "majority")
