"""A receipt beside a model it is not about is noticed before anybody relies on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import rescind
from killing import TINY


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TINY)


def test_a_run_that_fits_its_receipt_is_valid() -> None:
    assert rescind("run", "small.toml", "--out", "one")[0] == 0
    assert rescind("forget", "one", "--withdraw", "7", "--audits", "none")[0] == 0
    code, said = rescind("verify", "--run", "one-forgot-1")
    assert code == 0, said
    assert "the data is what remained" in said
    assert rescind("recommend", "one-forgot-1", "--user", "3")[0] == 0
    code, said = rescind("verify")
    assert code == 2
    assert "--run RUN" in said


@pytest.mark.parametrize("part", ["model", "receipt.json"])
def test_a_model_beside_another_ones_receipt_is_refused(tmp_path: Path, part: str) -> None:
    for name, user in (("one", "7"), ("two", "9")):
        assert rescind("run", "small.toml", "--out", name)[0] == 0
        assert rescind("forget", name, "--withdraw", user, "--audits", "none")[0] == 0
    mine, other = tmp_path / "one-forgot-1" / part, tmp_path / "two-forgot-1" / part
    shutil.rmtree(mine) if mine.is_dir() else mine.unlink()
    shutil.copytree(other, mine) if other.is_dir() else shutil.copy(other, mine)
    code, said = rescind("verify", "--run", "one-forgot-1")
    assert code == 1
    assert "NOT VALID" in said
    code, said = rescind("verify", "one-forgot-1/receipt.json")
    assert code == 0, "the control: the receipt by itself is valid"
    for words in (
        ("recommend", "one-forgot-1", "--user", "3"),
        ("forget", "one-forgot-1", "--withdraw", "5", "--audits", "none"),
    ):
        code, said = rescind(*words)
        assert code == 2
        assert "does not fit" in said


def test_a_receipt_of_another_run_is_not_valid_with_this_one(tmp_path: Path) -> None:
    for name, user in (("one", "7"), ("two", "9"), ("three", "")):
        assert rescind("run", "small.toml", "--out", name)[0] == 0
        if user:
            assert rescind("forget", name, "--withdraw", user, "--audits", "none")[0] == 0
    code, said = rescind("verify", "two-forgot-1/receipt.json", "--run", "one-forgot-1")
    assert code == 1, said
    assert "NO   it is not the receipt of one-forgot-1" in said
    assert "what remained" not in said, "nothing of the run speaks for another's receipt"
    code, said = rescind("verify", "two-forgot-1/receipt.json", "--run", "three")
    assert code == 1, said
    assert "three answered no request" in said
    shutil.copy(tmp_path / "one-forgot-1" / "receipt.json", tmp_path / "copy.json")
    code, said = rescind("verify", "copy.json", "--run", "one-forgot-1")
    assert code == 0, said
    assert "the data is what remained" in said, "the control: a copy of its own receipt"


def test_a_receipt_from_before_a_later_request_is_not_called_invalid(tmp_path: Path) -> None:
    method = '[method]\nname = "Gram"\n'
    head, _, rest = TINY.partition("[method]")
    (tmp_path / "small.toml").write_text(head + method + rest[rest.index("[run]") :])
    assert rescind("run", "small.toml", "--out", "one")[0] == 0
    for run, user in (("one", "7"), ("one-forgot-1", "9"), ("one-forgot-2", "11")):
        assert rescind("forget", run, "--withdraw", user, "--audits", "none")[0] == 0
    for old in ("one-forgot-1", "one-forgot-2"):
        for words in (("--data", old), ("--data", "one-forgot-3"), ("--run", "one-forgot-3")):
            code, said = rescind("verify", f"{old}/receipt.json", *words)
            assert code == 2, said
            assert "older than what one-forgot-3 holds" in said
            assert "NOT VALID" not in said
        assert rescind("verify", f"{old}/receipt.json")[0] == 0, "by itself it is valid"
    code, said = rescind("verify", "one-forgot-3/receipt.json", "--data", "one-forgot-3")
    assert code == 0, said
    code, said = rescind("verify", "one-forgot-3/receipt.json", "--data", "one-forgot-1")
    assert code == 2, said
    assert "give the same command with one-forgot-3" in said
