"""A log in a folder: `entries.bin` grows, `checkpoint` says what was signed last.

An entry is 33 bytes, its type and a digest. All digests are of things that hold a secret key's
work, or random bytes: a stranger cannot test guesses with them. So the log stays public for ever
and still forgets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from rescind.core.files import locked, make_folder, write_atomically
from rescind.errors import ConfigError, DataError
from rescind.proof.notes import Checkpoint, Key, Proof, is_name, opened, signed, vouched
from rescind.proof.tlog import Tree, bundle

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ENTRY = 33
CHANGE, RECEIPT, RELEASE, ROUND, LINE, REVOKED, ROSTER, NAMES = range(1, 9)
KINDS = {
    CHANGE: "change of a loan",
    RECEIPT: "receipt",
    RELEASE: "release",
    ROUND: "round announced",
    LINE: "line of the roster",
    REVOKED: "line revoked",
    ROSTER: "roster stated",
    NAMES: "names of items",
}
"""What an entry may be about, by its first byte."""
ENTRIES, CHECKPOINT = "entries.bin", "checkpoint"
PATIENCE = 5.0
"""Seconds that a command waits for another one."""


def entry_of(kind: int, data: bytes) -> bytes:
    """Return the entry about these bytes: the type and their SHA-256."""
    return bytes([kind]) + sha256(data).digest()


class LogFolder:
    """A log as its folder was when it was opened; `append` adds to both."""

    def __init__(self, folder: Path) -> None:
        """Open a log, or raise `DataError` if its entries are not those it signed."""
        self.folder = folder
        if not (folder / CHECKPOINT).is_file():
            raise ConfigError(f"{folder} holds no log. Begin one: rescind log key --log {folder}.")
        self.note = _read(folder / CHECKPOINT).decode("utf-8", "replace")
        self.checkpoint, _ = opened(self.note, ())
        data = _read(folder / ENTRIES)
        self.entries = [data[at : at + ENTRY] for at in range(0, len(data) - ENTRY + 1, ENTRY)]
        if self.tree_root(self.checkpoint.size) != self.checkpoint.root:
            raise DataError(f"{folder}: its checkpoint signs other entries. Restore the folder.")

    @classmethod
    def make(cls, folder: Path, name: str, private: Ed25519PrivateKey) -> LogFolder:
        """Make an empty log under this name; an existing one is opened."""
        if not (folder / CHECKPOINT).exists():
            if not is_name(name):
                raise ConfigError(f"'{name}' cannot name a log. Write it like example.org/log.")
            if (folder / ENTRIES).exists():
                raise DataError(f"{folder} has entries but no checkpoint. Restore it from a copy.")
            make_folder(folder)
            write_atomically(folder / ENTRIES, b"")
            empty = signed(Checkpoint(name, 0, Tree().root()), private)
            write_atomically(folder / CHECKPOINT, empty.encode())
        return cls(folder)

    @cached_property
    def tree(self) -> Tree:
        """Return the tree of all entries."""
        tree = Tree()
        for entry in self.entries:
            tree.append(entry)
        return tree

    def tree_root(self, size: int) -> bytes | None:
        """Return the root of the first `size` entries, None if there are fewer."""
        return self.tree.root(size) if size <= len(self.entries) else None

    def append(self, new: Sequence[bytes], private: Ed25519PrivateKey) -> list[int]:
        """Append entries and sign a new checkpoint; return their numbers.

        An entry that is in the log already is not added again, so a repeated command does no harm.
        """
        with self._alone():
            self._check_own(private)
            known = {entry: n for n, entry in enumerate(self.entries)}
            more = [entry for entry in dict.fromkeys(new) if entry not in known]
            if any(len(entry) != ENTRY or entry[0] not in KINDS for entry in more):
                raise DataError(f"an entry of the log is {ENTRY} bytes and begins with its type.")
            if more or len(self.entries) > self.checkpoint.size:
                self._write(more)
                self._sign(private)
            known |= {entry: len(self.entries) - len(more) + n for n, entry in enumerate(more)}
        return [known[entry] for entry in new]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the folder, and see what others appended before."""
        with locked(self.folder, PATIENCE):  # another command appends for some milliseconds
            self.__dict__.pop("tree", None)
            LogFolder.__init__(self, self.folder)
            yield

    def _check_own(self, private: Ed25519PrivateKey) -> None:
        own = Key(self.checkpoint.origin, private.public_key().public_bytes_raw())
        if own not in opened(self.note, [own])[1]:
            raise ConfigError(f"{self.folder} was signed by another key. Restore its log.key.")

    def _write(self, more: Sequence[bytes]) -> None:
        # What a killed command left behind is complete entries, which are signed now, and perhaps a
        # piece of one, which is overwritten.
        with open(self.folder / ENTRIES, "r+b") as file:
            file.truncate(ENTRY * len(self.entries))
            file.seek(0, os.SEEK_END)
            file.write(b"".join(more))
            file.flush()
            os.fsync(file.fileno())
        for entry in more:
            self.tree.append(entry)
        self.entries += more

    def _sign(self, private: Ed25519PrivateKey) -> None:
        name, size = self.checkpoint.origin, len(self.entries)
        self.checkpoint = Checkpoint(name, size, self.tree.root())
        self.note = signed(self.checkpoint, private)
        write_atomically(self.folder / CHECKPOINT, self.note.encode())

    def cosigned(self, lines: str, witness: Key) -> int:
        """Keep a witness's line under the checkpoint; return when it signed."""
        with self._alone():
            kept = [
                line
                for line in self.note.splitlines(keepends=True)
                if not line.startswith(f"\u2014 {witness.name} ")
            ]
            note = "".join(kept) + lines
            _, found = opened(note, [witness])
            if witness not in found:
                raise DataError(f"the answer is no signature of {witness.name}. Ask again.")
            self.note = note
            write_atomically(self.folder / CHECKPOINT, note.encode())
        return found[witness]

    def proof(self, entry: bytes) -> Proof:
        """Return the proof that an entry is in the log as it was signed last."""
        signed_ones = self.entries[: self.checkpoint.size]
        if entry not in signed_ones:
            raise DataError(f"the log {self.checkpoint.origin} has no such entry.")
        index = signed_ones.index(entry)
        path = self.tree.inclusion(index, self.checkpoint.size)
        return Proof(index, tuple(path), self.note)

    def check(
        self, log: Key, witnesses: Sequence[Key] = (), since: str | None = None
    ) -> dict[Key, int]:
        """Check who signed, and that the log begins with an earlier checkpoint; return who saw it.

        since: a checkpoint (signed note) that was kept from before
        """
        point, seen = vouched(self.note, log, witnesses)
        if since is not None:
            try:
                before, _ = vouched(since, log)
            except DataError as error:
                raise DataError(f"your checkpoint from before: {error}") from None
            if before.size > point.size:  # an honest older copy and a log that was cut look alike
                raise DataError(
                    f"this copy has {point.size} entries and your checkpoint {before.size}. Fetch "
                    f"it again; if a fresh copy has fewer, the log was cut: keep both."
                )
            if self.tree_root(before.size) != before.root:
                raise DataError(
                    f"TWO HISTORIES: this log signed {before.size} entries that are not the first "
                    f"{before.size} of the {point.size} shown now. Keep both checkpoints."
                )
        return seen

    # -- what is served (service/logged.py) ----------------------------------------------------

    def read_checkpoint(self) -> str:
        """Return the newest signed checkpoint."""
        return self.note

    def tile(self, level: int, index: int, width: int) -> bytes:
        """Return a tile of hashes, or raise `DataError`."""
        return self.tree.tile(level, index, width)

    def entry_bundle(self, index: int, width: int) -> bytes:
        """Return the entries under a tile of level 0, or raise `DataError`."""
        self.tree.tile(0, index, width)
        return bundle(self.entries[256 * index : 256 * index + width])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from None


def saw(seen: Mapping[Key, int]) -> str:
    """Return who saw a log, and when: an old copy stays signed, so the time is for the reader."""
    return ", ".join(f"{key.name} on {at_time(at)}" for key, at in seen.items())


def at_time(seconds: int) -> str:
    """Return the time of a signature (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
