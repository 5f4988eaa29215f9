"""A run of published data forgets a person in its folder: nothing stays, and nothing comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from requesting import ask_of
from rescind.core.clock import Clock
from rescind.data import Dataset
from rescind.errors import RescindError
from rescind.experiments.learning_run import append_facts, run_cell
from rescind.experiments.recipe import Cell, DataSettings, Recipe, RunSettings, SharingSettings
from rescind.forgetting import pipeline
from rescind.home import Ledger
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.receipts.receipt import parse
from rescind.requests.drawing import drawn
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import read_facts

CANARY = "canary-7f3a9c51"
FILM = "film-e2d8b640"
METHOD = FedShare(model=LightGCN(dim=4), clients_per_round=8, refine_pairs=16, contrast_items=4)
CELL = Cell(
    "tiny",
    DataSettings(name="synthetic"),
    SharingSettings(ratio=(1, 1, 1), part=0.5),
    METHOD,
    RunSettings(rounds=4, evaluate_every=2, checkpoint_every=1, keep_every=2),
)


def dataset() -> Dataset:
    """Thirty people with a dozen of forty films each; the canary is one of them."""
    clock, rows = Clock(5), []
    for user in range(30):
        order = np.argsort(clock.bits("films", torch.tensor(user), torch.arange(40)).numpy())
        rows += [(user, int(item)) for item in order[:12]]
    pairs = np.array(rows, dtype=np.int64)
    users = np.array([CANARY if u == 3 else f"person-{u}" for u in range(30)])
    items = np.array([FILM if i == int(pairs[36, 1]) else f"film-{i}" for i in range(40)])
    time = np.zeros(len(pairs), dtype=np.int64)
    return Dataset("tiny", pairs[:, 0], pairs[:, 1], None, time, users, items)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_cell(CELL, tmp_path / "run", dataset=dataset())
    return tmp_path / "run"


def holding(folder: Path, text: str) -> list[str]:
    """Return the files under a folder that hold a text."""
    return sorted(
        p.name for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()
    )


def pairs_of(run: Path, user: str) -> set[str]:
    """Return the items that a saved run holds of a person."""
    fed = load_federation(run / "model")
    held = fed.now.vault.holdings.records
    client = fed.labels.client(user, fed.world.sizes.clients)
    return {fed.labels.item_id(i) for i in held.item[held.client == client].tolist()}


def test_a_person_who_leaves_is_in_no_file_and_does_not_come_back(run: Path, tmp_path: Path):
    (run / "report.html").write_text(f"a report about {CANARY}")
    assert len(holding(run, CANARY)) == 2, "control: their id, in the model and in the report"
    assert ask_of(run, "leave", CANARY).outcome == "ERASED"
    assert holding(run, CANARY) == []
    assert sorted(path.name for path in run.iterdir()) == ["model", "run.json"]
    again = run_cell(CELL, run, dataset=dataset()).fed  # the publisher's file still has them
    assert not bool((again.now.vault.holdings.records.client == 3).any())
    assert not bool((again.world.shared.client == 3).any())
    other = run_cell(CELL, tmp_path / "another", dataset=dataset()).fed
    assert CANARY in other.labels.users, "control: each run of published data is asked by itself"


@pytest.mark.parametrize("resumed", [False, True])
def test_erased_records_are_left_out_by_every_rerun_and_resume(run: Path, resumed: bool):
    before = pairs_of(run, CANARY)
    first = ask_of(run, "erase", CANARY, items=(FILM,))
    assert before - pairs_of(run, CANARY) == {FILM}
    run_cell(CELL, run, again=resumed, dataset=dataset())
    assert before - pairs_of(run, CANARY) == {FILM}
    second = ask_of(run, "leave", CANARY)
    third = ask_of(run, "leave", "person-4")
    with Ledger.open() as ledger:
        chain = [parse(ledger.receipt(one.receipt)[0]).previous for one in (second, third)]
    assert chain == [first.receipt, second.receipt]
    assert ask_of(run, "leave", CANARY).receipt == second.receipt, "the same again"


def test_a_rerun_states_the_digest_of_the_rows_that_are_left(run: Path, tmp_path: Path):
    before = (read_facts(run) or {})["data"]["digest"]
    assert before == dataset().digest, "control: a run without a request states all rows"
    ask_of(run, "leave", CANARY)
    again, path = run_cell(CELL, run, dataset=dataset()), tmp_path / "results" / "t.toml"
    names, data = again.fed.labels, dataset().select(dataset().user != 3)
    assert CANARY not in names.users
    left = replace(data, users=np.array(names.users), items=np.array(names.items))
    assert (read_facts(run) or {})["data"]["digest"] == again.facts["data"]["digest"] == left.digest
    path.parent.mkdir()
    append_facts(Recipe(path, "", "", (), ()), again.facts)
    line = json.loads(path.with_suffix(".jsonl").read_text())
    assert line["data"] == left.digest != before


def test_loans_taken_back_are_not_lent_again_by_a_rerun(run: Path):
    fed = load_federation(run / "model")
    name, many = fed.labels.user_id(int(fed.world.shared.client[0])), len(fed.world.shared)
    own = pairs_of(run, name)
    assert ask_of(run, "unshare", name).outcome == "ERASED"
    shared = load_federation(run / "model").world.shared
    assert len(shared) < many
    again = run_cell(CELL, run, dataset=dataset()).fed
    assert again.world.shared.digest() == shared.digest()
    assert pairs_of(run, name) == own, "the device keeps its own"


def test_a_draw_of_lenders_names_some_of_them_and_nobody_where_nobody_lends(run, tmp_path):
    fed = load_federation(run / "model")
    lenders = {fed.labels.user_id(c) for c in fed.world.shared.client.tolist()}
    asked = drawn(fed, 0.3).records
    assert {*asked} <= lenders
    assert 0 < len(asked) < len(lenders)
    run_cell(replace(CELL, sharing=None), tmp_path / "own", dataset=dataset())
    for run_of, share in ((tmp_path / "own", 0.3), (run, 0.0)):
        with pytest.raises(RescindError) as told:
            drawn(load_federation(run_of / "model"), share)
        assert told.value.code == "nothing-lent"


def test_what_a_run_was_made_with_survives_the_forgetting(run: Path):
    before = read_facts(run) or {}
    ask_of(run, "leave", CANARY)
    after = read_facts(run) or {}
    assert after["metrics"]["test"].keys() == before["metrics"]["test"].keys()
    assert after["artefact"] == before["artefact"]
    assert load_federation(run / "model").method == METHOD


def test_the_seconds_of_forgetting_count_forgetting_alone(run, monkeypatch):
    ticks = {"perf_counter": iter([10.0, 17.0]), "process_time": iter([1.0, 3.5])}
    clocks = SimpleNamespace(**{name: ticks[name].__next__ for name in ticks})
    monkeypatch.setattr(pipeline, "time", clocks)  # read once before and once after unlearning
    ask_of(run, "leave", CANARY)
    assert (read_facts(run) or {})["seconds"] == {"wall": 7.0, "cpu": 2.5}
