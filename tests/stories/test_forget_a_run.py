"""A run on disk forgets a person: nothing of them stays in its folders, and nothing comes back."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rescind.experiments.forget_run import answer, read_request
from rescind.experiments.read_request import NamedRecords

from rescind.core.clock import Clock
from rescind.data import Dataset
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.learning_run import append_facts, run_cell
from rescind.experiments.recipe import Cell, DataSettings, Recipe, RunSettings, SharingSettings
from rescind.forgetting import pipeline
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.receipts.receipt import digest
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
        order = np.argsort(clock.bits("films", torch_of(user), torch_range(40)).numpy())
        rows += [(user, int(item)) for item in order[:12]]
    pairs = np.array(rows, dtype=np.int64)
    users = np.array([CANARY if u == 3 else f"person-{u}" for u in range(30)])
    items = np.array([FILM if i == int(pairs[36, 1]) else f"film-{i}" for i in range(40)])
    time = np.zeros(len(pairs), dtype=np.int64)
    return Dataset("tiny", pairs[:, 0], pairs[:, 1], None, time, users, items)


def torch_of(value: int):
    import torch

    return torch.tensor(value)


def torch_range(many: int):
    import torch

    return torch.arange(many)


@pytest.fixture
def run(tmp_path) -> Path:
    run_cell(CELL, tmp_path / "run", dataset=dataset())
    return tmp_path / "run"


def holding(folder: Path, text: str) -> list[str]:
    """The files under a folder that hold a text."""
    return sorted(
        p.name for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()
    )


def pairs_of(run: Path, user: str) -> set[str]:
    """The items a saved run holds of a person."""
    fed = load_federation(run / "model")
    held = fed.now.vault.holdings.records
    client = fed.labels.client(user, fed.world.sizes.clients)
    return {fed.labels.item_id(i) for i in held.item[held.client == client].tolist()}


def test_a_person_who_leaves_is_in_no_file_and_does_not_come_back(run, tmp_path):
    assert [Path(name).suffix for name in holding(run, CANARY)] == [".json"], "their id"
    done = answer(run, "withdraw", CANARY, audits="none")
    assert done.folder == tmp_path / "run-forgot-1"
    assert holding(tmp_path / "run", CANARY) == []
    assert holding(tmp_path / "run-forgot-1", CANARY) == []
    left = ["moved.json", "report.html", "run.json", "withheld.json"]
    assert sorted(p.name for p in run.iterdir()) == left
    (way_on,) = re.findall('<a href="(.*?)"', (run / "report.html").read_text())
    assert (run / way_on).resolve() == tmp_path / "run-forgot-1" / "receipt.html"
    assert "model" not in json.loads((run / "run.json").read_text()), "it is sealed in the receipt"
    client = 3
    assert not bool((done.fed.now.vault.holdings.records.client == client).any())
    again = run_cell(CELL, run, dataset=dataset()).fed  # the publisher's file still has them
    assert not bool((again.now.vault.holdings.records.client == client).any())
    assert not bool((again.world.shared.client == client).any())


def test_the_new_run_is_not_named_like_another_seed(run, tmp_path):
    (tmp_path / "run").rename(tmp_path / "seed-0")
    (tmp_path / "seed-0" / "report.html").write_text(f"a report about {CANARY}")
    first = answer(tmp_path / "seed-0", "withdraw", CANARY, audits="none").folder
    assert first.name == "seed-0-forgot-1"
    assert holding(tmp_path / "seed-0", CANARY) == [], "the old report goes with its model"
    second = answer(first, "withdraw", "person-4", audits="none").folder
    assert second.name == "seed-0-forgot-2"


def test_a_rerun_says_that_the_run_beside_it_is_the_one_without_the_records(run, caplog):
    done = answer(run, "withdraw", CANARY, audits="none")
    caplog.clear()
    run_cell(CELL, run, dataset=dataset())
    (said,) = [line for line in caplog.messages if str(done.folder) in line]
    assert "without what was forgotten" in said
    assert "with its records" not in said, "read as: the erasure failed"
    assert holding(done.folder, CANARY) == [], "and it is true"


def test_erased_records_are_left_out_by_every_rerun_and_resume(run, tmp_path):
    before = pairs_of(run, CANARY)
    request = tmp_path / "request.csv"
    request.write_text(f"user,item\n{CANARY},{FILM}\n")
    done = answer(run, "erase", str(request), audits="none")
    assert before - pairs_of(done.folder, CANARY) == {FILM}
    for again in (False, True):
        run_cell(CELL, run, again=again, dataset=dataset())
        assert before - pairs_of(run, CANARY) == {FILM}
    second = answer(run, "withdraw", CANARY, audits="none")
    assert second.folder == tmp_path / "run-forgot-2"
    first = (done.folder / "receipt.json").read_bytes()
    assert second.evidence.receipt.previous == digest(first)
    third = answer(second.folder, "withdraw", "person-4", audits="none")
    facts = json.loads((third.folder / "run.json").read_text())
    assert [f["kind"] for f in facts["forgotten"]] == ["Withdraw", "Withdraw"], "since it learnt"


@pytest.mark.parametrize("left_of_it", ["all", "the later runs are deleted", "no way back"])
def test_who_left_a_later_run_stays_away_when_the_first_is_run_again(run, tmp_path, left_of_it):
    asked = (CANARY, "person-4", "person-5")
    before, newest = {who: pairs_of(run, who) for who in asked}, run
    for who in asked:
        newest = answer(newest, "withdraw", who, audits="none").folder
    for later in sorted(tmp_path.glob("run-forgot-*")):
        if left_of_it == "the later runs are deleted":
            shutil.rmtree(later)
        elif left_of_it == "no way back":  # as earlier versions left them
            (later / "before.json").unlink()
    if left_of_it == "no way back":
        for early in (run, tmp_path / "run-forgot-1"):
            first = Blocklist().with_withdrawn(CANARY)
            first.write(early)
    run_cell(CELL, run, dataset=dataset())
    assert all(before.values()), "control: they were there"
    fed = load_federation(run / "model")
    assert not {*asked} & {*fed.labels.users}
    assert len(fed.now.vault.holdings.records) == 12 * (30 - len(asked))


def test_a_rerun_states_the_digest_of_the_rows_that_are_left(run, tmp_path):
    before = read_facts(run)["data"]["digest"]
    assert before == dataset().digest, "control: a run without a request states all rows"
    answer(run, "withdraw", CANARY, audits="none")
    again, path = run_cell(CELL, run, dataset=dataset()), tmp_path / "results" / "t.toml"
    names, data = again.fed.labels, dataset().select(dataset().user != 3)
    assert CANARY not in names.users
    left = replace(data, users=np.array(names.users), items=np.array(names.items))
    assert read_facts(run)["data"]["digest"] == again.facts["data"]["digest"] == left.digest
    path.parent.mkdir()
    append_facts(Recipe(path, "", "", (), ()), again.facts)
    line = json.loads(path.with_suffix(".jsonl").read_text())
    assert line["data"] == left.digest != before


def test_loans_taken_back_are_not_lent_again_by_a_rerun(run):
    fed = load_federation(run / "model")
    lender = int(fed.world.shared.client[0])
    name, many = fed.labels.user_id(lender), len(fed.world.shared)
    path = run.parent / "request.csv"
    path.write_text(f"user\n{name}\n")
    done = answer(run, "unshare", str(path), audits="none")
    assert len(done.fed.world.shared) < many
    again = run_cell(CELL, run, dataset=dataset()).fed
    assert again.world.shared.digest() == done.fed.world.shared.digest()
    assert pairs_of(run, name) == pairs_of(done.folder, name), "the device keeps its own"


def test_whoever_lends_nothing_cannot_stop_lending_and_is_told_so(run):
    fed, path = load_federation(run / "model"), run.parent / "request.csv"
    lenders = {fed.labels.user_id(int(c)) for c in fed.world.shared.client.unique()}
    lends, not_lends = next(iter(lenders)), next(u for u in fed.labels.users if u not in lenders)
    for users, line in (([not_lends], 2), ([lends, not_lends], 3)):
        path.write_text("\n".join(["user", *users]) + "\n")
        told = f"line {line}: user '{not_lends}' lends nothing in .* answered it, send that receipt"
        with pytest.raises(ConsentError, match=told):
            read_request(fed, "unshare", str(path))
        assert read_request(fed, "erase", str(path)), "control: they have records"
    path.write_text(f"user\n{lends}\n")
    assert len(read_request(fed, "unshare", str(path)).records)


def test_where_nobody_lends_a_draw_of_lenders_says_so_and_what_to_do(tmp_path):
    run_cell(replace(CELL, sharing=None), tmp_path / "run", dataset=dataset())
    fed = load_federation(tmp_path / "run" / "model")
    for kind in ("erase", "unshare"):
        with pytest.raises(
            ConsentError, match=r"nobody lends.*--set 'sharing\.ratio=\[1,2,7\]'.*CSV"
        ):
            read_request(fed, kind, "draw:0.3")


@pytest.mark.parametrize("text", ["user\n{user}\n", "user,item\n{user},{item}\n"])
def test_where_nobody_lends_a_file_of_what_to_unshare_is_told_so(tmp_path, text):
    run_cell(replace(CELL, sharing=None), tmp_path / "run", dataset=dataset())
    fed, path = load_federation(tmp_path / "run" / "model"), tmp_path / "lent.csv"
    held = fed.now.vault.holdings.records
    user, item = fed.labels.user_id(int(held.client[0])), fed.labels.item_id(int(held.item[0]))
    path.write_text(text.format(user=user, item=item))
    told = r"^nobody lends in this run, so there is nothing to unshare\. .*\[sharing\]"
    with pytest.raises(ConsentError, match=told):
        read_request(fed, "unshare", str(path))
    assert read_request(fed, "erase", str(path)), "control: they have records"


def test_the_list_of_what_is_withheld_tells_nothing_without_the_key(run):
    answer(run, "withdraw", CANARY, audits="none")
    table = json.loads((run / "withheld.json").read_text())
    assert len(table["erased"]) == 12
    assert CANARY not in json.dumps(table)
    assert FILM not in json.dumps(table)


def test_bad_requests_are_told_what_to_do(run, tmp_path):
    fed = load_federation(run / "model")
    path = tmp_path / "request.csv"
    for text, says in (
        (
            "film,item\n1,2\n",
            r"no column 'user' \(its first line is 'film, item'\). Write a header",
        ),
        ("user;item\n1;2\n", "separated by ';': separate them by commas"),
        ("user,item\nnobody,film-1\n", "line 2"),
        (f"user,item\n{CANARY},film-99\n", "line 2"),
        ("", "no column 'user'"),
        ("user,item\n", "names no users"),
        (f"user,item\n{CANARY}\n", "has no item"),
        (f"user,items\n{CANARY},{FILM}\n", r"column 'items' and no column 'item': did you mean"),
        (f"user,product\n{CANARY},{FILM}\n", r"column 'product' and no column 'item'"),
        (f"user\n{CANARY},{FILM}\n", f"line 2: '{FILM}' has no column"),
        (f"user,\n{CANARY},{FILM}\n", f"line 2: '{FILM}' has no column"),
        (f"user,user\nperson-4,{CANARY}\n", "two columns 'user'"),
        (f"user,item\n{CANARY},{FILM},film-2\n", "line 2: 'film-2' has no column"),
    ):
        path.write_text(text)
        with pytest.raises((DataError, ConsentError), match=says):
            read_request(fed, "erase", str(path))
    path.write_bytes("user\nJ\u00f6rg\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_request(fed, "erase", str(path))
    for text, items in (  # the control: what else a table has, or the commas of a spreadsheet
        (f"user,item,title\n{CANARY},{FILM},A film\n", 1),
        (f"user,item,\n{CANARY},{FILM},\n", 1),
        (f"user,\n{CANARY},,\n", 12),
    ):
        path.write_text(text)
        assert len(read_request(fed, "erase", str(path)).records) == items
    with pytest.raises(DataError, match=r"there is no file .*none\.csv"):
        read_request(fed, "erase", str(tmp_path / "none.csv"))
    with pytest.raises(DataError, match="cannot be read as a request"):
        read_request(fed, "erase", str(tmp_path))  # there, but no file
    for wrong in ("draw:5", "draw:some", "draw:nan"):
        with pytest.raises(ConfigError, match=rf"'{wrong}' is not a fraction from 0 to 1"):
            read_request(fed, "erase", wrong)
    with pytest.raises(ConsentError, match=r"draws nobody of \d+ lenders. Give a larger fraction"):
        read_request(fed, "erase", "draw:0")
    with pytest.raises(DataError, match=r"several items.*--item A --item B"):
        read_request(fed, "erase", NamedRecords(CANARY, (f"film-1,{FILM}",)))
    with pytest.raises(DataError, match=r"several users.*--withdraw A --withdraw B"):
        read_request(fed, "withdraw", f"{CANARY},person-4")
    with pytest.raises(DataError, match="there is no user 'no,body' among"):
        read_request(fed, "withdraw", "no,body")
    done = answer(run, "withdraw", CANARY, audits="none")
    repeated = answer(run, "withdraw", CANARY, audits="none")
    assert repeated.evidence == replace(done.evidence, report=None), "one request, one receipt"
    with pytest.raises(DataError, match=r"the same command with .*run-forgot-1"):
        answer(run, "withdraw", "person-4", audits="none")


def test_what_a_run_was_made_with_survives_the_forgetting(run):
    done = answer(run, "withdraw", CANARY, audits="none")
    facts = json.loads((done.folder / "run.json").read_text())
    assert facts["metrics"]["test"].keys() == {
        *json.loads((run / "run.json").read_text())["metrics"]["test"]
    }
    assert replace(done.fed.method) == METHOD


def test_the_seconds_of_forgetting_count_forgetting_alone(run, monkeypatch):
    ticks = {"perf_counter": iter([10.0, 17.0]), "process_time": iter([1.0, 3.5])}
    clocks = SimpleNamespace(**{name: ticks[name].__next__ for name in ticks})
    monkeypatch.setattr(pipeline, "time", clocks)  # read once before and once after unlearning
    new = answer(run, "withdraw", CANARY, audits="none").folder
    assert json.loads((new / "run.json").read_text())["seconds"] == {"wall": 7.0, "cpu": 2.5}
