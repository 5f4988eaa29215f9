"""A ledger in PostgreSQL is never mistaken for an empty one in the folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from sqlalchemy import create_engine, insert, inspect
from typer.testing import CliRunner

from databases import schema
from ledgers import done, joined, opened, take_back, unmapped_files
from rescind.cli import app
from rescind.errors import ConfigError, RescindError
from rescind.ledger import tables
from rescind.ledger.backup import back_up
from rescind.ledger.errors import OlderLedger
from rescind.ledger.place import NOTE, check_may_begin, compared_with_note, remember, shown
from rescind.ledger.restore import plan, restore
from rescind.ledger.store import Store, reading

ADDRESS = "postgresql://anna:s3cret@db.example.org/ledger"


def invoked(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def asking(state: Path) -> list[list[object]]:
    """Return every command that reads or changes a ledger, without --database."""
    backup = state.parent / "copy.db"
    public = state.parent / "public"
    return [
        ["serve", "--state", state, "--port", 0],
        ["backup", state, state.parent / "new.db"],
        ["restore", state, "--yes"],
        ["restore", state, "--from", backup, "--yes"],
        ["request", "list", "--state", state],
        ["request", "extend", "X", "--days", 1, "--reason", "why", "--state", state],
        ["tokens", "make", "read", "--state", state],
        ["tokens", "list", "--state", state],
        ["tokens", "revoke", "X", "--state", state],
        ["roster", "check", public, "--state", state],
        ["scan", state, "--for", "canary-123456"],
    ]


def left_in(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.iterdir()}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a ledger in PostgreSQL leaves it: keys and catalogue; and a backup beside it."""
    place = tmp_path_factory.mktemp("left")
    ledger = opened(place / "state")
    person = joined(ledger, 1, 2)
    back_up(place / "state", place / "copy.db")
    done(ledger, take_back(person, "erase"))
    ledger.close()
    (place / "state" / "ledger.db").unlink()
    return place


@pytest.fixture
def elsewhere(left_behind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of that folder."""
    shutil.copytree(left_behind, tmp_path, dirs_exist_ok=True)
    state = tmp_path / "state"
    # The lines of a roster are not what is tried here.
    shown = SimpleNamespace(log=SimpleNamespace(note=""))
    monkeypatch.setattr("rescind.proof.roster.Public.read", lambda folder: shown)
    monkeypatch.setattr("rescind.proof.roster.check", lambda *given: [])
    monkeypatch.setattr("rescind.receipts.log.own_key_under", lambda note: None)
    return state


@pytest.mark.parametrize("number", range(11))
def test_every_command_is_refused_without_the_database(elsewhere: Path, number: int) -> None:
    remember(elsewhere, ADDRESS)
    before = left_in(elsewhere)
    ended = invoked(*asking(elsewhere)[number])
    assert isinstance(ended.exception, ConfigError), ended.output
    assert "is in PostgreSQL" in str(ended.exception)
    assert "--database 'postgresql://anna:***@db.example.org/ledger'" in str(ended.exception)
    assert left_in(elsewhere) == before
    assert not (elsewhere.parent / "new.db").exists()


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5, 6, 7, 8, 9, 10])
def test_keys_alone_get_no_empty_ledger(elsewhere: Path, number: int) -> None:
    """A folder of before the note was written; going back to a backup is right there."""
    before = left_in(elsewhere)
    ended = invoked(*asking(elsewhere)[number])
    assert isinstance(ended.exception, ConfigError), ended.output
    assert "--database" in str(ended.exception)
    assert left_in(elsewhere) == before


def test_a_new_folder_and_a_lost_ledger_still_work(elsewhere: Path) -> None:
    """Control: where no ledger is in PostgreSQL nothing is refused."""
    assert invoked(*asking(elsewhere)[3]).exit_code == 0
    opened(elsewhere).close()
    fine = invoked("request", "list", "--state", elsewhere)
    assert fine.output == "no open requests.\n"
    assert not (elsewhere / NOTE).exists()


def test_nothing_is_made_where_there_is_no_ledger_to_accept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no ledger"):
        plan(tmp_path, None, None, None)
    with pytest.raises(ConfigError, match="holds no ledger"):
        restore(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ADDRESS, "postgresql://anna:***@db.example.org/ledger"),
        ("postgresql://anna@db/ledger", "postgresql://anna@db/ledger"),
        (
            "postgresql+psycopg://db/ledger?password=s3cret",
            "postgresql://db/ledger?password=hidden",
        ),
        ("postgresql://db/l?sslpassword=s3cret&a=b", "postgresql://db/l?a=b&sslpassword=hidden"),
    ],
)
def test_a_password_is_never_shown_or_kept(tmp_path: Path, given: str, told: str) -> None:
    assert shown(given) == told
    remember(tmp_path, given)
    assert "s3cret" not in (tmp_path / NOTE).read_text()
    assert (tmp_path / NOTE).stat().st_mode & 0o777 == 0o600
    assert unmapped_files(tmp_path) == []


def test_an_address_that_cannot_be_read_is_told_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--database is no address that can be read") as told:
        Store(tmp_path, "postgresql://anna:s3cret@db:port/ledger")
    assert "s3cret" not in str(told.value)
    with pytest.raises(ConfigError, match="'mysql' is not a database for a ledger"):
        Store(tmp_path, "mysql://db/ledger")


def test_a_ledger_that_does_not_fit_is_compared_with_the_note(tmp_path: Path) -> None:
    remember(tmp_path, ADDRESS)

    def told(database: str | None) -> str:
        with pytest.raises(OlderLedger) as raised, compared_with_note(tmp_path, database):
            raise OlderLedger("it is older.")
        return str(raised.value)

    other = "postgresql://anna:s3cret@db.example.org/other"
    assert told(other) == (
        f"the ledger of {tmp_path} is in postgresql://anna:***@db.example.org/ledger, and you gave "
        f"postgresql://anna:***@db.example.org/other, which does not fit: it is older."
    )
    assert told(ADDRESS) == told(None) == "it is older.", "the control"
    with compared_with_note(tmp_path, other):
        pass  # a database that fits may have moved


@pytest.mark.service
def test_another_database_is_neither_read_nor_noted(tmp_path: Path, postgres: str) -> None:
    ledger = opened(tmp_path, database=postgres)
    joined(ledger, 1)
    ledger.close()
    with schema() as other:
        named = rf"is in {re.escape(shown(postgres))}, and you gave .*older than its keys"
        with pytest.raises(ConfigError, match=named):
            opened(tmp_path, database=other)
        assert (tmp_path / NOTE).read_text() == shown(postgres) + "\n"
        with pytest.raises(RescindError, match=named), reading(tmp_path, other):
            pass
        with pytest.raises(ConfigError, match="is not a ledger of these keys"):
            restore(tmp_path, None, None, other)
        assert tables_in(other) == [], "nothing was made in what is not ours"
    with reading(tmp_path, postgres):
        pass  # control
    assert "setting" in tables_in(postgres), "control: a ledger that fits has its tables"


def tables_in(address: str) -> list[str]:
    """The tables of the schema that an address names."""
    own = create_engine(address)
    try:
        with own.connect() as connection:
            return inspect(connection).get_table_names()
    finally:
        own.dispose()


@pytest.mark.service
def test_a_scan_looks_into_postgres(tmp_path: Path, postgres: str) -> None:
    ledger = opened(tmp_path, database=postgres)
    joined(ledger, 1)
    ledger.close()
    command = ("scan", tmp_path, "--for", "canary-123456", "--database", postgres)
    assert invoked(*command).exit_code == 0, "control: nothing is planted yet"
    store = Store(tmp_path, postgres)
    with store.writer().begin():
        row = {"name": "note", "value": "about canary-123456"}
        store.writer().execute(insert(tables.setting).values(row))
    store.close()
    found = invoked(*command)
    assert found.exit_code == 1
    assert "PostgreSQL > setting.value: 'canary-123456' as bytes" in found.output


def test_a_served_folder_says_how_a_token_is_made(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    made = invoked("tokens", "make", "read,extend", "--state", tmp_path)
    wrong = invoked("tokens", "make", "read,foo", "--state", tmp_path)
    revoked = invoked("tokens", "revoke", "X", "--state", tmp_path)
    ledger.close()
    again = "Start it again with --make-token read,extend, use the operator's page"
    assert again in str(made.exception)
    assert "--url" not in str(made.exception), "tokens make has no --url"
    assert str(wrong.exception).startswith("'foo' is no scope"), "no advice with a wrong scope"
    assert "--url" in str(revoked.exception), "control: tokens revoke has it"


def test_libpqs_short_name_is_the_same_database() -> None:
    short = ADDRESS.replace("postgresql://", "postgres://")
    assert shown(short) == shown(ADDRESS)
    with pytest.raises(ConfigError, match="'postgre' is not a database"):
        shown(ADDRESS.replace("postgresql", "postgre"))


def test_a_refused_start_leaves_no_folder(tmp_path: Path) -> None:
    state, away = tmp_path / "new" / "state", "postgresql://postgres@127.0.0.1:1/none"
    items = tmp_path / "items.csv"
    items.write_text("id,title\n1,One\n")
    start = ["serve", "--state", state, "--port", 0, "--items", items, "--database", away]
    for there in (tmp_path, state):
        assert "127.0.0.1:1/none" in str(invoked(*start).exception)
        assert state.is_dir() is (there == state), "what was there before stays"
        assert (tmp_path / "new").exists() is (there == state)
        state.mkdir(parents=True, exist_ok=True)


def test_a_service_does_not_begin_above_another_or_in_a_run(tmp_path: Path) -> None:
    """As `--state runs` would for `--state runs/service`: an empty one that nobody meant."""
    opened(tmp_path / "runs" / "service").close()
    with pytest.raises(ConfigError, match=r"runs holds no service, but \S+service does. Give"):
        opened(tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["service"]
    run = tmp_path / "runs" / "mine"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="is the folder of a run"):
        opened(run)
    opened(tmp_path / "runs" / "second").close()  # the control: a new folder beside them
    opened(tmp_path / "runs" / "service").close()


def test_a_copy_of_the_keys_in_the_folder_is_no_service(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "disk").mkdir(parents=True)
    opened(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "keys.bin", state / "disk")
    check_may_begin(state, ADDRESS)
    (state / "disk" / "database.txt").write_text(ADDRESS)  # the control: now it is one
    with pytest.raises(ConfigError, match=r"disk does. Give"):
        check_may_begin(state, ADDRESS)
