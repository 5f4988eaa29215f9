"""Backups are ciphertext; going back brings nothing back and says what is dropped."""

from __future__ import annotations

import os
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledgers import done, joined, lent, opened, take_back
from rescind.cli import app
from rescind.errors import ConfigError, DataError, RescindError
from rescind.ledger.accounts import MakeToken, RevokeToken, token_name
from rescind.ledger.backup import back_up
from rescind.ledger.errors import CannotStart, NotThere, OlderLedger
from rescind.ledger.keyfile import SLOT
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lending import Lend
from rescind.ledger.restore import RestoreDiff, plan, restore


def test_a_backup_of_a_running_ledger_can_be_put_back(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    stays, changes, leaves = joined(ledger, 1, 2), joined(ledger, 3, 4), joined(ledger, 5)
    assert back_up(state, backup)["person"] == 3
    assert backup.stat().st_mode & 0o777 == 0o600
    done(ledger, take_back(changes, "unshare", 3))
    done(ledger, take_back(leaves, "leave"))
    assert back_up(state, tmp_path / "later.db")["person"] == 2, "who left is nobody any more"
    later = joined(ledger, 6)
    ledger.close()

    found = plan(state, backup, None, None)
    assert (found.people, found.loans) == (1, 2)
    assert (found.people_dropped, found.loans_dropped, found.accounts_ended) == (2, 3, 1)
    assert found.entries_lost == 3
    assert "goes back by 3 entries" in str(found)
    before = (state / "ledger.db").read_bytes(), (state / "keys.bin").read_bytes()
    words = ["restore", str(state), "--from", str(backup)]
    unanswered = CliRunner().invoke(app, words, input="")
    assert isinstance(unanswered.exception, ConfigError)
    assert "give --yes: then it does not ask. Nothing was changed." in str(unanswered.exception)
    assert ((state / "ledger.db").read_bytes(), (state / "keys.bin").read_bytes()) == before

    restore(state, backup)
    ledger = opened(state)
    assert ledger.report.people_dropped == 2
    assert ledger.report.loans_dropped == 3
    assert ledger.report.accounts_dropped == 1
    assert lent(ledger, stays) == [1, 2]
    assert lent(ledger, changes) == []
    for gone in (leaves, later):
        with pytest.raises(NotThere):
            lent(ledger, gone)
    assert ledger.live.loans == {stays: (1, 2)}
    done(ledger, Lend(changes, (7,)))
    ledger.close()
    opened(state).close()


def test_going_back_takes_the_mirror_of_the_keys_along(tmp_path: Path) -> None:
    state, backup, mirror = tmp_path / "state", tmp_path / "backup.db", tmp_path / "mirror.bin"
    ledger = opened(state, keys_mirror=mirror)
    stays = joined(ledger, 1, 2)
    back_up(state, backup)
    joined(ledger, 3)
    ledger.close()
    mirror.rename(tmp_path / "away.bin")
    with pytest.raises(CannotStart, match=r"mirror.bin is not there.*Nothing was done"):
        restore(state, backup)
    (tmp_path / "away.bin").rename(mirror)
    restore(state, backup)  # nobody names the mirror
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes()
    ledger = opened(state, keys_mirror=mirror)
    assert lent(ledger, stays) == [1, 2]
    ledger.close()


def test_going_back_says_which_answers_it_undoes(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state, live=None)
    first, second = joined(ledger, *range(8)), joined(ledger, *range(8))
    until = ledger.clock() + timedelta(days=30)
    done(ledger, MakeToken(b"a" * 32, "old", "officer", ("read",), until))
    done(ledger, take_back(first, "erase", 1))
    back_up(state, backup)
    ledger.close()
    same = plan(state, backup, None, None)
    assert same.undone == RestoreDiff(0, 0, 0, 0, 0), "control: nothing since"
    assert same.entries_lost == 0
    assert "receipt" not in str(same), "control: its key is there"
    ledger = opened(state, live=None)
    done(ledger, take_back(second, "erase", 2))
    ledger.releases.make(ledger)
    done(ledger, RevokeToken(token_name(b"a" * 32)))
    done(ledger, MakeToken(b"b" * 32, "new", "officer", ("read",), until))
    ledger.close()
    found = plan(state, backup, None, None)
    assert found.undone == RestoreDiff(
        answers=1, answers_without_key=1, requests=1, tokens_lost=1, tokens_back=1
    )
    assert found.receipts_impossible == 1
    told = str(found)
    assert "1 answered request open again, of which 1 can get no other receipt" in told
    assert "No receipt can be issued for 1 open request" in told
    assert "open doors again: rescind tokens list" in told


def test_an_old_ledger_in_place_is_accepted_only_by_restore(tmp_path: Path) -> None:
    state = tmp_path
    ledger = opened(state)
    person = joined(ledger, 1)
    ledger.close()
    old = (state / "ledger.db").read_bytes()
    ledger = opened(state)
    done(ledger, take_back(person, "erase", 1))
    ledger.close()
    (state / "ledger.db").write_bytes(old)
    with pytest.raises(OlderLedger):
        opened(state)
    restore(state, None)
    ledger = opened(state)
    assert lent(ledger, person) == []
    assert ledger.live.loans == {}
    ledger.close()


def test_an_old_backup_opens_nothing_that_changed_since(tmp_path: Path) -> None:
    """An attacker with the backup and all keys of today: nothing. Control: with those of then."""
    from rescind.ledger.scanner import opened_boxes

    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    person = joined(ledger, 1, 2)
    back_up(state, backup)
    keys_then = (state / "keys.bin").read_bytes()
    done(ledger, take_back(person, "leave"))
    ledger.close()
    (tmp_path / "then.bin").write_bytes(keys_then)
    (tmp_path / "then.bin").chmod(0o600)
    loans = b"\1\0\0\0\2\0\0\0"
    assert loans in opened_boxes(backup, KeySlots(tmp_path / "then.bin")).values(), "control"
    assert opened_boxes(backup, KeySlots(state / "keys.bin")) == {}


def test_mistakes_are_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    opened(state).close()
    taken, text = tmp_path / "taken", tmp_path / "text"
    taken.touch()
    text.write_text("not a ledger")
    with pytest.raises(ConfigError, match="exists already"):
        back_up(state, taken)
    with pytest.raises(ConfigError, match="holds no ledger"):
        back_up(tmp_path, tmp_path / "x")
    with pytest.raises(DataError, match="not a backup"):
        plan(state, text, None, None)
    with pytest.raises(DataError, match="no file"):
        plan(state, tmp_path / "missing", None, None)
    ledger = opened(state)
    with pytest.raises(DataError, match="in use"):
        plan(state, None, None, None)
    ledger.close()


def test_backup_and_mirror_are_enough_if_the_folder_is_lost(tmp_path: Path) -> None:
    state, backup, mirror = tmp_path / "state", tmp_path / "backup.db", tmp_path / "mirror.bin"
    ledger = opened(state, keys_mirror=mirror)
    person, names = joined(ledger, 1, 2), ledger.catalogue.ids
    back_up(state, backup)
    ledger.close()
    state.rename(tmp_path / "lost")
    with pytest.raises(DataError, match=r"mkdir"):
        restore(state, backup, mirror)
    state.mkdir()
    restore(state, backup, mirror)
    ledger = opened(state, catalogue=None)  # nobody names items or mirror
    assert ledger.catalogue.ids == names
    assert lent(ledger, person) == [1, 2]
    done(ledger, Lend(person, (3,)))
    ledger.close()
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes(), "the mirror goes on"
    assert (state / "catalogue.json").read_bytes() == (
        tmp_path / "lost/catalogue.json"
    ).read_bytes()


def test_a_backup_of_another_service_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for state, items in ((mine, (1, 2)), (other, (3, 4, 5))):
        ledger = opened(state)
        joined(ledger, *items)
        back_up(state, tmp_path / f"{state.name}.db")
        ledger.close()
    keys = (mine / "keys.bin").read_bytes()
    for step in (plan, restore):
        with pytest.raises(ConfigError, match="is not a ledger of these keys"):
            step(mine, tmp_path / "other.db", None, None)
    (mine / "ledger.db").unlink()  # the ledger is lost: its keys tell
    with pytest.raises(ConfigError, match="is not a ledger of these keys"):
        restore(mine, tmp_path / "other.db")
    assert (mine / "keys.bin").read_bytes() == keys
    restore(mine, tmp_path / "mine.db")
    ledger = opened(mine)
    assert list(ledger.live.loans.values()) == [(1, 2)], "control: its own is taken"
    ledger.close()


@pytest.mark.parametrize("wrong", ["noise", "new keys", "keys of another service"])
@pytest.mark.parametrize("ledger_is", ["lost", "in place"])
def test_keys_that_open_nothing_are_refused(tmp_path: Path, wrong: str, ledger_is: str) -> None:
    state, backup, keys = tmp_path / "state", tmp_path / "backup.db", tmp_path / "wrong.bin"
    ledger = opened(state)
    joined(ledger, 1, 2)
    back_up(state, backup)
    ledger.close()
    if wrong == "noise":
        keys.write_bytes(os.urandom(1024 * SLOT))
        keys.chmod(0o600)
    elif wrong == "new keys":
        KeySlots(keys).close()
    else:
        ledger = opened(tmp_path / "other", keys_mirror=keys)
        joined(ledger, 3)
        ledger.close()
    data = keys.read_bytes()
    if ledger_is == "lost":
        state = tmp_path / "new"
        state.mkdir()
        mirror: Path | None = keys
    else:
        keys, mirror = keys.rename(state / "keys.bin"), None
    for step in (plan, restore):
        with pytest.raises(RescindError, match=r"Nothing was changed"):
            step(state, backup, mirror, None)
    assert keys.read_bytes() == data
    assert ledger_is == "in place" or not list(state.glob("keys*"))


def test_a_backup_from_before_everybody_left_is_no_foreign_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    leaves = joined(ledger, 2)
    back_up(state, backup)
    done(ledger, take_back(leaves, "leave"))
    ledger.close()
    assert plan(state, backup, None, None).accounts_ended == 1
    with monkeypatch.context() as patch:
        patch.setattr(KeySlots, "restart_head", _killed)
        with pytest.raises(KeyboardInterrupt):
            restore(state, backup)
    restore(state, backup)  # killed before its end, it can be repeated
    ledger = opened(state)
    assert ledger.live.loans == {}
    ledger.close()


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_backup_holds_no_sessions_key_or_opening_in_the_open(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    person = joined(ledger, 1)
    answer = done(ledger, take_back(person, "unshare", 1), "a-key-of-the-caller").body
    back_up(state, backup)
    data = backup.read_bytes()
    assert bytes.fromhex(answer["acknowledgement"]["entry"]) in data, "control"
    for secret in (answer["receipt_key"], answer["acknowledgement"]["opening"]):
        assert bytes.fromhex(secret) not in data
        assert secret.encode() not in data
    for slot_id in ledger.keys.ids:
        assert ledger.keys.get(slot_id).key not in data
    assert sqlite3.connect(backup).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ledger.close()
