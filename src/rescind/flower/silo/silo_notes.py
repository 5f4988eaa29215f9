"""The notes in a silo's folder, `silo.json`. Needs no Flower: whoever has one machine asks, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rescind.errors import DataError

FILE = "silo.json"


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the facts in silo.json; none if there is no such file."""
    path = folder / FILE
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Remove the folder to start the silo again."
        ) from None


def is_silo(folder: Path) -> bool:
    """Return whether a folder is that of a silo."""
    return "recipe" in read_notes(folder)
