"""The file of result lines beside a recipe: appended whole, locked, and never twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

from rescind.core import files
from rescind.errors import DataError


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file of results, unless it is there.

    So it can be done again by whoever finds a finished run: a kill between run.json and the line
    loses nothing and doubles nothing. The file is locked, since other seeds may end now, too.
    """
    new = not path.exists()
    try:
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            known = _whole_lines(file)
            if not any(_same_run(line, text) for text in known):
                _write_line(file, json.dumps(line).encode() + b"\n")
        if new:
            files.sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            f"cannot add the result to {path}: {error.strerror or error}. The run itself is "
            f"safe: make room and give the same command with --resume."
        ) from None


def _whole_lines(file: FileIO) -> list[bytes]:
    """The lines that are there; a last one that was cut off in the writing is removed."""
    file.seek(0)
    text = file.readall()
    *known, rest = text.split(b"\n")
    if rest and _parsed(rest) is None:
        file.truncate(len(text) - len(rest))
    elif rest:  # whole, but somebody's editor left the end of the line away
        _write_line(file, b"\n")
        known.append(rest)
    return known


def _same_run(line: dict[str, Any], text: bytes) -> bool:
    """Whether a line of the results tells of this very run."""
    other = _parsed(text)
    names = ("cell", "seed", "digest", "data", "date", "seconds")
    return other is not None and all(other.get(n) == line[n] for n in names)


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _write_line(file: FileIO, data: bytes) -> None:
    """Append and sync; a disk that fills up in the middle leaves no half line."""
    size = file.seek(0, os.SEEK_END)
    try:
        if (file.write(data) or 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(size)
        raise
