"""Statements that the driver runs itself: rows and errors are those of SQLAlchemy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from ledgers import CATALOGUE
from rescind.ledger import tables
from rescind.ledger.book import Ledger
from rescind.ledger.statements import Driver, Prepared

AT = datetime(2026, 11, 16, 12, 0, 0, 123456, tzinfo=UTC)
EVENT = {"seq": 7, "at": AT, "person": b"p" * 16, "kind": "lend", "n": 2, "leaf": None}
ONE = Prepared(select(tables.event).where(tables.event.c.seq == bindparam("which")))


@pytest.fixture
def ledger(tmp_path: Path, database: str | None):
    ledger = Ledger.open(tmp_path / "state", catalogue=CATALOGUE, database=database)
    yield ledger
    ledger.close()


def test_rows_are_those_of_sqlalchemy(ledger: Ledger) -> None:
    tx = ledger.store.writer()
    with tx.begin() as all_of_it:
        driver = Driver(tx)
        driver.insert(tables.event, [EVENT, {**EVENT, "seq": 8, "leaf": 3, "person": None}])
        tx.execute(insert(tables.event).values({**EVENT, "seq": 9}))
        for seq in (7, 8, 9):
            theirs = tx.execute(select(tables.event).where(tables.event.c.seq == seq)).one()
            ours = driver.one(ONE, {"which": seq})
            assert tuple(ours) == tuple(theirs)
            assert (ours.seq, ours.at) == (seq, AT)
        assert driver.one(ONE, {"which": 1}) is None
        found = driver.within(tables.event, "seq", [7, 9, 100])
        assert sorted(row.seq for row in found) == [7, 9]
        assert driver.within(tables.event, "seq", []) == []
        all_of_it.rollback()


def test_constants_and_times_reach_an_update(ledger: Ledger) -> None:
    later = AT.replace(year=2027)
    change = Prepared(
        update(tables.event)
        .where(tables.event.c.kind == "lend", tables.event.c.seq == bindparam("which"))
        .values(at=bindparam("when"), n=5)
    )
    tx = ledger.store.writer()
    with tx.begin() as all_of_it:
        driver = Driver(tx)
        driver.insert(tables.event, [EVENT, {**EVENT, "seq": 8, "kind": "erase"}])
        driver.many(change, [{"which": 7, "when": later}, {"which": 8, "when": later}])
        rows = {row.seq: (row.at, row.n) for row in tx.execute(select(tables.event))}
        assert rows == {7: (later, 5), 8: (AT, 2)}  # 8 is of another kind
        all_of_it.rollback()


def test_an_error_is_sqlalchemys_and_names_no_value(ledger: Ledger) -> None:
    tx = ledger.store.writer()
    with tx.begin() as all_of_it:
        driver = Driver(tx)
        driver.insert(tables.event, [EVENT])
        with pytest.raises(IntegrityError) as caught:
            driver.insert(tables.event, [EVENT])
        assert "pppp" not in str(caught.value)
        all_of_it.rollback()
