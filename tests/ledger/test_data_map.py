"""The data map is complete: every column of both databases and every file has its rule."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    create_engine,
    inspect,
    text,
    update,
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


def test_a_table_made_in_passing_has_no_rule() -> None:
    table = Table("diary", MetaData(), Column("text", Integer))
    assert "rule" not in table.c.text.info, "control: columns get rules from tables.py alone"


def test_tables_that_tests_begin_with_are_those_of_the_migrations(tmp_path: Path) -> None:
    """They are written down (`fresh_tables`), because hundreds of tests begin with them."""
    ledger = opened(tmp_path)
    engine = create_engine("sqlite://")
    everything = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid"
    with engine.connect() as plain, ledger.store.writer().begin():
        migrate(plain)
        for asked in (everything, "SELECT * FROM alembic_version"):
            found = ledger.store.writer().exec_driver_sql(asked).all()
            assert found == plain.exec_driver_sql(asked).all()
            assert found
    engine.dispose()
    ledger.close()


def test_the_migrations_make_the_tables_of_the_map(tmp_path: Path, database: str | None) -> None:
    ledger = opened(tmp_path, database=database)
    connection = ledger.store.writer()
    with connection.begin():
        made = MigrationContext.configure(connection)
        assert compare_metadata(made, tables.metadata) == []
    ledger.close()


def test_migrations_go_down_and_up_again(tmp_path: Path, database: str | None) -> None:
    ledger = opened(tmp_path, database=database)
    ledger.writer.close()
    connection = ledger.store.writer()
    migrate(connection, "base")
    with connection.begin():
        assert set(inspect(connection).get_table_names()) <= HOUSEKEEPING
    migrate(connection)
    with connection.begin():
        assert set(tables.metadata.tables) <= set(inspect(connection).get_table_names())
    ledger.close()


def test_an_earlier_ledger_keeps_its_content(tmp_path: Path, database: str | None) -> None:
    """Every released version, down to it and up again."""
    ledger = opened(tmp_path, database=database)
    joined(ledger, 1, 2)
    ledger.writer.close()
    connection = ledger.store.writer()

    def content() -> dict[str, list[tuple]]:
        with connection.begin():
            connection.execute(update(tables.event).values(against=None))  # it is of later ones
            return {
                name: sorted(map(tuple, connection.execute(table.select())), key=repr)
                for name, table in tables.metadata.tables.items()
            }

    before = content()
    migrate(connection, "0001")
    with connection.begin():
        assert "leaf" not in {one["name"] for one in inspect(connection).get_columns("job")}
    migrate(connection)
    assert content() == before
    assert before["person"]
    ledger.close()


@pytest.mark.parametrize("statement", [0, 1, 7, 20, 30])
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
