"""Find the receipts below a folder, by what is in the files: copies have names of all kinds."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

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
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".json"):
        if not path.is_file():
            continue
        name = str(path.relative_to(folder))
        try:
            with open(path, "rb") as file:
                data = file.read(LARGEST + 1)
            table = json.loads(data) if len(data) <= LARGEST else None
        except (OSError, ValueError, RecursionError) as error:
            if "receipt" in path.name and isinstance(error, OSError):
                raise
            table = None
        if "receipt" in path.name:
            found.receipts[name] = data
        elif table is None:
            found.unclear.append(name)
        elif isinstance(table, dict) and len(_WORDS & table.keys()) > len(_WORDS) / 2:
            found.receipts[name] = data
    return found
