"""Put requests into the ledger: from words, from a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rescind.data.importing import imported_names
from rescind.errors import ConfigError, DataError, RescindError, suggest
from rescind.home import Ledger, Request
from rescind.home.request import REFUSED
from rescind.requests.words import Words, in_file


def dataset_named(ledger: Ledger, name: str | None) -> str:
    """Return the data that is meant: by name, or the only imported one."""
    known = imported_names()
    if name is None and len(known) == 1:
        return known[0]
    if name is None or not (name in known or ledger.copies(name)):
        raise ConfigError(
            f"name imported data with --data; got {name}. {suggest(name or '', known)}"
        )
    return name


def add_words(
    ledger: Ledger, dataset: str, words: Sequence[Words], audit: str = "none", **options: Any
) -> list[Request]:
    """Write requests down; the same one while it waits stays one."""
    if audit not in ("standard", "full", "none"):
        raise ConfigError(f"--audit is standard, full or none; got '{audit}'.")
    asked = [one.request(dataset, audit, **options) for one in words]
    return [ledger.add(one) for one in asked]


def add_folder(
    ledger: Ledger, dataset: str, folder: Path, audit: str = "none"
) -> tuple[list[Request], list[str]]:
    """Write down the requests of a folder and remove their files; return them, and what is wrong.

    A file that is no request stays: somebody waits for its answer all the same.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Make it, and put requests into it.")
    added, wrong = [], []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != "."):
        try:
            added += add_words(ledger, dataset, [in_file(path)], audit)
            path.unlink()
        except RescindError as error:
            wrong.append(str(error))
    return added, wrong


def mended(request: Request) -> Request:
    """Return a refused request as one that is open again."""
    return replace(request, outcome="") if request.outcome == REFUSED else request
