"""The roster: one hashed line per part of a sum, so that strangers can add the lines up.

A public folder holds

    roster.bin      the lines that count, 8 KB each
    sum.bin         what they must add up to, 8 KB
    release.json    what the operator states about them, and which release they are of
    log/            the log that names them

The log has an entry for each line that was added and for each that was revoked. So the lines that
count follow from the log. Whoever checks it with a witness's key finds a line that was left out,
kept or put in since that witness signed. Nothing here needs data or tells whose line is whose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.files import make_folder, write_atomically
from rescind.errors import ConfigError, DataError
from rescind.proof.log_folder import (
    CHECKPOINT,
    ENTRIES,
    LINE,
    RELEASE,
    REVOKED,
    ROSTER,
    LogFolder,
    entry_of,
    saw,
)
from rescind.proof.notes import Key
from rescind.proof.sum_hash import BYTES, LENGTH, Hash, line_of

LINES, SUM, STATED, LOG = "roster.bin", "sum.bin", "release.json", "log"
FORMAT = 2
MOST = 1 << 48
"""More lines and items than any roster has."""
PER_ITEM = "sum_has_people_per_item"
"""In the file of a person: whether the sum also has the number of people of each item."""


@dataclass(frozen=True)
class Stated:
    """What the operator states about the lines of one release. The log has its digest."""

    number: int
    """How many rosters the log has, with this one."""
    lines: int
    items: int
    sum: str
    """SHA-256 of sum.bin, which commits to the sum."""
    weights: str
    """Digest of the weights: of a service's release file; of a run, under a key that whoever may
    rebuild them gets."""
    time: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Of a service: what the release's own entry in the log states. Of a run: nothing."""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the bytes that the log has the digest of."""
        return (json.dumps(asdict(self), sort_keys=True, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Stated:
        """Read the bytes, or raise `DataError`."""
        kinds = {one.name: str(one.type).partition("[")[0] for one in fields(cls)}
        try:
            table: dict[str, Any] = json.loads(data.decode("utf-8"))
            given = {k: type(v).__name__ for k, v in table.items()} if type(table) is dict else {}
            good = given == kinds
            found = cls(**table) if good else None
        except (ValueError, RecursionError):
            found = None
        right = found is not None and found.to_bytes() == data and found.format == FORMAT
        if not (found and right and all(0 <= n < MOST for n in (found.lines, found.items))):
            raise DataError(f"{STATED} is not a release of format {FORMAT}, or was rewritten.")
        return found


@dataclass(frozen=True)
class Part:
    """What one person adds to one sum: the weight, for every pair of the items."""

    client: int
    block: int
    weight: int
    items: NDArray[np.int64]

    def line(self, seed: bytes, counted: bool) -> bytes:
        """Return its line, hidden by a seed. counted: the sum also counts people per item"""
        return to_bytes(line_of(self.items, self.weight, self.block, seed, counted))


@dataclass(frozen=True)
class Public:
    """The files of a public folder."""

    lines: bytes
    total: bytes
    stated: bytes
    log: LogFolder

    @classmethod
    def read(cls, folder: Path) -> Public:
        """Read a public folder, or raise `DataError`; `ConfigError` if it is none at all."""
        files = [folder / name for name in (LINES, SUM, STATED)]
        try:
            lines, total, stated = (path.read_bytes() for path in files)
        except OSError as error:
            # Nothing of a roster there: another folder was meant. A part is the operator's fault.
            kind = DataError if any(path.exists() for path in files) else ConfigError
            raise kind(f"{folder} holds no roster ({error.filename}: {error.strerror}).") from None
        return cls(lines, total, stated, LogFolder(folder / LOG))

    def write(self, folder: Path) -> None:
        """Write the folder. The log comes last: whoever reads meanwhile sees a difference."""
        make_folder(folder / LOG)
        for name, data in ((LINES, self.lines), (SUM, self.total), (STATED, self.stated)):
            write_atomically(folder / name, data)
        _copy(self.log, folder / LOG)

    def show(self, log: LogFolder) -> None:
        """Bring the log of this folder up to date, with what witnesses signed since it was written.

        log: the operator's own, which must continue the one shown here
        """
        shown = self.log.checkpoint
        if log.checkpoint.origin != shown.origin or log.tree_root(shown.size) != shown.root:
            raise DataError(f"{self.log.folder} shows another log than {log.folder}.")
        _copy(log, self.log.folder)


def _copy(log: LogFolder, folder: Path) -> None:
    for name in (ENTRIES, CHECKPOINT):
        write_atomically(folder / name, (log.folder / name).read_bytes())


def digest(line: bytes) -> str:
    return sha256(line).hexdigest()


def added_up(lines: bytes) -> bytes:
    """Return the sum of lines, modulo 2**64 in each entry."""
    table = np.frombuffer(lines, "<u8").reshape(-1, LENGTH)
    return to_bytes(table.sum(0, dtype=np.uint64))


def to_bytes(one: Hash) -> bytes:
    """Return a line or a sum as it is published: 1,024 numbers of 8 bytes, lowest byte first."""
    return one.astype("<u8").tobytes()


def split(lines: bytes) -> list[bytes]:
    """Return the single lines of a roster."""
    if len(lines) % BYTES:
        raise DataError(f"{LINES} has {len(lines)} bytes, which is not a multiple of {BYTES}.")
    return [lines[at : at + BYTES] for at in range(0, len(lines), BYTES)]


def live(entries: Sequence[bytes]) -> set[bytes]:
    """Return the digests of lines that were added and not revoked, by these entries of a log."""
    added = {entry[1:] for entry in entries if entry[0] == LINE}
    return added - {entry[1:] for entry in entries if entry[0] == REVOKED}


def check(
    public: Public, log: Key, witnesses: Sequence[Key] = (), since: str | None = None
) -> list[str]:
    """Return what holds, in sentences; raise `DataError` with the first thing that does not.

    Needs no data: the public folder and keys only.
    """
    seen = public.log.check(log, witnesses, since)
    names = saw(seen)
    size = public.log.checkpoint.size
    by = f"is cosigned by {names}" if names else "no witness was named, so none was checked"
    told = [f"the log {log.name} has {size:,} entries and {by}"]
    stated = Stated.parse(public.stated)
    every = public.log.entries[:size]
    rosters = [n for n, one in enumerate(every) if one[0] == ROSTER]
    if not rosters or every[rosters[-1]] != entry_of(ROSTER, public.stated):
        raise DataError("the stated roster is not the newest one in the log.")
    told += _of_release(stated, every, rosters[-1])
    counts = live(every[: rosters[-1]])
    lines = split(public.lines)
    given = {sha256(line).digest() for line in lines}
    if len(given) != len(lines):
        raise DataError("a line stands in the roster twice.")
    if kept := given - counts:
        raise DataError(
            f"{len(kept)} of {len(lines)} lines were revoked, or never added: {_some(kept)}."
        )
    if missing := counts - given:
        raise DataError(f"{len(missing)} lines that the log added are missing: {_some(missing)}.")
    if stated.number != len(rosters):
        raise DataError(f"it states to be roster {stated.number}; the log has {len(rosters)}.")
    if stated.lines != len(lines):
        raise DataError(f"the release states {stated.lines} lines, the roster has {len(lines)}.")
    told.append(f"the {len(lines):,} lines are those that the log has added and has not revoked")
    if len(public.total) != BYTES or stated.sum != digest(public.total):
        raise DataError(f"{SUM} is not the sum that the release states.")
    if added_up(public.lines) != public.total:
        raise DataError("the lines do not add up to the published sum.")
    told.append("they add up to the published sum")
    return told


def release_entry(facts: Mapping[str, Any]) -> bytes:
    """Return the log entry of a service's release: type and the digest of its public facts."""
    return entry_of(RELEASE, json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())


def _of_release(stated: Stated, every: Sequence[bytes], place: int) -> list[str]:
    """Say which release of a service the roster is of, and whether there is a newer one."""
    if not stated.facts:
        return []
    own = release_entry(stated.facts)
    if own not in every[:place] or stated.facts.get("weights") != stated.weights:
        raise DataError("the release of the roster is not in the log, or has other weights.")
    newer = sum(one[0] == RELEASE for one in every[every.index(own) + 1 :])
    return [
        f"it is of release {stated.facts.get('number')}, whose weights have the digest "
        f"{stated.weights}" + (f"; {newer} newer ones have no roster yet" if newer else "")
    ]


def _some(digests: set[bytes]) -> str:
    names = sorted(one.hex()[:16] for one in digests)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def history(log: LogFolder, line: str) -> str:
    """Return what the log says about a line: added where, revoked where."""
    try:
        raw = bytes.fromhex(line)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise DataError(f"'{line[:70]}' is not a line's digest: expected 64 hexadecimal digits.")
    signed = log.entries[: log.checkpoint.size]
    place = {one: n for n, one in enumerate(signed)}
    added, gone = place.get(bytes([LINE]) + raw), place.get(bytes([REVOKED]) + raw)
    if added is None:
        return "the log never added this line"
    if gone is None:
        return f"added as {_entry(added)} and counted since"
    return f"added as {_entry(added)}, revoked as {_entry(gone)}"


def _entry(index: int) -> str:
    """Return the place of an entry as `rescind verify` tells it, with what `log list` shows."""
    return f"entry {index + 1:,} (index {index:,})"


def own_line(told: Mapping[str, Any]) -> str:
    """Return the digest of a line, made from what a person was given."""
    try:
        part = Part(0, int(told["block"]), int(told["weight"]), np.array(told["items"], np.int64))
        return digest(part.line(bytes.fromhex(told["seed"]), bool(told[PER_ITEM])))
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"this is not a line as rescind roster mine writes it ({error}).") from None
