"""The file of result lines next to a recipe. A line is added whole, once, and under a lock."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from rescind.core import files
from rescind.errors import DataError

ALONE = "answered_alone"
"""In a line: whether the run left out what a request to it alone removed."""
_KEYS: dict[str, type] = {"cell": str, "seed": int, "digest": str, "test": dict}


def only_numbers(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values without those that nobody could be measured by: strict JSON has no NaN."""
    return {name: value for name, value in values.items() if not math.isnan(value)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results, oldest first; none if it is not there."""
    out = []
    try:
        written = path.read_text(encoding="utf-8") if path.is_file() else ""
    except ValueError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}. Restore it from a copy.") from None
    for number, text in enumerate(written.splitlines(), 1):
        hint = "Remove the line; `rescind run --record` adds it again."
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            where = f"{path}:{number}:{getattr(error, 'colno', 1)}"
            raise DataError(f"{where}: not a line of JSON. {hint}") from None
        if not _is_result(line):
            needed = ", ".join(_KEYS)
            raise DataError(f"{path}:{number}: not a result ({needed} are needed). {hint}")
        out.append(line)
    return out


def _is_result(line: Any) -> bool:
    if not isinstance(line, dict) or any(not isinstance(line.get(k), t) for k, t in _KEYS.items()):
        return False
    settings = line.get("settings", {})
    return isinstance(settings, dict) and all(isinstance(v, dict) for v in settings.values())


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file of results, if it is not there yet.

    It is safe to repeat for a finished run: a kill between run.json and the line loses nothing and
    adds nothing twice. The file is locked because other seeds may finish at the same time.
    """
    new = not path.exists()
    try:
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            if not _is_newest(line, _whole_lines(file)):
                _write_line(file, json.dumps(line).encode() + b"\n")
        if new:
            files.sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            f"cannot add the result to {path}: {error.strerror or error}. Give --resume later."
        ) from None


def _whole_lines(file: FileIO) -> list[bytes]:
    """Return the existing lines, and remove a last one that was not written completely."""
    file.seek(0)
    text = file.readall()
    *known, rest = text.split(b"\n")
    if rest and _parsed(rest) is None:
        file.truncate(len(text) - len(rest))
    elif rest:  # complete, but an editor removed the end of line
        _write_line(file, b"\n")
        known.append(rest)
    return known


def _is_newest(line: dict[str, Any], known: Sequence[bytes]) -> bool:
    """Return whether the newest line of this cell and seed is of the same run.

    An older one does not count: runs may take less than a second, and the third may find what the
    first did. Of two in one second, what they found, an edit of a method's file, or a request that
    was answered between them tells them apart.
    """
    names = ("test", "digest", "data", "date", "seconds", "versions", ALONE)
    found = (one for one in map(_parsed, reversed(known)) if one is not None)
    newest = next((o for o in found if (o.get("cell"), o.get("seed")) == _of(line)), None)
    return newest is not None and all(newest.get(n) == line.get(n) for n in names)


def _of(line: dict[str, Any]) -> tuple[Any, Any]:
    return line["cell"], line["seed"]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _write_line(file: FileIO, data: bytes) -> None:
    """Append and sync. If the disk fills up, no partial line is left."""
    size = file.seek(0, os.SEEK_END)
    try:
        if (file.write(data) or 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(size)
        raise
