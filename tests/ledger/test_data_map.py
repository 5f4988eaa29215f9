"""The data map is complete: every column of both databases and every file has its rule."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    Connection,
    inspect,
    text,
)

from ledgers import done, joined, opened, take_back, unmapped_files
from rescind.ledger import tables
from rescind.ledger.backup import back_up
from rescind.ledger.lending import Lend
from rescind.ledger.migrate import migrate

HOUSEKEEPING = {"alembic_version"}
"""A table with one word: the version of the others."""


def unmapped(connection: Connection) -> list[str]:
    """Return columns of the live schema that the map does not have."""
    rules, found = tables.data_map(), []
    for table in inspect(connection).get_table_names():
        for column in inspect(connection).get_columns(table):
            if table not in HOUSEKEEPING and not rules.get(table, {}).get(column["name"]):
                found.append(f"{table}.{column['name']}")
    return found


def test_every_column_of_the_live_schema_has_a_rule(tmp_path: Path, database: str | None) -> None:
    ledger = opened(tmp_path, database=database)
    connection = ledger.store.writer()
    with connection.begin():
        assert unmapped(connection) == []
        connection.execute(text("ALTER TABLE person ADD COLUMN birthday text"))
        assert unmapped(connection) == ["person.birthday"], "control: a new column is found"
        connection.rollback()
    ledger.close()


def test_every_column_of_the_map_has_a_rule_in_words() -> None:
    for name, columns in tables.data_map().items():
        for column, rule in columns.items():
            assert len(rule) > 10, f"{name}.{column}"


def test_the_migrations_make_the_tables_of_the_map(tmp_path: Path, database: str | None) -> None:
    ledger = opened(tmp_path, database=database)
    connection = ledger.store.writer()
    with connection.begin():
        made = MigrationContext.configure(connection)
        assert compare_metadata(made, tables.metadata) == []
    ledger.close()


@pytest.mark.parametrize("statement", [0, 7, 20])
def test_a_migration_that_is_cut_off_leaves_nothing(tmp_path: Path, statement: int) -> None:
    from sqlalchemy import event

    from rescind.ledger.store import Store

    store, seen = Store(tmp_path), []

    class CutOff(BaseException):
        pass

    def cut(*arguments: object) -> None:
        seen.append(arguments[2])
        if len(seen) > statement and "CREATE" in str(arguments[2]):
            raise CutOff

    connection = store.writer()
    event.listen(connection, "before_cursor_execute", cut)
    with pytest.raises(CutOff):
        migrate(connection)
    event.remove(connection, "before_cursor_execute", cut)
    with connection.begin():
        assert inspect(connection).get_table_names() == []
    migrate(connection)
    with connection.begin():
        assert unmapped(connection) == []
    store.close()


def test_every_file_after_a_whole_story_has_a_rule(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    person, other = joined(ledger, 1, 2), joined(ledger, 3)
    done(ledger, Lend(person, (4,)), "lend-with-a-key-0")
    back_up(state, tmp_path / "backup.db")
    done(ledger, take_back(person, "unshare", 4))
    assert unmapped_files(state) == []  # with the write-ahead log beside it
    done(ledger, take_back(other, "leave"))
    ledger.close()
    opened(state).close()
    assert unmapped_files(state) == []
    (state / "notes.txt").write_text("about a person")
    assert unmapped_files(state) == ["notes.txt"], "control: a new file is found"


def test_only_its_owner_may_read_any_file_of_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    before = os.umask(0)  # the control: nothing else hides them
    try:
        ledger = opened(state)
        joined(ledger, 1, 2)
        backup = tmp_path / "backup.db"
        back_up(state, backup)
        (tmp_path / "open").touch()
        files = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
        assert {"keys.bin", "ledger.db", "ledger.db-wal", "ledger.db-shm", "catalogue.json"} <= set(
            files
        )
        assert set(files.values()) == {0o600}, files
        assert backup.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "open").stat().st_mode & 0o777 == 0o666
        ledger.close()
        (state / "ledger.db").chmod(0o644)  # as an earlier version left it
        opened(state).close()
        assert (state / "ledger.db").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
