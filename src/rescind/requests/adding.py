"""Put requests into the ledger: from words, from a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.data.importing import imported_names
from rescind.errors import ConfigError, DataError, RescindError, suggest
from rescind.home import Ledger, Refused, Request
from rescind.home.request import REFUSED, UNREAD, times_of
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

    A file that is no request stays, and waits as one that is refused: somebody may have sent it.
    It goes when its file is mended or deleted.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Make it, and put requests into it.")
    added, wrong = list[Request](), list[str]()
    for path in sorted(p for p in folder.iterdir() if p.name[0] != "."):
        try:
            added += add_words(ledger, dataset, [in_file(path)], audit)
            path.unlink()
        except RescindError as error:
            arrived = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            wrong.append(refuse(ledger, dataset, str(path.absolute()), error, arrived).reason)
    for old in ledger.requests(open_only=True):
        if not old.records and Path(old.source).is_absolute() and not Path(old.source).exists():
            ledger.withdraw(old.id)
    return added, wrong


def refuse(
    ledger: Ledger, dataset: str, source: str, error: RescindError, arrived: datetime | None = None
) -> Request:
    """Write down that something came which cannot be read as a request: its time runs."""
    now = datetime.now(UTC)
    received, due = times_of(min(arrived or now, now), None, now)
    case = Path(source).stem if source.isprintable() else ""
    unread = Request("", dataset, UNREAD, {}, received, due, case, source)
    code = error.code if isinstance(error, Refused) else "form"
    return ledger.end(ledger.add(unread), REFUSED, code=code, reason=str(error))
