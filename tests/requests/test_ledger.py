"""The ledger of a home: two processes, names that are gone, a home that moves or is damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from requesting import CELL, Shop, bytes_of_home, elsewhere, items_of, write_rows
from rescind.core.home import home, ledger_file
from rescind.data.blocklist import Blocklist
from rescind.data.importing import import_file, imported_names
from rescind.errors import DataError, RescindError
from rescind.home import Copy, Ledger, second_copy
from rescind.privacy import keys
from rescind.requests.papers import papers_of

ANNA, BEN = "anna-7f3a9c51", "ben-0b6d2e88"
FILM = "film-e2d8b640"
ROWS = [(who, f"film-{n}") for who in (ANNA, BEN, "cem", "dora") for n in range(4)]
ROWS += [(ANNA, FILM), ("cem", FILM)]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.opened(tmp_path / "shop", ROWS)


def names_in_the_ledger() -> list[str]:
    data = b"".join(path.read_bytes() for path in home().glob("**/ledger*"))
    return [word for word in (ANNA, BEN, FILM) if word.encode() in data]


@pytest.mark.parametrize("end", ["answered", "waits", "refused"])
def test_names_are_nowhere_in_the_ledger(shop: Shop, end: str) -> None:
    shop.ask("erase", BEN, items=("film-1",), audit="none")
    request = shop.add("erase", ANNA, items=(FILM,) if end != "refused" else ("film-9",))
    if end != "waits":
        request = shop.answer(request.id)
    assert names_in_the_ledger() == []
    with Ledger.open() as ledger:
        known = ledger.request(request.id)
        assert ANNA in ledger.request(request.id).records or end == "answered"
        assert (not known.records) == (end == "answered"), "what is open can be read with the key"
        assert bool(known.key) == (end != "answered")


def test_control_a_name_that_is_written_is_found(shop: Shop) -> None:
    with Ledger.open() as ledger:
        ledger.register(Copy("1", "shop", "table", ANNA))
    assert names_in_the_ledger() == [ANNA]


def test_after_an_answer_that_was_sent_nobody_is_named_in_the_home(shop: Shop) -> None:
    done = shop.ask("leave", ANNA)
    papers_of(done.id).unlink()
    found = bytes_of_home()
    assert ANNA.encode() not in found
    assert BEN.encode() in found, "control: who is there is named in the data"
    for path in shop.folder.rglob("*"):
        if path.is_file() and path.suffix != ".csv":
            assert ANNA.encode() not in path.read_bytes(), path


def test_without_the_key_a_guess_cannot_be_tested(shop: Shop) -> None:
    shop.ask("leave", ANNA)
    listed = Blocklist.of_dataset("shop")
    assert listed.has_withdrawn(ANNA)
    (keys.folder() / "erasure.key").unlink()
    assert not Blocklist.of_dataset("shop").has_withdrawn(ANNA)


def test_only_its_owner_reads_it(shop: Shop) -> None:
    shop.ask("leave", ANNA)
    for path in (ledger_file(), second_copy.of(ledger_file())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_home_that_is_moved_answers_as_the_first_one_did(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shop.ask("leave", ANNA)
    moved = tmp_path / "moved"
    shutil.copytree(home(), moved)
    with elsewhere(monkeypatch, moved):
        again = shop.ask("leave", ANNA)
        assert (again.outcome, again.receipt) == ("REPEATED", first.receipt)
        shop.learn("fresh")
        assert shop.model("fresh") == shop.model()
        assert shop.ask("leave", BEN).outcome == "ERASED"


def test_with_another_home_the_data_is_not_there(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.ask("leave", ANNA)
    with elsewhere(monkeypatch, tmp_path / "other"):
        assert imported_names() == []
        with pytest.raises(RescindError):
            shop.learn("fresh")
    shop.learn("fresh")  # control


def test_whoever_only_experiments_makes_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from rescind.experiments.cell import DataSettings
    from rescind.experiments.learning_run import run_cell

    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "home"))
    data = DataSettings(name="synthetic", users=20, items=20, interactions=200)
    run_cell(replace(CELL, data=data), tmp_path / "run")
    assert not home().exists()
    import_file(write_rows(tmp_path / "a.csv", ROWS), "shop")
    assert ledger_file().is_file(), "control: who imports has one"


def in_another_process(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


HOLDS = """
from rescind.home import Ledger
with Ledger.open() as ledger, ledger.writing():
    print("holds", flush=True)
    input()
"""


def test_two_processes_on_one_home_wait_for_each_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = shop.add("leave", ANNA)
    other = in_another_process(HOLDS)
    assert other.stdout is not None
    assert other.stdout.readline() == "holds\n"
    monkeypatch.setattr("rescind.home.ledger.PATIENCE", 0.2)
    with pytest.raises(DataError):
        shop.add("leave", BEN)
    monkeypatch.setattr("rescind.home.ledger.PATIENCE", 30.0)
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert shop.add("leave", BEN).id != request.id, "it waited until the other had ended"
    assert other.wait(30) == 0


ANSWERS = """
import sys
from rescind.home import Ledger
from rescind.requests.answer import answer
with Ledger.open() as ledger:
    print("ready", flush=True)
    input()
    print(answer(ledger, sys.argv[1]).outcome)
"""


def test_two_processes_that_answer_the_same_request_give_one_receipt(shop: Shop) -> None:
    request = shop.add("leave", ANNA)
    others = [in_another_process(ANSWERS.replace("sys.argv[1]", repr(request.id))) for _ in "ab"]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
    codes = [other.wait(120) for other in others]
    assert 0 in codes, "one answers; the other one says that the home is in use, or waits"
    assert shop.answer(request.id).outcome == "ERASED"
    with Ledger.open() as ledger:
        assert len(ledger._rows("SELECT * FROM receipt")) == 1


@pytest.mark.parametrize("damage", ["no database", "half of it", "another version"])
def test_a_damaged_ledger_is_an_error_and_nothing_is_learnt(shop: Shop, damage: str) -> None:
    shop.ask("leave", ANNA)
    data = ledger_file().read_bytes()
    if damage == "another version":
        database = sqlite3.connect(ledger_file())
        database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        ledger_file().write_bytes(b"nothing" * 999 if damage == "no database" else data[:5000])
    with pytest.raises(DataError):
        shop.learn("fresh")
    assert not (shop.run("fresh") / "run.json").exists()
    ledger_file().write_bytes(data)
    shop.learn("fresh")
    assert shop.learnt(ANNA, "fresh") == ()


@pytest.mark.parametrize("lost", ["deleted", "older"])
def test_who_left_stays_away_though_the_ledger_is_lost(shop: Shop, lost: str) -> None:
    older = ledger_file().read_bytes()
    done = shop.ask("leave", ANNA)
    ledger_file().unlink()
    if lost == "older":
        ledger_file().write_bytes(older)
        for doing in (lambda: shop.learn("fresh"), lambda: shop.add("leave", BEN)):
            with pytest.raises(DataError):
                doing()
        shutil.copy(second_copy.of(ledger_file()), ledger_file())
    shop.arrive(ANNA, ("film-1",))
    shop.learn("fresh")
    assert shop.learnt(ANNA, "fresh") == ()
    with Ledger.open() as ledger:
        assert ledger.receipt(done.receipt)
        assert {copy.kind for copy in ledger.copies("shop")} == {"run", "table"}


def test_control_without_the_copy_a_lost_ledger_loses_who_left(shop: Shop) -> None:
    shop.ask("leave", ANNA)
    for path in (ledger_file(), second_copy.of(ledger_file())):
        path.unlink()
    shop.arrive(ANNA, ("film-1",))
    shop.learn("fresh")
    assert shop.learnt(ANNA, "fresh") == ("film-1",)


def test_who_learns_while_somebody_is_answered_does_not_take_them_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rescind.experiments import learning_run

    finish = learning_run.finish

    def answered_meanwhile(folder: Path, facts: dict[str, object], counted: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(learning_run, "finish", finish)
            shop.ask("leave", ANNA)
        finish(folder, facts, counted)

    monkeypatch.setattr(learning_run, "finish", answered_meanwhile)
    with pytest.raises(DataError):
        shop.learn("fresh")
    assert not (shop.run("fresh") / "run.json").exists()


def test_items_that_only_they_had_are_named_no_more(shop: Shop) -> None:
    rows = items_of(0)
    assert rows  # the helper's own table is another one
    shop.arrive(ANNA, ("film-hers-alone",))
    shop.learn()
    done = shop.ask("leave", ANNA)
    papers_of(done.id).unlink()
    assert b"film-hers-alone" not in bytes_of_home()
