"""Who had everything erased can leave afterwards: an erasure alone lets later rows in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from rescind.experiments.forget_run import answer
from rescind.experiments.request_log import log_lines
from rescind.experiments.request_queue import work_through
from rescind.forgetting.data_erasure import erase
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.core import files
from rescind.data.blocklist import Blocklist
from rescind.data.erasing import items_of
from rescind.data.importing import append_file
from rescind.experiments import leaving, request_queue
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation
from shops import import_shop

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
ERASED = Path("run-forgot-1")
"""The run after everything of c3 was erased."""
LATER = "user,item\nc3,p4\nc3,p5\nc5,p9\n"
"""Rows that come later: two of c3, one of somebody else."""
FORGOT = "the run has nothing of theirs since an earlier request, whose receipt is about it; "


class Killed(BaseException):
    """Ends a call as a kill does: nothing after it is run."""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on imported data, 12 users with 5 items each, that erased all records of c3."""
    monkeypatch.chdir(tmp_path)
    import_shop(tmp_path, monkeypatch)
    run_cell(CELL, Path("run"))
    Path("asked.csv").write_text("user\nc3\n")
    Path("later.csv").write_text(LATER)
    Path("requests").mkdir()
    done = forget("run", "--erase", "asked.csv")
    assert done.exit_code == 0, done.output


def forget(run: str | Path, *words: str) -> Result:
    given = ["forget", str(run), *words, "--audits", "none", "--request", "none"]
    return CliRunner().invoke(app, given)


def leave(*users: str, run: str | Path = ERASED, more: tuple[str, ...] = ()) -> Result:
    return forget(run, *(word for user in users for word in ("--withdraw", user)), *more)


def added_later() -> tuple[int, int]:
    """Append the rows that come later; return how many were added and withheld."""
    done = append_file("shop", Path("later.csv"))
    return done.rows, done.withheld


def delete_rows() -> None:
    erase("shop", ["c3"], items_of("shop", "c3"), Path("rows.json"), "")


def asked(name: str, **request: object) -> Path:
    path = Path("requests") / f"{name}.json"
    path.write_text(json.dumps(request))
    return path


def answered(*names: str) -> str:
    """Answer the folder by its command; return what it said."""
    words = ["requests", "run", "requests", "--run", "run", "--audits", "none"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert not list(Path("requests").glob("*.json"))
    for name in names:
        assert f"answered: {name}" in said.output
    return said.output


def about(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(f"requests/answered/{name}/about.json").read_text())
    return found


def test_without_a_withdrawal_rows_that_come_later_count() -> None:
    """The control of all below: an erasure names the records that there were."""
    assert added_later() == (3, 0)
    run_cell(CELL, Path("run"))
    assert "c3" in load_federation(Path("run/model")).labels.users


def test_after_a_withdrawal_rows_that_come_later_stay_out() -> None:
    said = leave("c3")
    assert said.exit_code == 0, said.output
    told = "user 'c3': all their records were erased from run-forgot-1 after an earlier request"
    assert f"{told}: see its receipt, no new one is needed.\n" in said.output
    assert "that come later are left out of every run of 'shop' on this machine.\n" in said.output
    assert "To delete them, with a receipt: rescind data erase shop --user c3\n" in said.output
    assert not Path("run-forgot-2").exists(), "there was nothing to forget"
    assert added_later() == (1, 2)
    run_cell(CELL, Path("run"))
    assert "c3" not in load_federation(Path("run/model")).labels.users
    assert CliRunner().invoke(app, ["verify", str(ERASED / "receipt.json")]).exit_code == 0
    listed = CliRunner().invoke(app, ["recommend", str(ERASED), "--user", "c5"])
    assert listed.exit_code == 0, "the run still fits its receipt"


def test_commands_that_are_printed_keep_the_case_and_can_be_copied() -> None:
    given = ["forget", str(ERASED), "--withdraw", "c4", "--audits", "none", "--request", "none"]
    told = CliRunner().invoke(app, [*given, "--out", "DSR 117", "--case", "DSR 117"])
    assert told.exit_code == 0, told.output
    deletes = told.output.split("with a receipt: ")[1].splitlines()[0]
    assert deletes == "rescind data erase shop --user c4 --case 'DSR 117'"
    follows = shlex.split(told.output.split("Next: ")[1].splitlines()[0])
    assert follows[:3] == ["rescind", "verify", "DSR 117/receipt.json"]
    assert CliRunner().invoke(app, follows[1:]).exit_code == 0
    erased = CliRunner().invoke(app, shlex.split(deletes)[1:])
    assert erased.exit_code == 0, erased.output
    assert "--withdraw USER --request FILE --case 'DSR 117'" in erased.output
    assert "DSR 117" in Path("receipt-shop.html").read_text(), "it is the receipt of that request"


def test_given_again_it_is_refused_as_of_anybody_who_left() -> None:
    first = str(leave("nobody").exception)
    assert "there is no user 'nobody'" in first, "control"
    assert leave("c3").exit_code == 0
    kept = Path(ERASED / "withheld.json").read_bytes()
    again = str(leave("c3").exception)
    assert again.startswith("user 'c3' has left this run after an earlier request. See its receipt")
    assert again.endswith("Nothing was forgotten.")
    assert Path(ERASED / "withheld.json").read_bytes() == kept


def test_who_has_not_left_is_told_apart() -> None:
    said = CliRunner().invoke(app, ["recommend", str(ERASED), "--user", "c3"])
    had = "user 'c3' had everything erased from this run after an earlier request, and has not left"
    assert str(said.exception).startswith(f"{had}: rows that come later count. See its receipt")


@pytest.mark.parametrize("users", [("c3", "c4"), ("c4", "c3")])
def test_others_of_the_same_command_are_answered_as_usual(users: tuple[str, ...]) -> None:
    refused = leave(*users, "nobody")
    assert "there is no user 'nobody'" in str(refused.exception)
    assert not Blocklist.read(ERASED).has_withdrawn("c3"), "one is unknown: nothing is noted"
    said = leave(*users)
    assert said.exit_code == 0, said.output
    assert Path("run-forgot-2/receipt.json").is_file()
    assert not Path("run-forgot-3").exists()
    assert "user 'c3': all their records were erased from run-forgot-2 after" in said.output
    for run in ("run", "run-forgot-1", "run-forgot-2"):
        listed = Blocklist.read(Path(run))
        assert listed.has_withdrawn("c3"), run
        assert listed.has_withdrawn("c4"), run
        assert not listed.has_withdrawn("c5"), "control"


def test_stopped_after_the_others_the_same_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(leaving, "note_leaving", killed)
        with pytest.raises(Killed):
            leave("c3", "c4")
    assert Path("run-forgot-2/receipt.json").is_file(), "control: c4 was answered"
    said = leave("c3", "c4")
    assert said.exit_code == 0, said.output
    assert Blocklist.read(Path("run-forgot-2")).has_withdrawn("c3")
    assert not Path("run-forgot-3").exists()


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_trial_notes_it_for_its_own_run_alone(everywhere: bool) -> None:
    said = leave("c3", more=() if everywhere else ("--only-here",))
    assert said.exit_code == 0, said.output
    assert Blocklist.read(ERASED).has_withdrawn("c3")
    assert Blocklist.of_dataset("shop").has_withdrawn("c3") == everywhere
    assert ("left out of this run if it learns again." in said.output) != everywhere


def test_in_the_folder_rows_that_are_stored_go_and_the_earlier_receipt_is_named() -> None:
    assert len(items_of("shop", "c3")) == 5, "control: they are stored"
    asked("anna", withdraw="c3")
    said = answered("anna")
    deleted = f"{FORGOT}deleted from 'shop'; its receipt: receipt-shop.json"
    assert f"  imported rows: {deleted}\n" in said
    assert about("anna")["rows"] == deleted
    assert items_of("shop", "c3") == []
    assert Blocklist.read(ERASED).has_withdrawn("c3")
    assert added_later() == (1, 2)
    asked("again", withdraw="c3")
    assert "answered before, as anna: send requests/answered/anna/" in answered("again")


def test_in_the_folder_of_rows_that_the_run_never_had_it_is_not_said() -> None:
    """The control of the test above."""
    Path("new.csv").write_text("user,item\nc40,p2\n")
    append_file("shop", Path("new.csv"))
    asked("new", withdraw="c40")
    answered("new")
    assert str(about("new")["rows"]).startswith("the run has nothing of theirs; deleted from")


def test_in_the_folder_a_few_stored_rows_are_erased_and_nobody_has_left() -> None:
    asked("few", erase={"user": "c3", "items": ["p0"]})
    answered("few")
    assert str(about("few")["rows"]).startswith(FORGOT)
    assert not Blocklist.read(ERASED).has_withdrawn("c3")
    assert added_later() == (3, 0)


def test_in_the_folder_without_stored_rows_no_new_receipt_is_needed() -> None:
    delete_rows()
    asked("anna", withdraw="c3")
    said = answered("anna")
    told = "the run forgot everything of theirs after an earlier request, whose receipt is about it"
    assert f"  {told}: no new one is needed. Noted that they left" in said
    assert "for the user:" not in said
    assert about("anna")["before"] is True
    assert [path.name for path in Path("requests/answered/anna").iterdir()] == ["about.json"]
    assert not Path("run-forgot-2").exists()
    assert Blocklist.read(ERASED).has_withdrawn("c3")
    assert added_later() == (1, 2)
    asked("again", withdraw="c3")
    said = answered("again")
    assert told in said, "no receipt of the first is looked for: it had none"
    assert about("again")["same_as"] == "anna"


def test_what_was_noted_by_the_command_is_answered_in_the_folder_too() -> None:
    delete_rows()
    assert leave("c3").exit_code == 0
    asked("anna", withdraw="c3")
    answered("anna")
    assert about("anna")["before"] is True


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("at", ["_appearing", "note_leaving", "_delete_rows", "add_to_log"])
@pytest.mark.parametrize("after", [True, False])
def test_killed_at_any_moment_the_next_call_goes_on(
    stored: bool, at: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not stored:
        delete_rows()
    path, real = asked("anna", withdraw="c3"), getattr(request_queue, at)

    def killed(*given: object, **more: object) -> None:
        if after:
            real(*given, **more)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(request_queue, at, killed)
        with pytest.raises(Killed):
            work_through(Path("requests"), Path("run"), "none")
    assert path.is_file(), "until the answer is complete it is open"
    answered("anna")
    assert len(log_lines(Path("requests"))) == 1
    assert (FORGOT in str(about("anna")["rows"])) == stored
    assert ("before" in about("anna")) == (not stored)
    assert Blocklist.read(ERASED).has_withdrawn("c3")
    assert added_later() == (1, 2)


def test_killed_between_the_lists_a_repeat_notes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.write_atomically

    def killed(path: Path, *given: object, **more: object) -> None:
        if path.resolve() == (ERASED / "withheld.json").resolve():
            raise Killed
        real(path, *given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("rescind.data.blocklist.write_atomically", killed)
        with pytest.raises(Killed):
            leave("c3")
    assert Blocklist.of_dataset("shop").has_withdrawn("c3"), "control: one list has it"
    assert not Blocklist.read(ERASED).has_withdrawn("c3")
    assert leave("c3").exit_code == 0
    assert Blocklist.read(ERASED).has_withdrawn("c3")


def test_of_a_run_that_learnt_again_in_its_folder_they_can_leave_too() -> None:
    run_cell(CELL, Path("run"))
    said = leave("c3", run="run")
    assert said.exit_code == 0, said.output
    assert added_later() == (1, 2)


def test_who_withdrew_at_first_is_refused() -> None:
    """A control: of a withdrawal there is a receipt, and nothing more to note."""
    answer(ERASED, "withdraw", "c4", audits="none")
    said = str(leave("c4", run="run-forgot-2").exception)
    assert said.startswith("user 'c4' has left this run after an earlier request. See its receipt")
