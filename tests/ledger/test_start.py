"""A start finishes what a crash left, and refuses what it must not touch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ledgers import CATALOGUE, START, done, joined, lent, opened, take_back
from rescind.errors import ConfigError
from rescind.ledger.backup import back_up
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.errors import Busy, CannotStart, DiskFull, NotThere, OlderLedger
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lending import Lend
from rescind.ledger.options import Options
from rescind.ledger.ownership import mirror_missing, mirror_of
from rescind.ledger.restore import plan


def crash_copy(state: Path, target: Path) -> Path:
    """Copy a state as a kill would leave it: the write-ahead log is still beside it."""
    shutil.copytree(state, target)
    return target


def test_keys_without_a_box_are_destroyed_and_the_erasure_is_dated(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "a", clock=lambda: START)
    person = joined(ledger, 1, 2)
    old = ledger.keys.get(ledger.reading.person(person).loans_key)
    before = (tmp_path / "a" / "keys.bin").read_bytes()
    request = done(ledger, take_back(person, "erase", 1)).body["request_id"]
    ledger.close()
    # As if it was killed between the commit and the destruction: the old key is still there.
    after = bytearray((tmp_path / "a" / "keys.bin").read_bytes())
    at = before.index(old.key) - 8
    free = next(n for n in range(192, len(after), 64) if not any(after[n : n + 64]))
    assert free == at or before[at : at + 64] != after[at : at + 64]
    after[at : at + 64] = before[at : at + 64]
    (tmp_path / "a" / "keys.bin").write_bytes(after)
    undated(tmp_path / "a", request)
    control = crash_copy(tmp_path / "a", tmp_path / "b")

    swept = opened(tmp_path / "a")
    assert swept.report.keys_destroyed == 1
    assert old.key not in (tmp_path / "a" / "keys.bin").read_bytes()
    assert swept.reading.request(request).level == "L1"
    assert swept.reading.request(request).erased_at > START
    swept.close()

    kept = opened(control, options=Options(sweep=False))
    assert old.key in (control / "keys.bin").read_bytes(), "control: without the sweep it stays"
    assert kept.reading.request(request).level == "L0"
    kept.close()


def undated(state: Path, request: str) -> None:
    import sqlite3

    with sqlite3.connect(state / "ledger.db") as connection:
        connection.execute("UPDATE request SET erased_at = NULL, level = 'L0'")
    connection.close()


def test_an_older_ledger_is_refused_and_destroys_no_key(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    person = joined(ledger, 1)
    ledger.close()
    old = (state / "ledger.db").read_bytes()
    ledger = opened(state)
    newer = joined(ledger, 2)
    done(ledger, Lend(person, (3,)))
    ledger.close()
    right, keys = (state / "ledger.db").read_bytes(), (state / "keys.bin").read_bytes()

    (state / "ledger.db").write_bytes(old)
    with pytest.raises(OlderLedger, match="older than its keys"):
        opened(state)
    assert (state / "keys.bin").read_bytes() == keys
    (state / "ledger.db").write_bytes(right)
    ledger = opened(state)
    assert (lent(ledger, person), lent(ledger, newer)) == ([1, 3], [2])
    ledger.close()


def test_a_ledger_that_only_misses_a_join_is_older_too(tmp_path: Path) -> None:
    """A join writes no entry of the log, but it has a key that a sweep would destroy."""
    ledger = opened(tmp_path)
    ledger.close()
    old = (tmp_path / "ledger.db").read_bytes()
    ledger = opened(tmp_path)
    joined(ledger)
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(old)
    with pytest.raises(OlderLedger):
        opened(tmp_path)


@pytest.mark.parametrize("instead", ["no file", "an empty file", "keys of a new service"])
def test_a_ledger_without_its_keys_is_refused_and_opens_when_they_are_back(
    tmp_path: Path, instead: str
) -> None:
    state, away = tmp_path / "state", tmp_path / "away.bin"
    ledger = opened(state)
    person = joined(ledger, 1, 2, 3)
    ledger.close()
    (state / "keys.bin").rename(away)
    if instead == "an empty file":
        (state / "keys.bin").touch(mode=0o600)
    elif instead == "keys of a new service":
        KeySlots(state / "keys.bin").close()
    found = [path.name for path in state.iterdir()]
    for _ in range(2):  # what a refusal leaves behind is refused, too
        with pytest.raises(CannotStart, match=r"--keys-mirror.*--accept-lost-keys"):
            opened(state)
    if instead == "no file":
        assert "keys.bin" not in [path.name for path in state.iterdir()]
        backup = tmp_path / "backup.db"
        back_up(state, backup)
        with pytest.raises(CannotStart, match="nothing of a ledger opens"):
            plan(state, backup, None, None)
        assert "keys.bin" not in [path.name for path in state.iterdir()]
    assert set(found) <= {path.name for path in state.iterdir()}
    away.rename(state / "keys.bin")
    ledger = opened(state)
    assert lent(ledger, person) == [1, 2, 3]
    ledger.close()


def test_a_mirror_that_was_named_once_is_used_by_later_starts(tmp_path: Path) -> None:
    state, mirror = tmp_path / "state", tmp_path / "other disk" / "mirror.bin"
    mirror.parent.mkdir()
    ledger = opened(state, keys_mirror=mirror)
    person = joined(ledger, 1, 2)
    ledger.close()
    ledger = opened(state)  # whoever forgets it must not get one that falls behind
    newer = joined(ledger, 3)
    ledger.close()
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes()
    (state / "keys.bin").unlink()
    ledger = opened(state)
    assert (lent(ledger, person), lent(ledger, newer)) == ([1, 2], [3])
    assert "keys.bin was not there: it was copied from the mirror." in str(ledger.report)
    assert "new keys" not in str(ledger.report)
    ledger.close()
    assert "keys.bin" not in str(opened_report(state)), "control: it is there again"
    assert mirror_missing(state, mirror_of(state, None)) is None
    mirror.rename(tmp_path / "away.bin")
    assert str(mirror) in (mirror_missing(state, mirror_of(state, None)) or "")
    opened(state).close()
    assert not mirror.exists(), "nothing is made where its disk should be"
    (state / "keys.bin").unlink()
    with pytest.raises(CannotStart, match=f"or that of their mirror, {mirror}"):
        opened(state)


def test_the_mirror_of_another_service_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    mine, other, mirror = tmp_path / "mine", tmp_path / "other", tmp_path / "mirror.bin"
    ledger = opened(other, keys_mirror=mirror)
    person = joined(ledger, 1, 2)
    ledger.close()
    ledger = opened(mine)
    for item in range(5):
        joined(ledger, item)
    ledger.close()
    before = mirror.read_bytes(), (mine / "keys.bin").read_bytes()
    with pytest.raises(CannotStart, match=r"mirror.bin holds the keys of another service"):
        opened(mine, keys_mirror=mirror)
    assert (mirror.read_bytes(), (mine / "keys.bin").read_bytes()) == before
    assert not (mine / "keys-mirror.txt").exists()
    ledger = opened(other)
    assert lent(ledger, person) == [1, 2], "control: the other one goes on"
    ledger.close()


@pytest.mark.parametrize("accepted", [False, True])
def test_keys_of_another_service_are_known_by_the_ledger_and_not_destroyed(
    tmp_path: Path, accepted: bool
) -> None:
    for name in ("1", "2"):  # as far as each other, and no log that could tell
        ledger = opened(tmp_path / name)
        joined(ledger)
        ledger.close()
    shutil.copy(tmp_path / "1" / "keys.bin", tmp_path / "2" / "keys.bin")
    keys = (tmp_path / "2" / "keys.bin").read_bytes()
    with pytest.raises(OlderLedger, match="those of another service"):
        opened(tmp_path / "2", options=Options(accept_lost_keys=accepted))
    assert (tmp_path / "2" / "keys.bin").read_bytes() == keys
    opened(tmp_path / "1").close()


@pytest.mark.parametrize("which", ["an old mirror", "an old copy of keys.bin"])
def test_keys_that_are_behind_their_ledger_are_refused_until_that_is_accepted(
    tmp_path: Path, which: str
) -> None:
    state, old = tmp_path / "state", tmp_path / "old.bin"
    ledger = opened(state)
    person = joined(ledger, 1, 2)
    ledger.close()
    shutil.copy(state / "keys.bin", old)
    ledger = opened(state)
    newer = joined(ledger, 3)
    ledger.close()
    right = tmp_path / "right.bin"
    (state / "keys.bin").rename(right)
    mirror = old if which == "an old mirror" else None
    if mirror is None:
        shutil.copy(old, state / "keys.bin")
    with pytest.raises(CannotStart, match="2 keys of this ledger cannot"):
        opened(state, keys_mirror=mirror)
    shutil.copy(right, state / "keys.bin")
    ledger = opened(state)
    assert (lent(ledger, person), lent(ledger, newer)) == ([1, 2], [3]), "nothing was lost"
    ledger.close()
    shutil.copy(old, state / "keys.bin")
    ledger = opened(state, options=Options(accept_lost_keys=True))
    assert lent(ledger, person) == [1, 2], "control: only what the keys do not open is dropped"
    assert "1 loan of 1 person cannot be opened" in str(ledger.report)
    ledger.close()


def test_without_its_keys_it_says_what_is_lost_and_serves_on_if_that_is_accepted(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path)
    people = [joined(ledger, 1, 2, 3), joined(ledger, 4)]
    joined(ledger)
    ledger.close()
    (tmp_path / "keys.bin").unlink()
    ledger = opened(tmp_path, options=Options(accept_lost_keys=True))
    said = str(ledger.report)
    assert "4 loans of 2 people cannot be opened" in said
    assert "3 accounts ended" in said
    assert "keys.bin was not there" in said
    assert ledger.live.loans == {}
    for person in people:
        with pytest.raises(NotThere, match="no such account"):
            lent(ledger, person)
    again = joined(ledger, 1)
    assert lent(ledger, again) == [1]
    ledger.close()
    assert "cannot be opened" not in str(opened_report(tmp_path))


def opened_report(state: Path) -> object:
    ledger = opened(state)
    ledger.close()
    return ledger.report


def test_a_ledger_that_was_changed_while_it_was_closed_is_refused(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    joined(ledger, 1)
    kept = joined(ledger, 2)
    ledger.close()
    import sqlite3

    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DELETE FROM person WHERE id <> ?", (kept,))
    connection.close()
    with pytest.raises(CannotStart, match="changed the ledger"):
        opened(tmp_path)


def test_a_log_with_a_missing_or_changed_leaf_is_refused(tmp_path: Path) -> None:
    import sqlite3

    ledger = opened(tmp_path)
    for item in range(4):
        joined(ledger, item)
    ledger.close()
    for harm, said in (
        ("UPDATE leaf SET hash = zeroblob(32) WHERE n = 1", "another one"),
        ("DELETE FROM leaf WHERE n = 1", "some are gone"),
    ):
        with sqlite3.connect(tmp_path / "ledger.db") as connection:
            connection.execute(harm)
        connection.close()
        with pytest.raises((OlderLedger, CannotStart), match=said):
            opened(tmp_path)


def test_another_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no catalogue\. Give the items"):
        opened(tmp_path, catalogue=None)
    opened(tmp_path).close()
    with pytest.raises(ConfigError, match="in their order"):
        opened(tmp_path, catalogue=Catalogue(CATALOGUE.ids[::-1]))


def test_nobody_gets_the_id_of_who_left_and_the_others_keep_theirs(tmp_path: Path) -> None:
    """People have random ids, and items the places of a catalogue that is refused if it changes."""
    ledger = opened(tmp_path)
    people = [joined(ledger, n, n + 1) for n in range(4)]
    done(ledger, take_back(people[1], "leave"))
    ledger.close()
    ledger = opened(tmp_path)
    later = [joined(ledger, 10 + n) for n in range(4)]
    assert not {*later} & {*people}
    assert [lent(ledger, people[n]) for n in (0, 2, 3)] == [[0, 1], [2, 3], [3, 4]]
    with pytest.raises(NotThere):
        lent(ledger, people[1])
    ledger.close()


@pytest.mark.parametrize("harm", [b"", b"not a database" * 100])
def test_a_ledger_that_is_no_database_is_named(tmp_path: Path, harm: bytes) -> None:
    ledger = opened(tmp_path)
    joined(ledger, 1)
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(harm)
    with pytest.raises((CannotStart, OlderLedger)):
        opened(tmp_path)


def test_the_settings_that_durability_needs_are_asserted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    connection = ledger.store.writer()
    with connection.begin():
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2
    ledger.close()
    from rescind.ledger import store

    def hasty(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=NORMAL")

    monkeypatch.setattr(store, "_sqlite_writer", hasty)
    with pytest.raises(CannotStart, match="durable answers need"):
        opened(tmp_path)


def test_memory_is_never_dumped(tmp_path: Path) -> None:
    import resource

    opened(tmp_path).close()
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0


@pytest.mark.parametrize(("error", "words"), [(Busy, "is away"), (DiskFull, "is full")])
@pytest.mark.parametrize("where", ["migrate", "Releasing.begin"])
def test_an_outage_during_a_start_is_told_to_whoever_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type[Exception], words: str
) -> None:
    opened(tmp_path).close()

    def away(*_: object) -> None:
        raise error("nothing was acknowledged. Send it again in a moment.")

    module = "releasing" if "." in where else "start"
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(f"rescind.ledger.{module}.{where}", away)
        with pytest.raises(CannotStart, match=f"{words}.*tart again") as told:
            opened(tmp_path)
    assert "Send it" not in str(told.value)
    opened(tmp_path).close()
