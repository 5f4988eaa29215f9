"""Check every sentence in italics on the page of findings against the committed results.

The docstring of a test is the sentence that it checks.
"""

from __future__ import annotations

import importlib.util
import re
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
UNREPAIRED = "cora/FedGCV, before repair"


def mean(recipe: str, cell: str, path: str) -> float:
    """Return the mean over seeds of one number. Skip the test if the cell has no results."""
    table = collect(SHELF.recipe(recipe), [Column(path)])
    found = next(e for e in table.entries if e.cell == cell)
    if found.mean is None:
        pytest.skip(f"{recipe}: {cell} has no results")
    return found.mean


def script(name: str):
    """Import a script of papers/scripts/findings/ as a module."""
    folder = ROOT / "papers" / "scripts" / "findings"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"finding_{name}", folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def majority(graph: str) -> dict[str, float]:
    """Return the accuracies of always predicting the larger class of a graph."""
    return next(row for row in finding(SHELF.folder, "majority") if row["graph"] == graph)


def test_the_page_claims_what_is_tested_here_and_nothing_else():
    page = re.sub(r"(?s)```.*?```", "", (ROOT / "docs" / "findings.md").read_text("utf-8"))
    claimed = re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", page)
    tests = [test for name, test in globals().items() if name.startswith("test_")]
    tested = [" ".join(test.__doc__.split()) for test in tests if test.__doc__]
    assert sorted(" ".join(sentence.split()) for sentence in claimed) == sorted(tested)


def test_every_number_of_table_3_on_two_datasets_lies_below_popularity():
    """Every number of FedShare's Table III on MovieLens-1M and on the data it calls Fashion lies
    below a ranking of items by popularity.
    """
    (exhibit,) = chosen(SHELF.folder, "fedshare/table3")
    for label in ("ml-1m/", "gowalla/"):
        found = [r.entry for r in rows(exhibit, SHELF) if r.entry.cell.startswith(label)]
        printed = [e for e in found if e.paper is not None]
        assert len(printed) >= 16
        assert all(e.paper_below_floor for e in printed)


def test_some_numbers_of_f3crecs_table_2_lie_below_popularity():
    """Some numbers of F3CRec's Table 2 on ML-Latest-Small lie below item popularity, too, and
    fine-tuning is one of them.
    """
    (exhibit,) = chosen(SHELF.folder, "f3crec/table2")
    printed = [r.entry for r in rows(exhibit, SHELF) if r.entry.paper is not None]
    below = {e.cell for e in printed if e.paper_below_floor}
    assert "ml-latest-small/FT" in below
    assert {cell.split("/")[0] for cell in below} == {"ml-latest-small"}


def test_fedgcv_before_repair_lies_below_a_retraining():
    """Before its repair step, FedGCV lies clearly below the rate of a retrained model."""
    assert mean("fedgcv/table1", UNREPAIRED, "forget.leaver.MIA gap") < -0.05


def test_fedgcv_before_repair_shows_more_to_shadow_models():
    """U-LiRA, an attack that compares with shadow models, finds more in this model than in the
    model that forgot nothing.
    """
    after = mean("fedgcv/ulira", UNREPAIRED, "forget.ulira.AUC")
    assert after > mean("fedgcv/ulira", UNREPAIRED, "forget.ulira.before")


def test_leaving_the_model_as_it_is_scores_like_a_retraining():
    """Deleting the data and leaving the model as it is (PurgeOnly) scores within a hundredth of a
    retraining on MovieLens-1M.
    """
    for measure in ("HR@20", "NDCG@20"):
        left = mean("unlearning/ml-1m", "ml-1m/PurgeOnly", measure)
        assert abs(left - mean("unlearning/ml-1m", "ml-1m/Retrain", measure)) < 0.01


def test_after_twenty_rounds_most_replay_nothing():
    """After twenty rounds of the second block, more than three quarters of the returning users
    replay nothing.
    """
    found = {
        row["round of D1"]: row["replay nothing"] for row in finding(SHELF.folder, "empty_replay")
    }
    assert found[20] > 0.75
    assert found[1] < 0.25


def test_the_papers_fedavg_on_tolokers_is_the_larger_class():
    """On Tolokers, the accuracy of 78.10 that FedGCV's paper gives for FedAvg is the accuracy of
    always predicting the larger class.
    """
    printed = SHELF.recipe("fedgcv/large").paper["tolokers/FedAvg, before"]["accuracy"]
    assert printed == 0.7810
    assert printed == pytest.approx(majority("tolokers")["accuracy"], abs=0.001)


def test_the_papers_unlearners_on_tolokers_lie_below_the_larger_class():
    """Every unlearner in its table except the retraining lies below the accuracy that this
    prediction still has when one client's nodes are left out.
    """
    (exhibit,) = chosen(SHELF.folder, "fedgcv/table1")
    others = [
        r.entry
        for r in rows(exhibit, SHELF)
        if r.entry.cell.startswith("tolokers/") and r.entry.metric == "kept accuracy"
        and r.entry.paper is not None and not r.entry.cell.endswith((", before", "/retrain"))
    ]  # fmt: skip
    assert len(others) == 8
    assert all(e.paper < majority("tolokers")["when one leaves"] for e in others)


def test_the_virtual_client_gives_edges_away():
    """Its likelihoods separate the leaver's real edges from other pairs with an AUC above 0.95."""
    found = finding(SHELF.folder, "virtual_client")
    assert all(row["edges told, AUC"] > 0.95 for row in found)


def ties(order: str) -> dict[str, float]:
    """Return what an order of equal times does."""
    return next(row for row in finding(SHELF.folder, "ties") if row["equal times"] == order)


def test_most_pairs_of_lastfm_have_an_equal_time():
    """more than nine in ten pairs of its later blocks have the same time as another pair of their
    user.
    """
    assert ties("drawn")["pairs with an equal time"] > 0.9


def test_ids_decide_what_is_test():
    """If rows of equal time stay in the order of artist ids, then in more than three of four test
    sets every artist has a higher id than every training artist of the same month, and the artists
    in the test set are less than half as popular.
    """
    found = ties("by artist id")
    assert found["test sets whose ids are all higher"] > 0.75
    assert found["popularity, test / train of the same time"] < 0.5


def test_drawn_ties_do_not():
    """If equal times are drawn, that holds for fewer than one in four, and test and training
    artists are about equally popular.
    """
    found = ties("drawn")
    assert found["test sets whose ids are all higher"] < 0.25
    assert 0.85 < found["popularity, test / train of the same time"] < 1.15


def gains() -> list:
    (exhibit,) = chosen(SHELF.folder, "f3crec/fig3")
    return [r.entry for r in rows(exhibit, SHELF) if r.entry.cell.endswith("/F3CRec")]


def test_f3crecs_gain_is_below_the_printed_one():
    """With settings chosen alike, by the mean validation of three seeds, F3CRec's gain over
    fine-tuning is below the printed one on every dataset and backbone.
    """
    assert len(gains()) == 9
    assert all(e.mean < e.paper for e in gains())


def test_f3crecs_mean_gain_is_a_loss():
    """Its mean over all of them is a loss."""
    assert sum(e.mean for e in gains()) < 0


@pytest.mark.data
@pytest.mark.parametrize("name", ["majority", "ties"])
def test_a_finding_is_found_again(name):
    # The others take minutes.
    try:
        _, made = script(name).found()
    except DataError as error:
        pytest.skip(str(error))
    assert made == finding(SHELF.folder, name)
