"""The writer: one effect per key, order kept, refusals write nothing, the log fits."""

from __future__ import annotations

import hashlib
import hmac
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, Transaction, insert, text
from sqlalchemy.exc import DBAPIError

from ledgers import CATALOGUE, done, joined, lent, opened, take_back, ticking
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Once
from rescind.ledger.book import Ledger
from rescind.ledger.errors import Busy, Closing, KeyReused, NotThere, StillRunning, VersionConflict
from rescind.ledger.lending import Join, Lend, TakeBack
from rescind.privacy.sealing import sealed
from rescind.proof.changes import statement
from rescind.proof.tlog import root_of

KEY = "0123456789abcdef-key"


@pytest.fixture
def ledger(tmp_path: Path):
    ledger = opened(tmp_path / "state")
    yield ledger
    ledger.close()


@dataclass(frozen=True)
class Wait:
    """An operation that holds the writer up until a test lets it go on."""

    entered: threading.Event
    go_on: threading.Event
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        self.entered.set()
        assert self.go_on.wait(30)
        return Answer(200)


@dataclass(frozen=True)
class FailsLate:
    """Does everything an operation may do, then refuses."""

    person: bytes
    error: Exception

    def carry_out(self, batch: Batch) -> Answer:
        slot = batch.new_key()
        batch.tx.execute(insert(tables.setting).values(name="half", value="done"))
        batch.append(b"\x01" + bytes(32))
        batch.event("half", 1, self.person, 0, batch.next_seq())
        batch.flush()
        batch.destroy(slot.id)
        Lend(self.person, (7,)).carry_out(batch)
        raise self.error


def test_every_change_has_a_new_key_and_the_old_one_is_gone(ledger: Ledger) -> None:
    person = joined(ledger, 1)
    seen = set()
    for item in (2, 3, 4):
        row = ledger.reading.person(person)
        old = ledger.keys.get(row.loans_key).key
        done(ledger, Lend(person, (item,)))
        assert old not in ledger.keys.path.read_bytes()
        seen.add(old)
    assert len(seen) == 3


def test_a_repeated_key_has_one_effect_and_the_same_answer(ledger: Ledger) -> None:
    person = joined(ledger, 1, 2, 3)
    first = done(ledger, take_back(person, "unshare", 1), KEY, b"body")
    again = done(ledger, take_back(person, "unshare", 1), KEY, b"body")
    assert again.replayed
    assert not first.replayed
    for name in ("request_id", "acknowledgement", "link", "receipt_key"):
        assert again.body[name] == first.body[name]
    assert len(ledger.tree) == 2
    with pytest.raises(KeyReused):
        done(ledger, take_back(person, "unshare", 2), KEY, b"another body")
    other = joined(ledger, 1)
    assert not done(ledger, take_back(other, "unshare", 1), KEY, b"body").replayed


def test_a_recorded_answer_opens_with_the_callers_key_alone(ledger: Ledger) -> None:
    person = joined(ledger, 1)
    answer = done(ledger, take_back(person, "unshare", 1), KEY, b"body")
    files = b"".join(p.read_bytes() for p in ledger.state.iterdir())
    for secret in (answer.body["acknowledgement"]["opening"], answer.body["receipt_key"]):
        assert secret.encode() not in files
        assert bytes.fromhex(secret) not in files
    assert KEY.encode() not in files
    assert answer.body["acknowledgement"]["entry"].encode() not in files
    assert bytes.fromhex(answer.body["acknowledgement"]["entry"]) in files, "control"


def test_a_key_that_is_under_way_is_told_so(ledger: Ledger) -> None:
    person = joined(ledger)
    entered, go_on = threading.Event(), threading.Event()
    held = ledger.submit(Wait(entered, go_on))
    assert entered.wait(30)
    first = ledger.submit(Lend(person, (1,)), Once(KEY, b""))
    second = ledger.submit(Lend(person, (1,)), Once(KEY, b""))
    with pytest.raises(StillRunning):
        second.result(30)
    go_on.set()
    assert held.result(30).status == 200
    assert first.result(30).status == 201
    assert done(ledger, Lend(person, (1,)), KEY).replayed


def test_whoever_waits_is_in_one_batch_and_in_order(ledger: Ledger) -> None:
    people = [joined(ledger) for _ in range(4)]
    entered, go_on = threading.Event(), threading.Event()
    held = ledger.submit(Wait(entered, go_on))
    assert entered.wait(30)
    before = ledger.writer.batch
    futures = [ledger.submit(Lend(p, (i,))) for i in range(5) for p in people]
    futures += [ledger.submit(take_back(p, "unshare", 0)) for p in people]
    go_on.set()
    held.result(30)
    seqs = [future.result(30).body["acknowledgement"]["seq"] for future in futures]
    assert seqs == sorted(seqs)
    assert ledger.writer.batch == before + 2
    assert all(lent(ledger, person) == [1, 2, 3, 4] for person in people)


@pytest.mark.parametrize("error", [ConsentError("no"), ValueError("a fault")])
def test_a_refused_operation_writes_nothing_and_harms_no_other(
    ledger: Ledger, error: Exception
) -> None:
    person = joined(ledger, 1)
    entered, go_on = threading.Event(), threading.Event()
    ledger.submit(Wait(entered, go_on))
    assert entered.wait(30)
    keys, leaves = ledger.keys.ids, len(ledger.tree)
    before = ledger.submit(Lend(person, (2,)))
    refused = ledger.submit(FailsLate(person, error), Once(KEY, b""))
    after = ledger.submit(Lend(person, (3,)))
    go_on.set()
    first, second = before.result(30).body, after.result(30).body
    with pytest.raises(type(error)):
        refused.result(30)
    assert second["acknowledgement"]["seq"] == first["acknowledgement"]["seq"] + 1
    assert lent(ledger, person) == [1, 2, 3]
    assert ledger.live.loans[person] == (1, 2, 3)
    assert len(ledger.tree) == leaves + 2
    assert len(ledger.keys.ids) == len(keys)  # the new loans key for the old one
    assert ledger.reading.setting("half") is None
    assert done(ledger, Lend(person, (4,)), KEY).status == 201  # a refusal is not recorded


def test_an_older_version_is_refused(ledger: Ledger) -> None:
    person = joined(ledger, 1)
    version = ledger.reading.me(person)["version"]
    done(ledger, Lend(person, (2,), if_match=version))
    with pytest.raises(VersionConflict, match="version 2"):
        done(ledger, TakeBack(person, "erase", (1,), if_match=version))


def test_bad_requests_are_named(ledger: Ledger) -> None:
    person, other = joined(ledger, 1), joined(ledger, 2)
    with pytest.raises(ConsentError, match="this item is not lent") as caught:
        done(ledger, take_back(person, "unshare", 2))
    assert caught.value.item == 2
    with pytest.raises(ConsentError, match="1 of these 2 items is not"):
        done(ledger, TakeBack(person, "unshare", (1, 2)))
    with pytest.raises(DataError, match="0 to 19"):
        done(ledger, Lend(person, (20,)))
    with pytest.raises(DataError, match="at least one"):
        done(ledger, Lend(person, ()))
    with pytest.raises(ConfigError, match="is no way to take back"):
        done(ledger, TakeBack(person, "erases", (1,)))
    with pytest.raises(ConfigError, match="everything"):
        done(ledger, TakeBack(person, "leave", (1,)))
    with pytest.raises(ConfigError, match="32 bytes"):
        done(ledger, TakeBack(person, "erase", (1,), receipt_key=b"short"))
    with pytest.raises(NotThere):
        done(ledger, Lend(bytes(16), (1,)))
    assert lent(ledger, other) == [2]
    done(ledger, take_back(other))
    with pytest.raises(ConsentError, match="nothing is lent"):
        done(ledger, take_back(other))


def test_the_entry_is_a_commitment_that_only_the_opening_opens(ledger: Ledger) -> None:
    person = joined(ledger)
    key = bytes(range(32))
    done(ledger, Lend(person, (4, 2)))
    answer = done(ledger, TakeBack(person, "erase", (2,), receipt_key=key)).body
    assert "receipt_key" not in answer
    ack = answer["acknowledgement"]
    request = ledger.reading.request(answer["request_id"])
    said = statement("erase", ["item-2"], request.received_at.isoformat(), ack["seq"])
    entry = b"\x01" + hmac.digest(bytes.fromhex(ack["opening"]), said, hashlib.sha256)
    assert ledger.reading.entries(ack["leaf"], 1) == [entry]
    assert request.asked == sealed(said.decode(), key)
    leaf = hashlib.sha256(b"\0" + entry).digest()
    path = ledger.tree.inclusion(ack["leaf"])
    assert root_of(leaf, ack["leaf"], len(ledger.tree), path) == ledger.tree.root()


def test_leaving_leaves_an_id_and_a_state(ledger: Ledger) -> None:
    person = joined(ledger, 1, 2)
    account = ledger.keys.get(ledger.reading.person(person).account_key).key
    with ledger.store.reading() as connection:
        assert _named(connection, person) > 2, "control: events name the person"
    answer = done(ledger, take_back(person, "leave"))
    assert account not in ledger.keys.path.read_bytes()
    with ledger.store.reading() as connection:
        assert _named(connection, person) == 1
        row = connection.execute(text("SELECT * FROM person")).one()
    kept = {name: value for name, value in row._mapping.items() if value}
    assert kept == {"id": person, "state": "left"}
    for refused in (Lend(person, (1,)), take_back(person, "leave")):
        with pytest.raises(NotThere):
            done(ledger, refused)
    with pytest.raises(NotThere):
        ledger.reading.loans(person)
    assert ledger.reading.request(answer.body["request_id"]).person is None
    assert ledger.live.loans == {}


def _named(connection, person: bytes) -> int:
    """How many rows of any table hold this person's id."""
    count = 0
    for table in tables.metadata.tables.values():
        for row in connection.execute(table.select()):
            count += any(value == person for value in row)
    return count


def test_recorded_answers_and_their_key_end_after_72_hours(tmp_path: Path) -> None:
    from datetime import timedelta

    hours = [0.0]
    tick = ticking()
    ledger = opened(tmp_path, clock=lambda: tick() + timedelta(hours=hours[0]))
    person = joined(ledger)
    done(ledger, Lend(person, (1,)), KEY)
    with ledger.store.reading() as connection:
        slot = connection.execute(text("SELECT slot FROM answered")).scalar_one()
    key = ledger.keys.get(slot).key
    for hour, there in ((71.9, True), (73.5, False)):
        hours[0] = hour
        done(ledger, Join())  # the pause after it deletes what expired
        done(ledger, Join())
        assert (slot in ledger.keys.ids) == there
        assert (key in ledger.keys.path.read_bytes()) == there
    assert not done(ledger, Lend(person, (1,)), KEY).replayed
    ledger.close()


def test_a_closed_ledger_takes_nothing_more(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    person = joined(ledger, 1)
    ledger.close()
    with pytest.raises(Closing):
        done(ledger, Lend(person, (2,)))
    again = opened(tmp_path, catalogue=None)
    assert lent(again, person) == [1]
    assert again.catalogue.ids == CATALOGUE.ids
    again.close()


def test_a_clock_that_steps_back_changes_no_order(tmp_path: Path) -> None:
    from datetime import timedelta

    from ledgers import START

    steps = [0]
    ledger = opened(tmp_path, clock=lambda: START - timedelta(hours=steps[0]))
    person = joined(ledger, 1)
    for item in range(2, 6):
        steps[0] += 2
        done(ledger, Lend(person, (item,)), f"back-in-time-{item:04d}")
    rows = ledger.reading.events()
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert rows[-1].at < rows[0].at, "control: the clock went back"
    assert done(ledger, Lend(person, (2,)), "back-in-time-0002").replayed
    ledger.close()
    again = opened(tmp_path)
    assert lent(again, person) == [1, 2, 3, 4, 5]
    again.close()


@dataclass(frozen=True)
class Note:
    """An operation with texts in it."""

    texts: dict[str, list[str]]
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        return Answer(200, {})


def test_a_text_that_a_database_cannot_keep_is_refused_before_it_is_written(ledger: Ledger) -> None:
    assert done(ledger, Note({"name": ["a"]})).status == 200
    with pytest.raises(ConfigError, match="NUL"):
        done(ledger, Note({"name": ["a", "b\0c"]}))
    with pytest.raises(ConfigError, match="NUL"):
        done(ledger, Note({"na\0me": []}))
    assert done(ledger, Join()).status == 201  # the ledger goes on


class Cut(Exception):
    """An error of a driver whose connection broke."""


class Away:
    """Cuts a ledger off from its database, as a stopped PostgreSQL does, until it is back."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store, self._patch = ledger.store, monkeypatch
        self._writer = ledger.store.writer
        monkeypatch.setattr(ledger.store, "known", self._known)

    def _known(self, error: DBAPIError) -> Busy | None:
        return Busy("the database is away") if isinstance(error.orig, Cut) else None

    def cut(self, *_: object) -> None:
        """Fail as a statement does when its connection broke, and let no other be made."""
        self._patch.setattr(self._store, "writer", self._refused)
        raise DBAPIError("", None, Cut(), connection_invalidated=True)

    def back(self) -> None:
        self._patch.setattr(self._store, "writer", self._writer)

    def _refused(self) -> Connection:
        raise Busy("the database is away")


def test_a_database_that_goes_before_the_commit_refuses_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    person, away = joined(ledger, 1), Away(ledger, monkeypatch)
    for items in ((2,), (3,)):  # each outage is told
        caplog.clear()
        with monkeypatch.context() as broken:
            broken.setattr("rescind.ledger.batch.Batch.flush", away.cut)
            with pytest.raises(Busy):
                done(ledger, Lend(person, items), KEY)
        with pytest.raises(Busy):
            done(ledger, Lend(person, items), KEY)
        (gone,) = caplog.messages
        assert gone.startswith("the database is away since "), "once, not for each change"
        away.back()
        done(ledger, Lend(person, items), None)
        assert ["after 0 s" in line for line in caplog.messages[1:]] == [True]
    assert lent(ledger, person) == [1, 2, 3]
    assert ledger.writer.fault is None


@pytest.mark.parametrize("took_effect", [False, True])
def test_a_database_that_goes_in_the_commit_refuses_until_it_is_known_what_became_of_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    person, away = joined(ledger, 1), Away(ledger, monkeypatch)
    real = Transaction.commit

    def commit(transaction: Transaction) -> None:
        if took_effect:
            real(transaction)
        away.cut()

    with monkeypatch.context() as broken:
        broken.setattr(Transaction, "commit", commit)
        with pytest.raises(Busy):
            done(ledger, Lend(person, (2,)), KEY)
    for _ in range(2):  # the same key, too, is told to come again
        with pytest.raises(Busy):
            done(ledger, Lend(person, (2,)), KEY)
    away.back()
    answer = None
    while answer is None:
        with suppress(Busy):
            answer = done(ledger, Lend(person, (2,)), KEY)
    assert answer.replayed is took_effect, "it was done once, whichever it was"
    assert lent(ledger, person) == [1, 2]
    assert ledger.live.loans[person] == (1, 2)


def test_a_service_ends_while_its_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    person = joined(ledger, 1)
    with monkeypatch.context() as meanwhile:
        away = Away(ledger, meanwhile)
        with monkeypatch.context() as broken:
            broken.setattr(Transaction, "commit", away.cut)
            with pytest.raises(Busy):
                done(ledger, Lend(person, (2,)), KEY)
        ledger.close()
    again = opened(tmp_path)
    assert again.live.loans == {person: (1,)}
    assert done(again, Lend(person, (2,)), KEY).body["changed"] == 1
    again.close()
