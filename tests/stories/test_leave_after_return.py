"""Who withdrew, was let in again and withdraws once more is noted again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.data.blocklist import Blocklist
from rescind.data.erasing import items_of
from rescind.data.importing import append_file
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation
from shops import import_shop

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
RUNS = (("--run", "run"), ())
"""Let in again by the data and the run, or by the data alone."""


def rescind(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def ask(name: str) -> str:
    """Let c3 withdraw by the folder; return what was said."""
    Path(f"requests/{name}.json").write_text(json.dumps({"withdraw": "c3"}))
    said = rescind("requests", "run", "requests", "--run", "run", "--audits", "none")
    assert said.exit_code == 0, said.output
    return said.output


def forget(run: str) -> Result:
    words = ("--withdraw", "c3", "--audits", "none", "--request", "none")
    return rescind("forget", run, *words)


def appended(name: str, rows: str) -> tuple[int, int]:
    Path(name).write_text(f"user,item\n{rows}")
    done = append_file("shop", Path(name))
    return done.rows, done.withheld


def stays_out() -> bool:
    """Return whether later rows of c3 are withheld, and no later run has learnt from them."""
    assert appended("last.csv", "c3,p9\nc5,p9\n") in {(1, 1), (2, 0)}
    run_cell(CELL, Path("fresh"))
    return "c3" not in load_federation(Path("fresh/model")).labels.users


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on imported data that c3 withdrew from, by the folder."""
    monkeypatch.chdir(tmp_path)
    import_shop(tmp_path, monkeypatch)
    run_cell(CELL, Path("run"))
    Path("requests").mkdir()
    assert "answered: first" in ask("first")


def let_in(runs: tuple[str, ...]) -> None:
    said = rescind("data", "admit", "shop", "--user", "c3", *runs)
    assert said.exit_code == 0, said.output
    assert not Blocklist.of_dataset("shop").has_withdrawn("c3")


@pytest.mark.parametrize("named", ["run", "run-forgot-1", "run-forgot-2"])
@pytest.mark.parametrize("learnt_since", [False, True])
def test_whichever_folder_of_a_run_is_named_a_user_is_let_in_by_all(
    named: str, learnt_since: bool
) -> None:
    """As an officer who has the receipt's folder, or the newest one, in hand."""
    words = ("--withdraw", "c7", "--audits", "none", "--request", "none")
    assert rescind("forget", "run-forgot-1", *words).exit_code == 0  # somebody else's, after hers
    if learnt_since:  # as each night does: the run names its successors no more
        run_cell(CELL, Path("run"))
    let_in(("--run", named))
    assert appended("new.csv", "c3,p4\nc3,p5\n") == (2, 0)
    run_cell(CELL, Path("run"))
    users = load_federation(Path("run/model")).labels.users
    assert "c3" in users
    assert "c7" not in users, "control: who was not let in stays out"


@pytest.mark.parametrize("runs", RUNS)
def test_without_a_second_withdrawal_new_rows_count(runs: tuple[str, ...]) -> None:
    """The control of all below."""
    let_in(runs)
    assert appended("new.csv", "c3,p4\nc3,p5\n") == (2, 0)
    assert not stays_out()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("runs", RUNS)
def test_by_the_folder_before_anything_was_learnt(runs: tuple[str, ...], rows: bool) -> None:
    let_in(runs)
    if rows:
        assert appended("new.csv", "c3,p4\nc3,p5\n") == (2, 0)
    said = ask("second")
    about = json.loads(Path("requests/answered/second/about.json").read_text())
    assert "same_as" not in about, "it is answered anew"
    assert "answered before, as first" not in said
    if rows:
        assert "nothing of theirs since an earlier request, whose receipt is about it" in said
        assert Path("requests/answered/second/receipt-shop.json").is_file()
    assert items_of("shop", "c3") == []
    assert Blocklist.of_dataset("shop").has_withdrawn("c3")
    assert Blocklist.read(Path("run-forgot-1")).has_withdrawn("c3")
    assert stays_out()
    assert "answered before" in ask("reminder")


@pytest.mark.parametrize("run", ["run", "run-forgot-1"])
@pytest.mark.parametrize("runs", RUNS)
def test_by_the_command_before_anything_was_learnt(runs: tuple[str, ...], run: str) -> None:
    let_in(runs)
    assert appended("new.csv", "c3,p4\nc3,p5\n") == (2, 0)
    said = forget(run)
    assert said.exit_code == 0, said.output
    assert "It is noted that they left" in said.output
    assert "To delete them, with a receipt: rescind data erase shop --user c3" in said.output
    assert Blocklist.of_dataset("shop").has_withdrawn("c3")
    assert stays_out()


@pytest.mark.parametrize("runs", RUNS)
def test_a_reminder_of_somebody_who_did_not_return_gets_the_first_answer(
    runs: tuple[str, ...],
) -> None:
    """The other control: nobody is answered anew without having come back."""
    assert "answered before, as first: send requests/answered/first/" in ask("reminder")
    assert Path("requests/answered/reminder/receipt.json").is_file()
    assert stays_out()


def test_after_learning_again_there_is_a_new_receipt() -> None:
    let_in(("--run", "run"))
    assert appended("new.csv", "c3,p4\nc3,p5\n") == (2, 0)
    run_cell(CELL, Path("run"))
    assert "c3" in load_federation(Path("run/model")).labels.users
    assert "answered before" not in ask("second")
    assert Path("requests/answered/second/receipt.json").is_file()
    assert stays_out()


def test_what_is_deleted_when_rows_are_added_is_told() -> None:
    """Rows that the run forgot are stored until then, and no receipt can be made afterwards."""
    words = ("--withdraw", "c7", "--audits", "none", "--request", "none")
    run_cell(CELL, Path("later"))
    said = rescind("forget", "later", *words)
    assert said.exit_code == 0, said.output
    told = []
    for name, row in (("more.csv", "c5,p9"), ("again.csv", "c6,p9")):
        Path(name).write_text(f"user,item\n{row}\n")
        told.append(rescind("data", "append", "shop", name).output)
    assert "5 stored rows that earlier requests had left out were deleted with this" in told[0]
    assert "were deleted" not in told[1], "the control: nothing is left to delete"
