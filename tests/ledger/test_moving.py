"""A service moves between its folder and PostgreSQL: nothing acknowledged is lost unsaid."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL
from typer.testing import CliRunner

from ledgers import done, joined, lent, opened, take_back
from rescind.cli import app
from rescind.ledger.backup import back_up
from rescind.ledger.lending import Lend
from rescind.ledger.place import NOTE, url_of
from rescind.ledger.restore import Plan, RestoreDiff, plan, restore

NOTHING = RestoreDiff(0, 0, 0, 0, 0)


@pytest.fixture(params=["stand-in", pytest.param("postgres", marks=pytest.mark.service)])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The URL of an empty database: in PostgreSQL, or a file that takes its place."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    file = URL.create("sqlite", database=str(tmp_path / "stand-in.db"))
    monkeypatch.setattr(
        "rescind.ledger.store.url_of",
        lambda state, given: url_of(state, None) if given is None else file,
    )
    return "postgresql://db.example.org/ledger"


class Service:
    """One that is in the folder, or in the database, and was stopped."""

    def __init__(self, folder: Path, database: str | None) -> None:
        self.state, self.backup, self.database = folder / "state", folder / "copy.db", database
        ledger = opened(self.state, live=None, database=database)
        self.stays, self.asks = joined(ledger, 1, 2), joined(ledger, *range(8))
        ledger.close()

    def answer_somebody(self) -> None:
        ledger = opened(self.state, live=None, database=self.database)
        done(ledger, take_back(self.asks, "unshare", 1))
        ledger.close()

    def back_up(self, to: Path | None = None) -> None:
        back_up(self.state, to or self.backup, self.database)

    def planned(self, goes_to: str | None) -> Plan:
        return plan(self.state, self.backup, None, goes_to)

    def lent_after(self, goes_to: str | None, backup: Path | None = None) -> list[list[int]]:
        restore(self.state, backup or self.backup, None, goes_to)
        ledger = opened(self.state, live=None, database=goes_to)
        try:
            return [lent(ledger, person) for person in (self.stays, self.asks)]
        finally:
            ledger.close()


def test_a_backup_of_before_an_answer_is_told_of_in_a_move(tmp_path: Path, database: str) -> None:
    service = Service(tmp_path, None)
    service.back_up()
    service.answer_somebody()
    within, moved = service.planned(None), service.planned(database)
    assert moved.undone == within.undone == RestoreDiff(0, 0, 1, 0, 0)
    assert (
        (moved.entries_lost, moved.keys_lost) == (within.entries_lost, within.keys_lost) == (1, 0)
    )
    told = str(moved)
    assert "1 request not known any more" in told
    assert f"older than {service.state / 'ledger.db'}, which the service moves from" in told
    assert within.moves_from is None, "the control: going back in its place is meant"
    words = ["restore", service.state, "--from", service.backup, "--database", database]
    refused = CliRunner().invoke(app, list(map(str, words)), input="n\n")
    assert refused.exit_code == 1
    assert "Nothing was changed." in refused.output
    service.back_up(tmp_path / "again.db")  # as it advises
    assert service.lent_after(database, tmp_path / "again.db") == [[1, 2], [0, *range(2, 8)]]


def test_a_backup_of_the_stopped_service_moves_all_of_it(tmp_path: Path, database: str) -> None:
    """The control, there and back again."""
    service = Service(tmp_path, None)
    service.answer_somebody()
    everything = [[1, 2], [0, *range(2, 8)]]
    for place in (database, None):
        service.back_up()
        if place is None:
            (service.state / NOTE).unlink()
        found = service.planned(place)
        assert (found.loans_dropped, found.entries_lost, found.keys_destroyed) == (0, 0, 0)
        assert (found.batches_unseen, found.moves_from) == (0, None)
        assert found.undone == (NOTHING if place == database else None)
        assert service.lent_after(place) == everything
        (service.state / "ledger.db").unlink(missing_ok=place is None)
        service.backup.unlink()
        service.database = place


def test_nothing_known_of_the_ledger_of_before_is_said_by_the_keys(
    tmp_path: Path, database: str
) -> None:
    service = Service(tmp_path, database)
    service.back_up()
    service.answer_somebody()
    (service.state / NOTE).unlink()
    found = service.planned(None)
    assert found.undone is None
    assert "1 batch of changes came after this ledger" in str(found)
    assert found.entries_lost == 1


def test_a_ledger_that_was_moved_from_is_not_compared_with(tmp_path: Path, database: str) -> None:
    """Left in the folder it is old, or of another story: what it has says nothing."""
    service = Service(tmp_path, None)
    service.back_up()
    service.answer_somebody()
    assert service.lent_after(database) == [[1, 2], []], "on purpose, with the older backup"
    left = service.state / "ledger.db"
    assert left.exists()
    assert service.planned(database).undone == NOTHING
    (service.state / NOTE).unlink()
    assert service.planned(database).undone == NOTHING, "the database fits the keys, and counts"
    ledger = opened(service.state, live=None, database=database)
    done(ledger, Lend(service.stays, (5,)))
    ledger.close()
    (service.state / NOTE).unlink()
    with closing(sqlite3.connect(left)) as file:
        file.execute("UPDATE setting SET value = '1000' WHERE name = 'batch'")
        file.commit()
    found = service.planned(database)
    assert (found.undone, found.keys_lost, found.moves_from) == (NOTHING, 0, None)
