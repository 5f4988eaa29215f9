"""Going back to a backup beside an older copy of the keys: no key is lost, none comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledgers import done, joined, lent, opened, take_back
from rescind.ledger.backup import back_up
from rescind.ledger.errors import CannotStart
from rescind.ledger.keyfile import keys_in
from rescind.ledger.restore import plan, restore

BLOCK = 4096
PEOPLE = 70
"""Two keys of each fill three blocks."""


class Service:
    """A stopped service, an older copy of its keys, and a backup that is newer than both."""

    def __init__(self, folder: Path) -> None:
        self.state, self.copy, self.backup = (
            folder / name for name in ("state", "copy.bin", "backup.db")
        )
        ledger = opened(self.state)
        self.people = [joined(ledger, n % 20, (n + 1) % 20) for n in range(PEOPLE)]
        ledger.close()
        shutil.copy(self.keys, self.copy)
        ledger = opened(self.state)
        self.people.append(joined(ledger, 3, 4))
        ledger.close()
        back_up(self.state, self.backup)

    @property
    def keys(self) -> Path:
        return self.state / "keys.bin"

    def damage(self) -> None:
        """Lose a block of keys, as a disk does."""
        data = self.keys.read_bytes()
        self.keys.write_bytes(data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :])

    def lose_ledger(self) -> None:
        for end in ("", "-wal", "-shm"):
            (self.state / f"ledger.db{end}").unlink(missing_ok=True)
        (self.state / "ledger.db").write_bytes(b"a broken disk")

    def open_loans(self, **named: Path) -> int:
        ledger = opened(self.state, **named)
        try:
            return len(ledger.live.loans)
        finally:
            ledger.close()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def test_keys_that_the_ledger_in_place_names_come_from_the_older_copy(service: Service) -> None:
    service.damage()
    told = str(plan(service.state, service.backup, service.copy, None))
    assert "Dropped: 0 loans of 0 people" in told
    assert "cannot be found" not in told
    restore(service.state, service.backup, service.copy)
    assert service.open_loans() == PEOPLE + 1


def test_nothing_is_written_over_the_only_copy_if_no_ledger_tells(service: Service) -> None:
    service.damage()
    service.lose_ledger()
    before = service.copy.read_bytes()
    for act in (plan, restore):
        with pytest.raises(CannotStart, match="is an older copy of the keys, and has 64 keys"):
            act(service.state, service.backup, service.copy, None)
    assert service.copy.read_bytes() == before
    told = str(plan(service.state, service.backup, None, None))
    assert "No ledger in place tells whether the keys are whole" in told


def test_without_the_older_copy_what_was_erased_stays_gone(service: Service) -> None:
    ledger = opened(service.state)
    done(ledger, take_back(service.people[0], "erase", 0))
    ledger.close()
    service.lose_ledger()
    service.copy.rename(service.copy.with_suffix(".old"))
    restore(service.state, service.backup, service.copy)
    assert keys_in(service.copy.read_bytes()) == keys_in(service.keys.read_bytes())
    ledger = opened(service.state)
    assert lent(ledger, service.people[0]) == [], "its old key is gone; the later loan is no more"
    assert len(ledger.live.loans) == PEOPLE
    ledger.close()


def test_an_older_copy_that_lacks_nothing_is_no_reason_to_stop(service: Service) -> None:
    service.lose_ledger()
    restore(service.state, service.backup, service.copy)
    assert service.open_loans() == PEOPLE + 1
