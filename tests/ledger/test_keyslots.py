"""Keys in slots: destroyed for good, torn writes found, one process only."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rescind.errors import DataError
from rescind.ledger.errors import CannotStart, DiskFull
from rescind.ledger.keyfile import FILE, SECRET, SLOT, Head
from rescind.ledger.keyslots import KeySlots, about

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
    with pytest.raises(CannotStart, match="holds no keys of this service"):
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
    with pytest.raises(CannotStart, match=f"newer.* cp {two} {one}"):
        KeySlots(one, mirror=two)


def test_keys_of_two_services_are_never_written_over_each_other(tmp_path: Path) -> None:
    files = [tmp_path / "used more.bin", tmp_path / "used less.bin"]
    for file, batches in zip(files, (9, 1), strict=True):
        keys = KeySlots(file)
        keys.new()
        keys.write_head(Head(batches, batches, b"a" * 32))
        keys.sync()
        keys.close()
    before = [file.read_bytes() for file in files]
    for first, second in (files, files[::-1]):
        with pytest.raises(CannotStart, match=r"another service.*Nothing was changed"):
            KeySlots(first, mirror=second)
        for reading in (False, True):  # a file that is no copy of keys is not taken for one
            noise = tmp_path / "noise.bin"
            noise.write_bytes(b"my notes, and nothing else")
            noise.chmod(0o600)
            with pytest.raises(CannotStart, match="holds no keys of this service"):
                KeySlots(first, mirror=noise, reading=reading)
            assert noise.read_bytes() == b"my notes, and nothing else"
    assert [file.read_bytes() for file in files] == before


def test_reading_makes_no_file_and_writes_into_none(tmp_path: Path) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    keys = KeySlots(two)
    slot = keys.new()
    keys.sync()
    keys.close()
    two.write_bytes(two.read_bytes()[:-1] + b"x")  # torn: an opening that writes would mend it
    before = two.read_bytes()
    keys = KeySlots(one, mirror=two, reading=True)
    assert (keys.get(slot.id), keys.copied, keys.torn) == (slot, True, 1)
    with pytest.raises(CannotStart, match="in use"):
        KeySlots(two)
    keys.close()
    assert not one.exists()
    assert two.read_bytes() == before


@pytest.mark.parametrize("copied", ["to the mirror", "from the mirror", "to an old mirror"])
@pytest.mark.parametrize("writes", range(4))
def test_a_copy_that_was_killed_is_made_again(
    tmp_path: Path, copied: str, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    keys = KeySlots(one, mirror=two)
    for batch in range(1, 4):
        keys.new()
        if batch == 2 and copied == "to an old mirror":
            old = two.read_bytes()
        keys.write_head(Head(batch, batch, b"a" * 32))
    keys.sync()
    keys.close()
    whole = one.read_bytes()
    if copied == "to an old mirror":
        two.write_bytes(old)
    else:
        (two if copied == "to the mirror" else one).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _killed_after(writes))
        with suppress(KeyboardInterrupt):
            KeySlots(one, mirror=two).close()
    KeySlots(one, mirror=two).close()
    assert one.read_bytes() == two.read_bytes() == whole


@pytest.mark.parametrize("writes", range(5))
def test_keys_that_go_back_and_are_killed_can_be_opened(
    tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    keys = KeySlots(one, mirror=two)
    for batch in (8, 9):
        keys.write_head(Head(batch, batch, b"a" * 32))
    keys.sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _killed_after(writes))
        with suppress(KeyboardInterrupt):
            keys.restart_head(Head(3, 3, b"a" * 32))
    keys.close()
    keys = KeySlots(one, mirror=two)
    assert keys.head.batch in ((3,) if writes == 4 else (8, 9))
    keys.restart_head(Head(3, 3, b"a" * 32))
    assert keys.head.batch == 3
    keys.close()


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("writes", range(6))
def test_a_set_up_with_a_mirror_that_was_killed_begins_again(
    tmp_path: Path, times: int, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    for _ in range(times):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _killed_after(writes))
            with suppress(KeyboardInterrupt):
                KeySlots(one, mirror=two).close()
    KeySlots(one, mirror=two).close()
    assert one.read_bytes() == two.read_bytes()
    assert len(KeySlots(one, mirror=two)) == 3


def _killed_after(writes: int) -> Callable[..., int]:
    """Return a way to write that is killed after some writes."""
    write, left = os.pwrite, iter(range(writes))

    def killed(*given: Any) -> int:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(*given)

    return killed


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
