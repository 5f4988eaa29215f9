"""No row of imported data is deleted without a receipt, whenever the command is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rescind.forgetting.data_erasure import erase, finish

from rescind.core import files
from rescind.data import erasing
from rescind.data.importing import import_file, imported_folder, load_imported
from rescind.errors import DataError
from rescind.forgetting import data_erasure
from rescind.privacy import keys
from rescind.receipts.log import open_log
from rescind.receipts.receipt import opened, parse
from rescind.receipts.verify import verify

ANNA, BEN, ONLY_HERS = "anna-7f3a9c51", "ben-0b6d2e88", "film-e2d8b640"
STATED = ".erasing.mine"
BEFORE_THE_ROWS = ["_state", "after _state", "rows"]
AFTER_THE_ROWS = ["after delete", "issue", "receipt", "page", "log_if_possible", "after log"]


class Killed(BaseException):
    """Ends a call as a kill does."""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = [f"{who},film-{film}" for who in (ANNA, BEN, "cem") for film in range(4)]
    text = "\n".join(["user,item", *rows, f"{ANNA},{ONLY_HERS}"])
    (tmp_path / "table.csv").write_text(f"{text}\n")
    import_file(tmp_path / "table.csv", "mine")


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """Kill a deletion at a step; "after X" does X first."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    where: object = data_erasure
    name = {"rows": "write", "receipt": "write_atomically", "after log": "after log_if_possible"}
    called = name.get(step, step)
    if step == "rows":
        where = erasing  # they are on the list, and stored
    if step == "receipt":
        where = files  # its key is written
    with monkeypatch.context() as patch:
        if called.startswith("after "):
            called = called.removeprefix("after ")
            real = getattr(where, called)
            patch.setattr(where, called, lambda *a, **k: (real(*a, **k), killed()))
        else:
            patch.setattr(where, called, killed)
        with pytest.raises(Killed):
            yield


def held_of(user: str) -> int:
    stored = load_imported("mine")
    return int((stored.users[stored.user] == user).sum())


@pytest.mark.parametrize("step", BEFORE_THE_ROWS + AFTER_THE_ROWS)
def test_the_same_command_again_ends_with_one_receipt(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "receipt.json"
    with killed_at(monkeypatch, step):
        erase("mine", [ANNA], (), path, "DSR 117")
    assert held_of(ANNA) == (5 if step in BEFORE_THE_ROWS else 0), "control: it was that step"
    stated = imported_folder() / STATED
    assert stated.is_file() == (step != "_state")
    if stated.is_file():
        assert stated.stat().st_mode & 0o077 == 0
        for word in (ANNA, ONLY_HERS, "DSR 117", "receipt.json"):
            assert word.encode() not in stated.read_bytes(), "nobody learns from it who asked"
    done = erase("mine", [ANNA], (), path, "DSR 117")
    assert (done.rows, done.path, held_of(ANNA), held_of(BEN)) == (5, path, 0, 4)
    assert verify(path.read_bytes(), {keys.own_public_key(): "me"}).valid
    exact = opened(parse(path.read_bytes()), keys.read_secret(done.key))
    assert (exact.asked.people, exact.asked.records) == (1, 5)
    assert "Request DSR 117 was answered" in path.with_suffix(".html").read_text()
    written = sorted(one.name for one in tmp_path.glob("receipt*.json"))
    assert written == ["receipt.json", "receipt.request.json"]
    assert open_log().checkpoint.size == 1, "one deletion, one entry"
    assert not stated.exists()


def test_a_command_about_somebody_else_finishes_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(monkeypatch, "issue"):
        erase("mine", [ANNA])
    done = erase("mine", [BEN])
    assert done.earlier == tmp_path / "receipt-mine.json", "where it was to be"
    assert done.path == tmp_path / "receipt-mine-2.json"
    for path, rows in ((done.earlier, 5), (done.path, 4)):
        key = keys.read_secret(path.with_suffix(".key"))
        assert opened(parse(path.read_bytes()), key).asked.records == rows


def test_what_was_stated_only_is_not_carried_out_by_a_command_about_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(monkeypatch, "after _state"):
        erase("mine", [ANNA])
    done = erase("mine", [BEN])
    assert (done.earlier, held_of(ANNA), held_of(BEN)) == (None, 5, 0)
    assert not (imported_folder() / STATED).exists()
    assert erase("mine", [ANNA]).rows == 5


def test_a_path_that_somebody_else_took_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "receipt.json"
    with killed_at(monkeypatch, "receipt"):
        erase("mine", [ANNA], (), path)
    path.with_suffix(".key").unlink()
    path.write_text("another")
    done = finish("mine")
    assert done is not None
    assert done.path == tmp_path / "receipt-2.json"
    assert path.read_text() == "another"
    assert finish("mine") is None, "it is finished"


def test_a_lost_key_is_told_and_the_statement_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(monkeypatch, "issue"):
        erase("mine", [ANNA])
    own = keys.folder() / "erasure.key"
    aside = own.rename(tmp_path / "aside.key")
    with pytest.raises(DataError, match="Restore the key and give the command again"):
        erase("mine", [BEN])
    aside.replace(own)
    assert erase("mine", [BEN]).earlier is not None, "control: with the key it goes on"
