"""A run that is trained again leaves its earlier answer behind, which must not be answered in.

Both would follow the same receipt: whoever checks the receipts together is told of a fork.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from shops import import_shop

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))


def rescind(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def forget(run: str, user: str, *more: str) -> Result:
    words = ("--audits", "none", "--request", "none", *more)
    return rescind("forget", run, "--withdraw", user, *words)


def good(said: Result) -> str:
    assert said.exit_code == 0, said.output
    return said.output


def forks() -> bool:
    return "FORK" in rescind("verify", ".").output


@pytest.fixture(autouse=True)
def outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that answered c3 and was trained again: run stands, run-forgot-1 is the old answer."""
    monkeypatch.chdir(tmp_path)
    import_shop(tmp_path, monkeypatch)
    run_cell(CELL, Path("run"))
    good(forget("run", "c3"))
    run_cell(CELL, Path("run"))


@pytest.mark.parametrize("answered_since", [False, True])
def test_the_old_answer_is_not_answered_in(answered_since: bool) -> None:
    now = "run"
    if answered_since:
        good(forget("run", "c4"))
        now = "run-forgot-2"
    said = forget("run-forgot-1", "c5")
    assert said.exit_code != 0
    told = str(said.exception)
    assert f"before its run was trained again: {now} stands now" in told
    assert "delete run-forgot-1/model" in told
    assert "Nothing was forgotten" in told
    good(forget(now, "c5"))
    assert not forks()


def test_answered_all_the_same_the_receipts_would_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is refused is what the check of the receipts finds."""
    monkeypatch.setattr("rescind.experiments.forget_run.check_not_outlived", lambda run: None)
    good(forget("run", "c4"))
    good(forget("run-forgot-1", "c4"))
    assert forks()


def test_a_folder_of_requests_does_not_answer_in_it_either() -> None:
    Path("requests").mkdir()
    Path("requests/anna.json").write_text(json.dumps({"withdraw": "c5"}))
    words = ("requests", "run", "requests", "--audits", "none", "--run")
    said = rescind(*words, "run-forgot-1")
    assert said.exit_code != 0
    assert "run stands now" in str(said.exception)
    assert Path("requests/anna.json").is_file(), "the request waits"
    assert not Path("requests/refused/anna.json").exists(), "it is not to blame"
    assert "answered: anna" in good(rescind(*words, "run"))


def test_its_model_is_named_to_be_deleted_and_other_runs_to_be_asked() -> None:
    shutil.copytree("run", "other")
    told = good(forget("run", "c4"))
    assert "Another run on this data still has some of it. Answer there, too, or delete" in told
    assert "delete it: other\n" in told
    assert (
        "The model from before a run was trained again still has some of it. Delete it, nothing "
        "needs it any more: run-forgot-1/model\n" in told
    )
    told = good(rescind("data", "erase", "shop", "--user", "c4", "--yes"))
    assert "Runs that still have some of it: other. rescind forget RUN" in told
    assert "Models to delete, of runs that were trained again since: run-forgot-1/model" in told
    shutil.rmtree("run-forgot-1/model")
    told = good(forget("run-forgot-2", "c6"))
    assert "run-forgot-1" not in told, "deleted as advised: it is not named any more"
    assert "delete it: other\n" in told


def test_a_folder_of_requests_lists_its_model_until_it_is_deleted() -> None:
    Path("requests").mkdir()
    Path("requests/anna.json").write_text(json.dumps({"withdraw": "c5"}))
    words = ("requests", "run", "requests", "--run", "run", "--audits", "none")
    assert "nothing needs it any more: run-forgot-1/model\n" in good(rescind(*words))
    told = good(rescind("requests", "open", "requests"))
    assert "run-forgot-1/model (delete it)" in told
    shutil.rmtree("run-forgot-1/model")
    assert "run-forgot-1" not in good(rescind("requests", "open", "requests"))


def test_copies_and_moved_answers_are_not_meant() -> None:
    """The other control: only what was trained again is refused."""
    good(forget("run", "c4"))
    shutil.copytree("run-forgot-2", "copy")
    good(forget("copy", "c5"))
    shutil.move("run-forgot-2", "moved")
    told = good(forget("moved", "c5"))
    assert "moved-forgot-1" in told
    assert "delete it: copy-forgot-1\n" not in told, "it has nothing of c5"


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
def test_a_folder_whose_answer_was_cleaned_up_names_the_run_that_stands(gone: str) -> None:
    """As after a night: the answer that replaced it is gone, and its run learnt again."""
    good(forget("run", "c4"))  # in run-forgot-2
    good(forget("run-forgot-2", "c5"))
    newest = Path("run-forgot-3")
    run_cell(CELL, Path("run"))
    control = str(forget("run-forgot-2", "c6").exception)
    assert "run-forgot-2 was emptied" in control
    assert "give the same command with run-forgot-3" in control, "while it is there"
    shutil.rmtree(newest if gone == "deleted" else newest / "model")
    for words in (("forget", "run-forgot-2", "--withdraw", "c6", "--request", "none"),
                  ("recommend", "run-forgot-2", "--user", "c6")):  # fmt: skip
        told = str(rescind(*words).exception)
        assert "run-forgot-3 has no model any more. The newest of this run is run." in told


def test_a_receipt_checked_with_a_run_that_learnt_again_is_not_called_unreliable() -> None:
    said = rescind("verify", "run-forgot-1/receipt.json", "--data", "run")
    assert said.exit_code == 1, "what cannot be shown is not VALID"
    assert "no run.key to compare it: it learnt again since, or is another run" in said.output
    assert "The receipt itself is unchanged" in said.output
    assert "Do not rely" not in said.output
    named = rescind("verify", "run-forgot-1/receipt.json", "--run", "run")
    assert "Do not rely" not in named.output
    assert rescind("verify", "run-forgot-1/receipt.json").exit_code == 0
    own = ("verify", "run-forgot-1/receipt.json", "--data", "run-forgot-1")
    assert rescind(*own).exit_code == 0, "the control"


def test_a_sum_that_does_not_fit_its_own_run_is_not_relied_on() -> None:
    """The control of the above: the run says that the receipt is its own, and the sum differs."""
    good(forget("run", "c4"))
    facts = json.loads(Path("run-forgot-2/run.json").read_text())
    shutil.copytree("run-forgot-1/model", "other")
    shutil.rmtree("run-forgot-2/model")
    shutil.copytree("other", "run-forgot-2/model")
    assert facts["receipt"]["digest"]
    said = rescind("verify", "run-forgot-2/receipt.json", "--data", "run-forgot-2")
    assert said.exit_code == 1
    assert "not to the stated sum" in said.output
    assert "Do not rely on anything it says." in said.output


def test_the_page_of_a_deleted_model_goes_when_a_new_one_takes_its_place() -> None:
    good(forget("run", "c4"))
    page = Path("run/report.html")
    assert "Its model, its report" in page.read_text(), "control: while the folder is empty"
    run_cell(CELL, Path("run"))
    assert not page.exists()
