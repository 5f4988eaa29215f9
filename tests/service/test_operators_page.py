"""What the operator's page reads: open requests alone, what the caller may do, the last scan."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from doors import House, opened
from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.accounts import NewSession
from rescind.ledger.backup import back_up
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.errors import Busy, DiskFull
from rescind.ledger.operators import Remove
from rescind.ledger.restore import restore
from rescind.service import callers, chores
from rescind.service.callers import new_secret
from rescind.service.policy import SCOPES, Role
from rescind.service.running import release_missing


def test_only_open_requests_are_listed_if_asked(house: House) -> None:
    operator, person = house.operator(), house.person((1, 2, 3))
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})
    house.release(operator)
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2"]})
    everything = operator.get("/v1/operator/requests").json()["requests"]
    assert sorted(one["status"] for one in everything) == ["fulfilled", "in_progress"]
    waiting = operator.get("/v1/operator/requests?open=true").json()["requests"]
    assert [one["status"] for one in waiting] == ["in_progress"]


def test_the_list_has_the_level_that_the_person_was_told_and_none_before_the_erasure(
    house: House, monkeypatch
) -> None:
    operator, person = house.operator(), house.person((1, 2, 3))
    monkeypatch.setattr(house.ledger.writer, "_write_dates", lambda driver: None)
    told = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]}).json()
    dates = {told["request_id"]: (house.clock(), house.clock())}
    for known, level in ((dates, told["level"]), ({}, None)):
        monkeypatch.setattr(house.ledger.reading, "_dates", known)
        (shown,) = operator.get("/v1/operator/requests").json()["requests"]
        assert shown["level"] == level
    assert told["level"] == "L1"


def test_the_overview_says_what_its_reader_may_do(house: House) -> None:
    for role in (Role.OPERATOR, Role.OFFICER):
        may = house.operator(role).get("/v1/operator/overview").json()["may"]
        assert may == sorted(SCOPES[role])
    script = house.script("read").get("/v1/operator/overview").json()
    assert script["may"] == ["read"]


def test_items_in_a_row_are_no_false_alarm_and_records_in_the_clear_are_found(
    house: House,
) -> None:
    """Page numbers of the database look like items 0 to 11; those of the second person do not."""
    house.person(tuple(range(12)))
    operator, mine = house.operator(), (2, 3, 7, 11, 18, 19, 24, 31, 32, 38)
    alone = operator.post("/v1/operator/scan", {}).json()
    assert (alone["looked_for"], alone["found"]) == (0, 0)
    house.person(mine)
    both = operator.post("/v1/operator/scan", {}).json()
    assert (both["looked_for"], both["found"]) == (1, 0)
    (house.ledger.state / "left.npy").write_bytes(struct.pack(f"<{len(mine)}i", *mine))
    assert operator.post("/v1/operator/scan", {}).json()["found"] == 1


def test_the_page_itself_holds_nothing(house: House) -> None:
    anonymous, operator = house.caller(), house.operator()
    assert anonymous.get("/operator").text == operator.get("/operator").text
    assert anonymous.get("/v1/operator/overview").status_code == 401


def test_measures_ring_at_half_at_four_fifths_and_at_the_end(house: House) -> None:
    person = house.person(tuple(range(6)))
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})

    def rings() -> list[float]:
        text = house.operator().get("/metrics").text
        found = dict(line.split(" ") for line in text.splitlines() if line[:1] != "#")
        return [float(found[f"rescind_requests_{name}"]) for name in ("half", "urgent", "late")]

    told = [rings()]
    for days in (16, 9, 6):
        house.clock.go(days=days)
        told.append(rings())
    assert told == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_service_that_cannot_write_says_so_until_it_can(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, ask = house.person((1,)), house.caller()

    def full() -> None:
        raise DiskFull("the disk is full")

    assert ask.get("/readyz").status_code == 200
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(house.ledger.store, "writer", full)
        assert person.post("/v1/me/loans", {"items": ["item-2"]}).status_code == 507
        late = ask.get("/readyz")
        assert (late.status_code, late.json()["can_write"]) == (503, False)
        assert person.get("/v1/me/loans").status_code == 200  # it goes on reading
    assert person.post("/v1/me/loans", {"items": ["item-2"]}).status_code == 201
    assert ask.get("/readyz").status_code == 200


def test_a_database_that_is_away_is_told_before_anybody_writes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, ask = house.person((1,)), house.caller()

    @contextmanager
    def away() -> Iterator[None]:
        raise Busy("the database is away")
        yield

    assert "rescind_lenders 1.0" in ask.get("/metrics").text
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(house.ledger.store, "reading", away)
        late, told = ask.get("/readyz"), ask.get("/metrics")
        assert (late.status_code, late.json()["can_write"]) == (503, False)
        assert told.status_code == 200
        assert "rescind_refusing_changes 1.0" in told.text
        assert "rescind_lenders" not in told.text, "what it was before is not what it is"
        assert person.get("/v1/me/loans").status_code == 503, "control"
    house.ledger.writer._outage.hit(Busy("the last batch was refused"))
    assert ask.get("/readyz").status_code == 200, "it is back, though nobody wrote since"
    assert "rescind_lenders 1.0" in ask.get("/metrics").text


def test_a_restore_behind_the_release_is_told_until_another_is_made(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    with opened(state) as house:
        assert release_missing(house.ledger) is None, "control: nobody lends yet"
        for _ in range(6):
            house.person((1, 2, 3))
        url = house.ledger.store.url
        database = None if house.ledger.store.sqlite else url.render_as_string(False)
        back_up(state, backup, database)
        house.release(house.operator())
        assert release_missing(house.ledger) is None
        assert house.caller().get("/readyz").json()["release_loaded"] is True
    restore(state, backup, None, database)
    with opened(state) as house:
        assert "no release is served" in (release_missing(house.ledger) or "")
        told = house.caller().get("/readyz")
        assert (told.status_code, told.json()["release_loaded"]) == (200, False)
        house.release(house.operator())
        assert house.caller().get("/readyz").json()["release_loaded"] is True


@pytest.mark.parametrize(("size", "why"), [(100, "is damaged"), (0, "is not there")])
def test_a_damaged_file_of_the_release_is_named_until_another_is_made(
    tmp_path: Path, size: int, why: str
) -> None:
    file = tmp_path / "state" / "release-1.sealed"
    with opened(tmp_path / "state") as house:
        for _ in range(6):
            house.person((1, 2, 3))
        house.release(house.operator())
    if size:
        os.truncate(file, size)
    else:
        file.unlink()
    for _ in range(2):  # also the second time
        with opened(tmp_path / "state") as house:
            told = release_missing(house.ledger) or ""
            assert f"no release is served ({file} {why})" in told
            assert "Make one now" in told
    with opened(tmp_path / "state") as house:
        house.release(house.operator())
        assert release_missing(house.ledger) is None
    with opened(tmp_path / "state") as house:
        assert release_missing(house.ledger) is None
        assert not file.exists()


def test_old_logs_are_deleted_and_new_ones_stay(tmp_path: Path) -> None:
    old, new = tmp_path / "a.log", tmp_path / "b.log"
    for path in (old, new):
        path.write_text("x")
    long_ago = time.time() - 31 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    assert chores.delete_logs(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["b.log"]
    assert chores.delete_logs(tmp_path / "missing") == 0


def test_a_removed_operator_is_signed_out_and_cannot_come_back(house: House) -> None:
    rows, (keep, gone) = tables.operator, (house.caller(), house.caller())
    for who, name in ((keep, "Anna"), (gone, "Bea")):
        secret, digest = new_secret()
        house.ledger.submit(_Named(name.encode().ljust(16), name, digest)).result()
        who.secret = secret
    with house.ledger.store.reading() as tx:
        sessions = tx.scalar(select(func.count()).select_from(tables.session))
    assert house.ledger.submit(Remove("operator", "Bea")).result().body == {"removed": 1}
    house.service.callers.read_again()  # as after the start that removes
    assert gone.get("/v1/operator/overview").status_code == 401
    assert keep.get("/v1/operator/overview").status_code == 200
    with house.ledger.store.reading() as tx:
        assert list(tx.scalars(select(rows.c.name))) == ["Anna"]
        assert tx.scalar(select(func.count()).select_from(tables.session)) == sessions - 1
    with pytest.raises(ConfigError, match=r"no operator 'Bea'\. There are: Anna"):
        house.ledger.submit(Remove("operator", "Bea")).result()
    callers.invite(house.ledger, "Cleo", Role.OFFICER)
    with pytest.raises(ConfigError, match="rescind tokens list"):
        house.ledger.submit(Remove("operator", "Cleo")).result()
    assert house.ledger.submit(Remove("token", "Cleo")).result().body == {"removed": 1}
    with pytest.raises(ConfigError, match="'operater' cannot be removed"):
        house.ledger.submit(Remove("operater", "Anna")).result()


@dataclass(frozen=True)
class _Named:
    """Make an operator with a session, as an invitation does."""

    id: bytes
    name: str
    session: bytes
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        row = {"id": self.id, "name": self.name, "role": "operator", "counter": 0, "at": batch.now}
        batch.tx.execute(insert(tables.operator).values(row))
        return NewSession(self.session, "operator", operator=self.id).carry_out(batch)


def test_the_last_scan_outlives_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as house:
        house.person((2, 3, 7, 11, 18, 19, 24, 31, 32, 38))
        found = house.operator().post("/v1/operator/scan", {}).json()
        second = house.operator().post("/v1/operator/scan", {}).json()
        assert second["at"] >= found["at"]
    with opened(tmp_path / "state") as house:
        assert house.operator().get("/v1/operator/storage").json()["scan"] == second
