"""Operating without a service: new rows, lists for a shop, new keys."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import rescind as rs
from requesting import ask
from rescind.cli import app, main
from rescind.core.files import locked
from rescind.data import canonical
from rescind.data.blocklist import Blocklist
from rescind.data.importing import append_file, imported_folder, load_imported
from rescind.errors import ConfigError, DataError
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.experiments.serving import export
from rescind.home import Ledger, Refused
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy import keys
from rescind.requests.answer import readmit
from rescind.storage.federations import save_federation
from rescind.storage.quick_lists import open_saved, recommend

FIRST = "user,item,time,title\na,x,10,Up\nb,y,20,Heat\n"
LATER = "user,item,time,title\na,z,30,Ran\nc,x,5,\n"
DATA = DataSettings(name="synthetic", users=20, items=30, interactions=300)


class Killed(BaseException):
    """Ends a call as a kill does."""


@pytest.fixture
def mine(tmp_path):
    """An imported dataset, and a file with later rows."""
    (tmp_path / "first.csv").write_text(FIRST)
    (tmp_path / "later.csv").write_text(LATER)
    rs.import_file(tmp_path / "first.csv", "mine")
    return tmp_path / "later.csv"


def rows(data: rs.Dataset) -> list[tuple[str, str, int]]:
    users, items = data.users[data.user].tolist(), data.items[data.item].tolist()
    return list(zip(users, items, data.time.tolist(), strict=True))


def test_new_rows_join_the_old_ones_as_if_they_had_come_together(mine, tmp_path):
    done = append_file("mine", mine)
    assert done.rows == 2
    assert rows(done.dataset) == [("a", "x", 10), ("a", "z", 30), ("b", "y", 20), ("c", "x", 5)]
    assert load_imported("mine").digest == done.dataset.digest
    assert done.dataset.titles.tolist() == ["Up", "Heat", "Ran"]


def test_the_same_file_again_adds_nothing_also_after_an_erasure(mine):
    append_file("mine", mine)
    assert append_file("mine", mine).rows == 0
    ask("mine", "erase", "c")
    assert append_file("mine", mine).rows == 0, "the mark survives an erasure"
    mine.write_text("user,item,time\nc,y,50\nb,x,51\n")
    again = append_file("mine", mine).dataset
    assert ("b", "x", 51) in rows(again)
    assert ("c", "x", 5) not in rows(again), "erased rows stay away"
    assert ("c", "y", 50) in rows(again), "and new rows of the same user are new"


def test_withheld_rows_are_counted_and_get_no_place(mine):
    append_file("mine", mine)
    ask("mine", "erase", "c")
    Blocklist().with_withdrawn("b").add_to("mine")
    mine.write_text("user,item,time\nc,x,50\nb,x,51\nb,w,52\na,y,53\n")
    done = append_file("mine", mine)
    assert (done.rows, done.withheld) == (1, 3)
    assert rows(done.dataset) == [("a", "x", 10), ("a", "z", 30), ("a", "y", 53)]
    assert done.dataset.users.tolist() == ["a", "(left 1)", "(left 2)"], "numbers stay"
    assert done.dataset.size == {"users": 1, "items": 3, "rows": 3}
    assert done.dataset.on_devices(0).members.tolist() == [True, False, False]


def test_who_is_let_in_again_brings_no_row_from_before(mine):
    assert "b" in load_imported("mine").users, "the control"
    ask("mine", "leave", "b")
    with Ledger.open() as ledger:
        with pytest.raises(Refused):
            readmit(ledger, "mine", "a")
        readmit(ledger, "mine", "b")
    assert rows(rs.load("mine")) == [("a", "x", 10)]
    mine.write_text("user,item,time\nb,y,50\nb,w,51\n")
    done = append_file("mine", mine)
    assert (done.rows, done.withheld) == (1, 1)
    assert rows(done.dataset) == [("a", "x", 10), ("b", "w", 51)]


KILLED_APPEND = """
import os, sys
from rescind.data.importing import append_file
real, calls = os.replace, []
def replace(source, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    real(source, target)
os.replace = replace
append_file("mine", sys.argv[1])
os._exit(0)
"""


@pytest.mark.parametrize("at", [1, 2])
def test_killed_between_two_writes_nothing_is_lost_and_the_file_can_be_given_again(mine, at):
    before = load_imported("mine").digest
    words = [sys.executable, "-c", KILLED_APPEND, str(mine), str(at)]
    assert subprocess.run(words, check=False).returncode == 9
    hidden = [p.name for p in imported_folder().iterdir() if p.name.startswith(".")]
    assert (".old.mine" in hidden) == (at == 2), "the old folder was moved away, nothing came yet"
    assert rs.load("mine").digest == before
    assert append_file("mine", mine).rows == 2
    assert append_file("mine", mine).rows == 0
    assert not (imported_folder() / ".old.mine").exists()


def test_an_interrupt_between_two_writes_puts_the_old_data_back(mine, monkeypatch):
    before = load_imported("mine").digest
    real, calls = os.replace, []

    def killed(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise Killed
        return real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(canonical.os, "replace", killed)
        with pytest.raises(Killed):
            append_file("mine", mine)
    assert load_imported("mine").digest == before


def test_two_at_once_are_told_apart(mine):
    with locked(imported_folder()), pytest.raises(DataError, match="in use by another"):
        append_file("mine", mine)
    assert append_file("mine", mine).rows == 2, "control"


@pytest.mark.parametrize(
    "text",
    ["user,item\na,x\n", "user,item,time,rating\na,x,3,5\n", "user,item,time\na,x,soon\n"],
)
def test_rows_that_do_not_fit_change_nothing(mine, text):
    before = load_imported("mine").digest
    mine.write_text(text)
    with pytest.raises(DataError):
        append_file("mine", mine)
    assert load_imported("mine").digest == before
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        append_file("mne", mine)


@pytest.mark.parametrize("method", [Gram(), LocalGram(), FedAvg(model=MF(dim=2))], ids=str)
def test_exported_lists_are_those_that_recommend_gives(tmp_path, method):
    run = RunSettings(rounds=1, evaluate_every=1)
    fed = run_cell(Cell("c", DATA, None, method, run), tmp_path / "run").fed
    done = export(fed, tmp_path / "out", k=5)
    table = pq.read_table(tmp_path / "out" / "top-k.parquet").to_pylist()
    assert done.users == 20
    holdings, held_out = fed.now.vault.holdings, 0
    for user in ("0", "7"):
        mine = [row["item"] for row in table if row["user"] == user]
        assert mine == [one.item for one in fed.recommend(user, 5)]
        part = holdings.part(torch.tensor([fed.labels.client(user, holdings.clients)]))
        assert not set(mine) & {fed.labels.item_id(i) for i in part.records.item.tolist()}
        held_out += int((part.split != 0).sum())
    assert held_out, "the control: there is something to leave out"
    near = tmp_path / "out" / "neighbours.parquet"
    assert near.is_file() == (done.items > 0) == (not isinstance(method, FedAvg))
    if near.is_file():
        of_first = [r for r in pq.read_table(near).to_pylist() if r["item"] == "0"]
        assert [r["rank"] for r in of_first] == list(range(1, len(of_first) + 1))
        weights = [r["weight"] for r in of_first]
        assert weights == sorted(weights, reverse=True)
        best = fed.recommend(history=[of_first[0]["neighbour"]], k=30)
        score = {one.item: one.score for one in best}
        assert score["0"] == pytest.approx(weights[0], rel=1e-3), "what that neighbour adds"


@pytest.mark.parametrize("method", [Gram(), FedAvg(model=MF(dim=2))], ids=str)
def test_users_without_data_are_exported_with_the_popular_items_that_recommend_gives(
    tmp_path, method
):
    run = RunSettings(rounds=1, evaluate_every=1)
    fed = run_cell(Cell("c", DATA, None, method, run), tmp_path / "run").fed
    held = fed.now.vault.holdings
    only_tests = held.part(torch.tensor([7]))
    for gone in (held.part(torch.tensor([3])).records, only_tests.records[only_tests.split == 0]):
        fed = fed.apply(rs.Erase(gone))
    assert (~fed.world.available).nonzero().squeeze(1).tolist() == [3, 7]
    export(fed, tmp_path / "out", k=5)
    table = pq.read_table(tmp_path / "out" / "top-k.parquet").to_pylist()
    got = {user: [r["item"] for r in table if r["user"] == user] for user in ("3", "7", "8")}
    for user, items in got.items():
        best = fed.recommend(user, 5)
        assert items == [one.item for one in best]
        assert (best[0].because == "popularity") == (user != "8"), "control: 8 has data"
    owners = fed.popularity().tolist()
    assert [owners[int(item)] for item in got["3"]] == sorted(owners, reverse=True)[:5]
    had = {fed.labels.item_id(i) for i in only_tests.records.item[only_tests.split != 0].tolist()}
    assert had
    assert not had & set(got["7"]), "what is held out of their data is left out"


def test_a_new_key_is_signed_by_the_old_one_and_a_kill_changes_nothing(monkeypatch):
    keys.signing_key()
    old = keys.own_public_key()
    real = os.replace

    def killed(source, target):
        if Path(target).name == "signing.key":
            raise Killed
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(keys.os, "replace", killed)
        with pytest.raises(Killed):
            keys.rotate_signing_key("2026-11-30")
    assert keys.own_public_key() == old, "the old key signs until all is written"
    statement = keys.rotate_signing_key("2026-11-30").read_bytes()
    new = keys.own_public_key()
    assert keys.check_rotation(statement) == (old, new, "2026-11-30")
    assert new != old
    assert (keys.folder() / "signing.pub").read_text().strip() == new
    with pytest.raises(ConfigError, match="both keys signed"):
        keys.check_rotation(statement.replace(b"2026", b"2027"))


def test_the_commands(mine, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def rescind(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, capsys.readouterr()
        return capsys.readouterr().out

    assert "2 rows added; now 3 users, 3 items, 4 rows" in rescind(
        "data", "append", "mine", "later.csv"
    )
    assert "mine: 0 rows" in rescind("data", "append", "mine", "later.csv")
    run = RunSettings(rounds=1, evaluate_every=1)
    run_cell(Cell("c", DATA, None, Gram(), run), tmp_path / "run")
    assert "lists of 20 users" in rescind("export", "run", "--out", "serving")
    told = CliRunner().invoke(app, ["export", "run", "--out", "later.csv"])
    assert "--out is the folder to write into; later.csv is a file" in str(told.exception)
    assert "no key yet" in rescind("keys", "show")
    keys.signing_key()
    told = CliRunner().invoke(app, ["keys", "rotate"], input="n\n")
    assert "the old one destroyed.\nGo on? This cannot be undone. [y/N]" in told.output
    assert told.output.endswith("Nothing was changed.\n")
    for closed in ("", "\n"):  # as from /dev/null, and an empty line, which is a no
        told = CliRunner().invoke(app, ["keys", "rotate"], input=closed)
        assert ("or give --yes" in str(told.exception)) is (closed == "")
    assert not [*keys.folder().glob("rotated-*.json")], "who says no keeps the key"
    rescind("keys", "rotate", "--yes")
    (statement,) = keys.folder().glob("rotated-*.json")
    assert "VALID: since" in rescind("keys", "check", str(statement))


@pytest.mark.parametrize("method", [Gram(), LocalGram(), FedAvg(model=MF(dim=2))], ids=str)
def test_items_that_only_users_who_left_had_are_in_no_list(tmp_path, method):
    run = RunSettings(rounds=1, evaluate_every=1)
    fed = run_cell(Cell("c", DATA, None, method, run), tmp_path / "run").fed
    export(fed, tmp_path / "before", k=30)
    listed = pq.read_table(tmp_path / "before" / "top-k.parquet").to_pylist()
    gone = listed[0]["item"]
    fed = replace(fed, labels=fed.labels.without_items([int(gone)]))
    export(fed, tmp_path / "after", k=30)
    left = pq.read_table(tmp_path / "after" / "top-k.parquet").to_pylist()
    before = [(row["user"], row["item"]) for row in listed if row["item"] != gone]
    assert [(row["user"], row["item"]) for row in left] == before, "the control: nothing else"
    own = [one.item for one in fed.recommend("0", 30)]
    assert own == [row["item"] for row in left if row["user"] == "0"]
    save_federation(fed, tmp_path / "saved")
    saved = open_saved(tmp_path / "saved")
    assert saved is not None
    quick = recommend(saved, "0", 30, None)
    assert (quick is None) == isinstance(method, FedAvg), "a model of vectors is loaded"
    assert quick is None or [one.item for one in quick] == own
    for path in (tmp_path / "after").glob("neighbours.parquet"):
        near = pq.read_table(path).to_pylist()
        assert not any("(removed " in row["item"] + row["neighbour"] for row in near)
