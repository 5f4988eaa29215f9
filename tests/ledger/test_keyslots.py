"""Keys in slots: destroyed for good, torn writes found, one process only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescind.errors import DataError
from rescind.ledger.errors import CannotStart, DiskFull
from rescind.ledger.keyslots import FILE, SECRET, SLOT, Head, KeySlots, about

ABOUT = about(b"p" * 16, "person", "box")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


def again(keys: KeySlots) -> KeySlots:
    keys.close()
    return KeySlots(keys.path)


def test_a_key_is_there_after_a_restart_and_opens_its_box(path: Path) -> None:
    keys = KeySlots(path)
    slot = keys.new()
    box = keys.seal(slot, b"three loans", ABOUT)
    keys.sync()
    keys = again(keys)
    assert keys.unseal(slot.id, box, ABOUT) == b"three loans"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_destroyed_key_is_in_no_byte_of_the_file_and_opens_nothing(path: Path) -> None:
    keys = KeySlots(path)
    slot, other = keys.new(), keys.new()
    box = keys.seal(slot, b"three loans", ABOUT)
    keys.sync()
    assert slot.key in path.read_bytes(), "control: the key is found where it is"
    keys.destroy(slot.id)
    keys.sync()
    assert slot.key not in path.read_bytes()
    with pytest.raises(DataError, match="destroyed"):
        keys.unseal(slot.id, box, ABOUT)
    keys = again(keys)
    assert keys.ids == {other.id}


def test_a_slot_that_is_used_again_does_not_open_the_old_box(path: Path) -> None:
    keys = KeySlots(path)
    slot = keys.new()
    box = keys.seal(slot, b"three loans", ABOUT)
    keys.destroy(slot.id)
    fresh = keys.new()  # takes the place that became free
    assert path.read_bytes().count(fresh.key) == 1
    assert fresh.id != slot.id
    with pytest.raises(DataError):
        keys.unseal(slot.id, box, ABOUT)
    with pytest.raises(DataError):
        keys.unseal(fresh.id, box, ABOUT)


def test_a_box_of_another_row_or_column_does_not_open(path: Path) -> None:
    keys = KeySlots(path)
    slot = keys.new()
    box = keys.seal(slot, b"three loans", ABOUT)
    for elsewhere in (about(b"q" * 16, "person", "box"), about(b"p" * 16, "credential", "box")):
        with pytest.raises(DataError, match="elsewhere"):
            keys.unseal(slot.id, box, elsewhere)


@pytest.mark.parametrize("cut", [0, 7, 8, 20, 39, 40, 63])
def test_a_slot_that_was_written_in_part_is_found_and_destroyed(path: Path, cut: int) -> None:
    keys = KeySlots(path)
    kept, torn = keys.new(), keys.new()
    keys.sync()
    place = keys._places[torn.id]
    keys.close()
    with open(path, "r+b") as file:  # the first bytes of the destruction reached the disk
        file.seek(SLOT * place)
        file.write(bytes(cut))
    keys = KeySlots(path)
    assert keys.torn == (cut > 0)
    assert keys.ids == ({kept.id} if cut else {kept.id, torn.id})
    assert (torn.key[-8:] in path.read_bytes()) == (cut == 0)


def test_a_torn_head_leaves_the_one_before(path: Path) -> None:
    keys = KeySlots(path)
    first, second = Head(5, 7, b"a" * 32), Head(6, 8, b"b" * 32)
    keys.write_head(first)
    keys.write_head(second)
    keys.sync()
    keys = again(keys)
    assert keys.head == second
    keys.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"b" * 32)
    data[at] ^= 1
    path.write_bytes(data)
    assert KeySlots(path).head == first


def test_a_second_process_is_refused(path: Path) -> None:
    keys = KeySlots(path)
    with pytest.raises(CannotStart, match="another process"):
        KeySlots(path)
    keys.close()
    KeySlots(path).close()


def test_keys_that_others_may_read_are_refused(path: Path) -> None:
    KeySlots(path).close()
    path.chmod(0o640)
    with pytest.raises(CannotStart, match="chmod 600"):
        KeySlots(path)


def test_a_file_without_the_secret_is_refused_and_stays_as_it_is(path: Path) -> None:
    keys = KeySlots(path)
    keys.new()
    keys.write_head(Head(1, 1, b"a" * 32))
    keys.sync()
    keys.close()
    changed = bytes(SLOT) + path.read_bytes()[SLOT:]
    path.write_bytes(changed)
    with pytest.raises(CannotStart, match="secret"):
        KeySlots(path)
    assert path.read_bytes() == changed


def test_a_set_up_that_was_killed_begins_again(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 64 * SLOT)  # grown, nothing written
    keys = KeySlots(path)
    assert len(keys.own(SECRET)) == 32


def test_the_mirror_holds_the_same_bytes_and_brings_lost_keys_back(tmp_path: Path) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    keys = KeySlots(one, mirror=two)
    slot, gone = keys.new(), keys.new()
    keys.destroy(gone.id)
    keys.write_head(Head(1, 1, b"a" * 32))
    keys.sync()
    keys.close()
    assert one.read_bytes() == two.read_bytes()
    one.unlink()
    keys = KeySlots(one, mirror=two)
    assert keys.ids == {slot.id}
    keys.close()
    old = one.read_bytes()
    keys = KeySlots(one, mirror=two)
    keys.write_head(Head(2, 2, b"b" * 32))
    keys.sync()
    keys.close()
    one.write_bytes(old)
    with pytest.raises(CannotStart, match="newer"):
        KeySlots(one, mirror=two)


def test_a_file_that_cannot_grow_says_so_and_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeySlots(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", _no_space)
        with pytest.raises(DiskFull):
            [keys.new() for _ in range(2000)]
    before = len(keys)
    keys.new()
    assert len(keys) == before + 1


def _no_space(*_: int) -> None:
    raise OSError(28, "No space left on device")
