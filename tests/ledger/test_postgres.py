"""PostgreSQL: the same behaviour, one service only, and nothing lost when it restarts."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from databases import CUT, engine
from ledgers import done, joined, lent, opened, take_back
from rescind.ledger.backup import back_up
from rescind.ledger.batch import Once
from rescind.ledger.book import Ledger
from rescind.ledger.errors import Busy, CannotStart
from rescind.ledger.lending import Lend, TakeBack
from rescind.ledger.place import NOTE
from rescind.ledger.restore import plan, restore
from rescind.ledger.store import Store

pytestmark = pytest.mark.service


def story(ledger: Ledger) -> list[bytes]:
    people = [joined(ledger, n, n + 1, n + 2) for n in range(4)]
    done(ledger, take_back(people[0], "unshare", 1))
    done(ledger, take_back(people[1], "leave"))
    done(ledger, Lend(people[2], (9, 12)), "the-same-key-on-both")
    return people


def test_what_durability_needs_is_asserted(tmp_path: Path, postgres: str) -> None:
    ledger = opened(tmp_path, database=postgres)
    with ledger.store.writer().begin():
        found = ledger.store.writer().execute(text("SHOW synchronous_commit")).scalar_one()
    assert found == "on"
    ledger.close()


def test_two_services_on_one_database_are_refused(tmp_path: Path, postgres: str) -> None:
    ledger = opened(tmp_path / "1", database=postgres)
    with pytest.raises(CannotStart, match="in use by another service"):
        opened(tmp_path / "2", database=postgres)
    ledger.close()
    opened(tmp_path / "1", database=postgres).close()


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"127\.0\.0\.1:1/none.*Check --database"):
        Store(tmp_path, "postgresql://postgres@127.0.0.1:1/none")


def test_a_backup_goes_back_into_postgres_and_into_sqlite(tmp_path: Path, postgres: str) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state, database=postgres)
    people = story(ledger)
    back_up(state, backup, postgres)
    done(ledger, take_back(people[2], "erase"))
    later = joined(ledger, 5)
    ledger.close()
    shutil.copytree(state, tmp_path / "moved")
    (tmp_path / "moved" / NOTE).unlink()  # on purpose: from here on its ledger is in the folder
    assert plan(state, backup, None, postgres).people_dropped == 1
    for where, database in ((state, postgres), (tmp_path / "moved", None)):
        restore(where, backup, None, database)
        ledger = opened(where, database=database)
        assert lent(ledger, people[3]) == [3, 4, 5]
        assert lent(ledger, people[2]) == []
        assert later not in ledger.live.loans
        done(ledger, Lend(people[2], (1,)))
        ledger.close()


def test_a_clean_stop_does_without_a_server_that_is_away(tmp_path: Path, postgres: str) -> None:
    ledger = opened(tmp_path, database=postgres)
    person = joined(ledger, 1, 2)
    cutter = engine()
    with cutter.connect() as connection:
        connection.execute(text(CUT))
    cutter.dispose()
    ledger.close()  # it used to end the process
    again = opened(tmp_path, database=postgres)
    assert again.live.loans == {person: (1, 2)}
    again.close()


def test_restarts_of_the_server_lose_nothing(tmp_path: Path, postgres: str) -> None:
    """All connections are cut again and again, as an immediate restart cuts them."""
    ledger = opened(tmp_path, database=postgres)
    person = joined(ledger)
    stop, refused = threading.Event(), 0
    cutter, alone = engine(), threading.Lock()

    def cut() -> None:
        with alone, cutter.connect() as connection:  # two of them would cut each other
            connection.execute(text(CUT))

    def cut_at_any_time() -> None:
        while not stop.wait(0.4):
            cut()

    thread = threading.Thread(target=cut_at_any_time)
    thread.start()
    try:
        for number in range(60):
            once, items = Once(f"restart-{number:012d}", b""), (number % 20,)
            back = 20 <= number < 40
            if number % 15 == 14:
                cut()  # whatever the thread hits, these are felt
            operation = TakeBack(person, "unshare", items) if back else Lend(person, items)
            while True:
                try:
                    ledger.submit(operation, once).result(60)
                    break
                except Busy:
                    refused += 1
                    time.sleep(0.02)
    finally:
        stop.set()
        thread.join()
        cutter.dispose()
    assert refused > 0, "control: the cuts were felt"
    assert lent(ledger, person) == list(range(20))
    assert ledger.live.loans[person] == tuple(range(20))
    assert len(ledger.tree) == 60
    ledger.close()
    again = opened(tmp_path, database=postgres)
    assert again.report.keys_destroyed <= 1  # this hour's key of answers
    assert again.live.loans == {person: tuple(range(20))}
    again.close()
