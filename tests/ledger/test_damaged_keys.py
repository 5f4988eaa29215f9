"""Keys that were cut, zeroed or overwritten: mended from the other copy, or refused."""

from __future__ import annotations

import random  # noqa: TID251  noise in a block; nothing is learnt from it
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgers import done, joined, lent, opened, take_back
from rescind.ledger.backup import back_up
from rescind.ledger.errors import CannotStart
from rescind.ledger.keyfile import FIRST, LOG_KEY, SIGNER, SLOT, Head, keys_in
from rescind.ledger.keyfile import joined as joined_copies
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.options import Options
from rescind.ledger.restore import restore

BLOCK = 4096
PEOPLE = 70
"""Two keys of each fill three blocks."""
NOISE = random.Random(5).randbytes(BLOCK)
Damage = Callable[[bytes], bytes]


def over(block: int, data: bytes) -> Damage:
    """Return a damage that writes a block over."""
    return lambda keys: keys[: BLOCK * block] + data + keys[BLOCK * (block + 1) :]


HARM: dict[str, Damage] = {
    "cut to 1,000 bytes": lambda keys: keys[:1000],
    "cut to one slot": lambda keys: keys[:SLOT],
    "block of zeros": over(1, bytes(BLOCK)),
    "first block of zeros": over(0, bytes(BLOCK)),
    "block of noise": over(1, NOISE),
    "first block of noise": over(0, NOISE),
    "heads of zeros": lambda keys: keys[:SLOT] + bytes(2 * SLOT) + keys[3 * SLOT :],
    "all zeros": lambda keys: bytes(len(keys)),
}
HARMLESS = {"heads of zeros"}
"""What loses no key."""
Case = tuple[Path, Path, list[bytes]]


@pytest.fixture(scope="module", params=["killed", "stopped"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A folder with a state and its mirror, as a kill or a stop leaves them."""
    folder = tmp_path_factory.mktemp("lived")
    ledger = opened(folder / "state", keys_mirror=folder / "mirror.bin")
    people = [joined(ledger, n % 20, (n + 1) % 20) for n in range(PEOPLE)]
    if request.param == "stopped":
        ledger.close()
    copy = tmp_path_factory.mktemp(request.param) / "copy"
    shutil.copytree(folder, copy)
    ledger.close()
    return copy, people


@pytest.fixture
def case(lived: tuple[Path, list[bytes]], tmp_path: Path) -> Case:
    """The state, its mirror, which is noted in it, and its people."""
    copy, people = lived
    folder = tmp_path / "here"
    shutil.copytree(copy, folder)
    state, mirror = folder / "state", folder / "mirror.bin"
    (state / "keys-mirror.txt").write_text(f"{mirror}\n")
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes()
    return state, mirror, people


def alone(state: Path, mirror: Path) -> None:
    """Take the mirror away, and the note of it."""
    mirror.unlink()
    (state / "keys-mirror.txt").unlink()


def check_opens_all(state: Path, people: list[bytes]) -> str:
    """Check that everything opens; return what the start says."""
    ledger = opened(state)
    assert len(ledger.live.loans) == len(people)
    assert [lent(ledger, one) for one in people[:2]] == [[0, 1], [1, 2]]
    done(ledger, take_back(people[0], "erase", 0))
    assert lent(ledger, people[0]) == [1]
    ledger.close()
    return str(ledger.report)


def test_copies_that_are_whole_open_everything(case: Case) -> None:
    state, _, people = case
    assert "damaged" not in check_opens_all(state, people)


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("which", ["keys.bin", "the mirror"])
def test_a_damaged_copy_is_mended_from_the_other(case: Case, harm: str, which: str) -> None:
    state, mirror, people = case
    file = state / "keys.bin" if which == "keys.bin" else mirror
    before = file.read_bytes()
    file.write_bytes(HARM[harm](before))
    if harm == "first block of noise":  # 70 people: the other blocks tell whose keys it holds
        assert keys_in(file.read_bytes())
    said = check_opens_all(state, people)
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes()
    if "block" in harm:
        assert f"{file} was damaged or old: it got " in said
    check = opened(state)
    assert "damaged" not in str(check.report), "control: mended"
    check.close()


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_file_without_a_mirror_is_refused_and_nothing_is_lost(
    case: Case, harm: str
) -> None:
    state, mirror, people = case
    alone(state, mirror)
    whole = (state / "keys.bin").read_bytes()
    bad = HARM[harm](whole)
    (state / "keys.bin").write_bytes(bad)
    if harm not in HARMLESS:
        for _ in range(2):
            with pytest.raises(CannotStart, match=r"Nothing was (done|changed)"):
                opened(state)
            assert (state / "keys.bin").read_bytes() == bad
        (state / "keys.bin").write_bytes(whole)
    check_opens_all(state, people)


@pytest.mark.parametrize("more", [b"x", NOISE, bytes(BLOCK)])
@pytest.mark.parametrize("mirrored", [True, False])
def test_bytes_after_the_keys_do_no_harm(case: Case, more: bytes, mirrored: bool) -> None:
    state, mirror, people = case
    if not mirrored:
        alone(state, mirror)
    with open(state / "keys.bin", "ab") as file:
        file.write(more)
    check_opens_all(state, people)
    assert not mirrored or (state / "keys.bin").read_bytes() == mirror.read_bytes()


def test_two_copies_that_lost_different_blocks_make_one(case: Case) -> None:
    state, mirror, people = case
    for file, block in ((state / "keys.bin", 0), (mirror, 1)):
        file.write_bytes(over(block, NOISE)(file.read_bytes()))
    said = check_opens_all(state, people)
    assert said.count("was damaged or old") == 2
    assert (state / "keys.bin").read_bytes() == mirror.read_bytes()


def test_two_copies_that_lost_the_same_block_are_refused_until_that_is_accepted(
    case: Case,
) -> None:
    state, mirror, people = case
    whole = mirror.read_bytes()
    files = (state / "keys.bin", mirror)
    for file in files:
        file.write_bytes(over(1, NOISE)(whole))
    bad = mirror.read_bytes()
    with pytest.raises(CannotStart) as refused:
        opened(state)
    assert "64 keys of this ledger cannot be found" in str(refused.value)
    assert f"that of their mirror, {mirror}" in str(refused.value)
    assert all(file.read_bytes() == bad for file in files)
    folder = state.parent
    shutil.copytree(folder, folder.parent / "accepted")
    (folder.parent / "accepted/state/keys-mirror.txt").unlink()
    ledger = opened(folder.parent / "accepted/state", options=Options(accept_lost_keys=True))
    assert 0 < ledger.report.people < PEOPLE, "control: only what the keys opened is dropped"
    ledger.close()
    mirror.write_bytes(whole)
    check_opens_all(state, people)


def test_the_servers_own_keys_are_not_made_anew_unasked(case: Case) -> None:
    state, mirror, people = case
    whole = mirror.read_bytes()
    places = [keys_in(whole)[slot_id] for slot_id in (SIGNER, LOG_KEY)]
    bad = bytearray(whole)
    for place in places:
        bad[SLOT * place : SLOT * (place + 1)] = bytes(SLOT)
    for file in (state / "keys.bin", mirror):
        file.write_bytes(bad)
    with pytest.raises(CannotStart, match="2 keys of this ledger cannot be found"):
        opened(state)
    (state / "keys.bin").write_bytes(whole)
    check_opens_all(state, people)
    for file in (state / "keys.bin", mirror):
        file.write_bytes(bytes(bad))
    ledger = opened(state, options=Options(accept_lost_keys=True))
    assert {SIGNER, LOG_KEY} <= keys_in(mirror.read_bytes()).keys()
    ledger.close()


def test_keys_lost_after_going_back_are_told_from_those_that_were_destroyed(
    tmp_path: Path,
) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    people = [joined(ledger, n) for n in range(4)]
    back_up(state, backup)
    done(ledger, take_back(people[0], "erase", 0))
    last = ledger.reading.person(people[3]).loans_key
    ledger.close()
    restore(state, backup)
    whole = (state / "keys.bin").read_bytes()
    at = SLOT * keys_in(whole)[last]
    bad = whole[:at] + bytes(SLOT) + whole[at + SLOT :]
    (state / "keys.bin").write_bytes(bad)
    with pytest.raises(CannotStart, match="1 key of this ledger"):
        opened(state)
    (state / "keys.bin").write_bytes(whole)
    ledger = opened(state)
    assert [lent(ledger, one) for one in people] == [[], [1], [2], [3]], "control: as was asked"
    ledger.close()
    opened(state).close()


def test_an_older_copy_gives_only_keys_that_the_ledger_names(tmp_path: Path) -> None:
    files = [tmp_path / "a.bin", tmp_path / "b.bin"]
    keys = KeySlots(*files)
    named, gone = keys.new(), keys.new()
    keys.write_head(Head(1, 1, b"a" * 32))
    keys.sync()
    old = files[1].read_bytes()
    keys.destroy(gone.id)
    keys.destroy(named.id)
    fresh = [keys.new(), keys.new()]  # in their places
    keys.write_head(Head(2, 2, b"b" * 32))
    keys.sync()
    keys.close()
    found = keys_in(joined_copies(files, [files[0].read_bytes(), old], {named.id}).data)
    assert named.id in found, "damaged and needed: the old copy has it"
    assert gone.id not in found
    assert {one.id for one in fresh} <= found.keys()
    assert min(found.values()) >= FIRST
