"""Find the receipts below a folder, by what is in the files: copies have names of all kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from rescind.errors import DataError
from rescind.receipts.receipt import LARGEST, Receipt

_WORDS = {field.name for field in fields(Receipt)}


class Found(NamedTuple):
    """What the .json files below a folder are. Whatever is neither, is something else."""

    receipts: dict[str, bytes]
    """By name: files that look like receipts, or are named so."""
    unclear: list[str]
    """Files of other names that cannot be read as JSON, or are larger than any receipt."""


def receipts_below(folder: Path) -> Found:
    """Return the receipts below a folder: also changed ones, which verify as NOT VALID."""
    found = Found({}, [])
    for path in _json_files(folder):
        name, data = str(path.relative_to(folder)), _start_of(path)
        looks = None if data is None else _looks_like_one(data)
        if data is not None and (looks or _is_named_so(path)):
            found.receipts[name] = data
        elif looks is None:
            found.unclear.append(name)
    return found


def _json_files(folder: Path) -> Iterator[Path]:
    files = (path for path in folder.rglob("*") if path.suffix.lower() == ".json")
    yield from sorted(path for path in files if path.is_file())


def _start_of(path: Path) -> bytes | None:
    """Return as much of a file as tells that it is too long; None if it may not be read."""
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        if not _is_named_so(path):
            return None
        why = error.strerror or error
        raise DataError(f"cannot read {path}: {why}. Make it readable, or move it away.") from None


def _looks_like_one(data: bytes) -> bool | None:
    """Return whether it has most words of a receipt; None if it cannot be read."""
    if len(data) > LARGEST:
        return None
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return isinstance(table, dict) and len(_WORDS & table.keys()) > len(_WORDS) / 2


def _is_named_so(path: Path) -> bool:
    return "receipt" in path.name
