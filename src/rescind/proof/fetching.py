"""Fetches the roster of a service and its log, to check them offline (`rescind roster check`)."""

from __future__ import annotations

from pathlib import Path
from urllib.request import Request

from rescind.core.files import make_folder, write_atomically
from rescind.errors import ConfigError, DataError
from rescind.proof import rebuilt
from rescind.proof.log_folder import CHECKPOINT, ENTRIES, ENTRY
from rescind.proof.notes import LARGEST, Checkpoint, opened
from rescind.proof.pulling import sent
from rescind.proof.roster import LINES, LOG, STATED, SUM, Stated
from rescind.proof.sum_hash import BYTES
from rescind.proof.tlog import TILE, tile_path

TRIES = 3
"""How often all is read anew because a roster was made meanwhile."""


def fetch(url: str, folder: Path) -> Stated:
    """Write the public folder of a service's roster; return what it states."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"'{url}' is not the address of a service: http:// or https://.")
    base = url.rstrip("/")
    for _ in range(TRIES):
        said = _get(f"{base}/log/roster/{STATED}", LARGEST)
        stated = Stated.parse(said)
        total = _get(f"{base}/log/roster/{SUM}", BYTES)
        lines = _get(f"{base}/log/roster/{LINES}", BYTES * stated.lines)
        note = _get(f"{base}/log/{CHECKPOINT}", LARGEST)
        entries = _entries(f"{base}/log", opened(note.decode("utf-8", "replace"), ())[0])
        notes = _get(f"{base}/log/roster/{rebuilt.FILE}", LARGEST)
        if _get(f"{base}/log/roster/{STATED}", LARGEST) == said:
            break
    else:
        raise DataError(f"{base} made a new roster each time it was read. Try again later.")
    make_folder(folder / LOG)
    for name, data in ((LINES, lines), (SUM, total), (STATED, said), (rebuilt.FILE, notes)):
        write_atomically(folder / name, data)
    for name, data in ((ENTRIES, entries), (CHECKPOINT, note)):
        write_atomically(folder / LOG / name, data)
    return stated


def _entries(base: str, point: Checkpoint) -> bytes:
    """Return the entries of a log, one after the other."""
    found, size = bytearray(), 2 + ENTRY  # each after its length in two bytes
    for index in range(-(-point.size // TILE)):
        width = min(TILE, point.size - TILE * index)
        data = _get(f"{base}/{tile_path('entries', index, width)}", LARGEST)
        if len(data) != width * size:
            raise DataError(f"the entries at {base} are not those that its checkpoint signs.")
        for at in range(0, len(data), size):
            found += data[at + 2 : at + size]
    return bytes(found)


def _get(url: str, most: int) -> bytes:
    return sent(Request(url), most)
