"""Files that are named by their content: the same content is written once, and never changed.

A save writes the files that are not there yet, then a list of all it needs, then removes the files
that no list names. So it costs what changed, and what was forgotten is gone from the folder.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from rescind.core import files
from rescind.errors import DataError

log = logging.getLogger(__name__)

SIZE = 32
"""Bytes of a name; in the folder it is written in hexadecimal."""


def name_of(data: bytes) -> bytes:
    """Return the name of some content: its BLAKE2b digest of 32 bytes, as `b2sum -l 256` has it."""
    return blake2b(data, digest_size=SIZE).digest()


class Store:
    """A folder of files named by their content, for one save or one load."""

    def __init__(self, folder: Path, suffix: str = ".safetensors") -> None:
        self.folder, self._suffix = folder, suffix
        self._there = set(os.listdir(folder)) if folder.is_dir() else set[str]()
        self._needed: set[str] = set()
        self._wrote = False

    def _file(self, name: bytes) -> str:
        return name.hex() + self._suffix

    def has(self, name: bytes) -> bool:
        """Return whether the content is there already; if so, it is kept."""
        file = self._file(name)
        if file in self._there:
            self._needed.add(file)
        return file in self._there

    def put(self, data: bytes) -> bytes:
        """Write some content, unless it is there; return its name."""
        name = name_of(data)
        if not self.has(name):
            file = self._file(name)
            files.write_atomically(self.folder / file, data, private=True, durable=False)
            self._there.add(file)
            self._needed.add(file)
            self._wrote = True
        return name

    def sync(self) -> None:
        """Make what was put survive a power failure."""
        if self._wrote:
            files.sync_folder(self.folder)

    def sweep(self) -> None:
        """Remove all files that were neither put nor found, with what killed processes left."""
        stale = self._there - self._needed
        for file in stale:
            (self.folder / file).unlink(missing_ok=True)
        if stale:
            files.sync_folder(self.folder)
        if not self._needed:
            with suppress(OSError):  # it was never made, or somebody put a file into it
                self.folder.rmdir()

    def get(self, name: bytes) -> bytes:
        """Read some content; raise `DataError` if it is missing or was changed."""
        path = self.folder / self._file(name)
        self._needed.add(path.name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
        if name_of(data) != name:
            raise DataError(
                f"{path} does not match the digest that is its name. Restore it from a copy."
            )
        return data

    def skip(self, name: bytes) -> None:
        """Note that a list names some content, which is not read."""
        self._needed.add(self._file(name))

    @property
    def unread(self) -> int:
        """Return the number of files that no list names: an interrupted save left them."""
        return len(self._there - self._needed)


def warn_of(left: int, folder: Path) -> None:
    """Say that a folder has files that no list names."""
    if left:
        log.warning(
            "%s has %d files that no list names: a save was interrupted, and they may hold what it "
            "forgot. Save into it again to remove them.", folder, left,
        )  # fmt: skip
