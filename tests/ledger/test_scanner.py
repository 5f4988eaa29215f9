"""The scanner finds what is planted in every form, says so when it is blind, and sees an end."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabricated import made
from ledgers import done, joined, opened, unmapped_files
from rescind.cli import app
from rescind.errors import ConfigError, DataError
from rescind.ledger import scanner
from rescind.ledger.book import Ledger
from rescind.ledger.canary import story
from rescind.ledger.lending import TakeBack
from rescind.ledger.scanner import Canary, control, scan

TEXT = Canary("text", "canary-Ünïcode-0123".encode())
LOANS = Canary("loans", numbers=(1203, 77, 90211))


def test_every_form_in_every_container_is_found() -> None:
    forms = len(TEXT.forms()) + len(LOANS.forms())
    assert control([TEXT, LOANS], Path.read_bytes) == forms * len(scanner.CONTAINERS)
    assert {
        "bytes",
        "hexadecimal",
        "base64+0",
        "base64+2",
        "utf-16-le",
        "utf-16-be",
        "json",
    } <= (set(TEXT.forms()))
    assert {"4-byte little-endian", "8-byte big-endian"} <= set(LOANS.forms())


def test_a_blind_scanner_is_void(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scanner, "_OPENERS", {})
    with pytest.raises(DataError, match="the scan is void"):
        scan([tmp_path], [TEXT])


def test_page_numbers_of_an_index_are_no_records(tmp_path: Path) -> None:
    """Only in a real index beside its database, and only rows of numbers are left out there."""
    ledger = opened(tmp_path / "state")
    joined(ledger, *range(12))
    row = Canary("items in a row", numbers=tuple(range(1, 9)))
    index = (tmp_path / "state" / "ledger.db-shm").read_bytes()
    assert struct.pack("<8i", *row.numbers) in index, "control: the index has page numbers in a row"
    assert scan([tmp_path], [row]).found == []
    ledger.close()
    (tmp_path / "other-shm").write_bytes(struct.pack("<8i", *row.numbers))
    (tmp_path / "index-shm").write_bytes(index + TEXT.data)
    (tmp_path / "copied").write_bytes(index)
    found = {(Path(one.where).name, one.canary) for one in scan([tmp_path], [row, TEXT]).found}
    assert found == {("other-shm", row.name), ("index-shm", TEXT.name), ("copied", row.name)}


@pytest.mark.parametrize(
    ("numbers", "clear"),
    [
        (range(12), False),
        ((0, 2, 4, 6, 8), False),
        ((0, 1, 2, 5, 6, 7), False),
        ((3, 9, 10, 40), True),
    ],
)
def test_rows_that_a_counter_makes_are_not_looked_for(numbers: list[int], clear: bool) -> None:
    assert scanner.unmistakable(list(numbers)) is clear


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_containers_in_containers_are_opened(tmp_path: Path, depth: int) -> None:
    data = b"before " + TEXT.data + b" after"
    for _ in range(depth):
        data = gzip.compress(data)
    (tmp_path / "deep").write_bytes(data)
    assert {found.form for found in scan([tmp_path], [TEXT]).found} == {"bytes"}


def everybodys(ledger: Ledger) -> str:
    """A generation with a list for everybody who lends, without training it."""
    return made(ledger, sorted(ledger.live.loans))


@pytest.mark.service
def test_the_command_plays_the_life_with_a_generation_that_was_trained(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["scan", str(tmp_path / "life"), "--story"])
    assert told.exit_code == 0, told.output
    assert "MISSED" not in told.output
    for what in ("generation that learnt", "export hands over", "in the backup", "release made"):
        assert what in told.output
    assert "0 found after the person left, old backup included" in told.output


def test_a_life_leaves_nothing_once_it_ended(tmp_path: Path) -> None:
    told = story(tmp_path / "life", learnt=everybodys)
    assert all(told.before.values()), told.before
    assert len(told.before) == 17, told.before
    assert set(told.after.values()) == {0}, told.after
    assert told.holds
    assert list((tmp_path / "life" / "state").glob("release-*.sealed"))
    assert unmapped_files(tmp_path / "life" / "state") == []


def test_without_leaving_everything_is_still_found(tmp_path: Path) -> None:
    """Control: the same story without the end."""
    told = story(tmp_path / "life", forget=False, learnt=everybodys)
    assert not told.holds
    assert all(told.after[what] for what in told.before)
    with pytest.raises(ConfigError, match="not empty"):
        story(tmp_path / "life")


def test_the_command_finds_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "left.txt").write_text("a note about canary-123456")
    found = CliRunner().invoke(app, ["scan", str(tmp_path), "--for", "canary-123456"])
    assert found.exit_code == 1
    assert "left.txt: 'canary-123456' as bytes" in found.output
    none = CliRunner().invoke(app, ["scan", str(tmp_path), "--numbers", "70001,70002,70003"])
    assert none.exit_code == 0
    assert none.output.startswith("0 found")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "nothing to look for"),
        (["--for", "ab"], "too short"),
        (["--numbers", "1,x"], "not a row"),
        (["--story", "--for", "canary"], "plants its own"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(tmp_path: Path, given: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, ["scan", str(tmp_path), *given])
    assert isinstance(ended.exception, ConfigError)
    assert said in str(ended.exception)


def test_backup_and_restore_by_command(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "copy.db"
    ledger = opened(state)
    person = joined(ledger, 1, 2)
    kept = CliRunner().invoke(app, ["backup", str(state), str(backup)])
    assert kept.exit_code == 0, kept.output
    assert "1 person, 1 entry" in kept.output
    done(ledger, TakeBack(person, "erase"))
    ledger.close()
    asked = CliRunner().invoke(app, ["restore", str(state), "--from", str(backup)], input="n\n")
    assert asked.exit_code == 1
    assert "2 loans of 1 person, which changed or left since" in asked.output
    assert "Nothing was changed" in asked.output
    opened(state).close()
    gone = CliRunner().invoke(app, ["restore", str(state), "--from", str(backup), "--yes"])
    assert gone.exit_code == 0, gone.output
    ledger = opened(state)
    assert ledger.live.loans == {}
    ledger.close()


def test_compiled_code_holds_rows_of_numbers_and_no_loans(tmp_path: Path) -> None:
    looked = Canary("a plain row", numbers=(1, 2, 3))
    row = b"".join(n.to_bytes(4, "little") for n in looked.numbers)
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "loop.nbc").write_bytes(row)
    assert scan([tmp_path], [looked]).found == []
    (tmp_path / "compiled" / "loans.bin").write_bytes(row)
    assert scan([tmp_path], [looked]).found, "control: any other file there is looked into"
