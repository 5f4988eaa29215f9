"""How the requests of a folder stand: which wait, which are refused and why, what is due when."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.core.words import count_of
from rescind.errors import DataError
from rescind.experiments.request_files import (
    ABOUT,
    ANSWERED,
    REFUSED,
    Asked,
    Waiting,
    has_file,
    note_about,
    read_all,
)
from rescind.experiments.request_log import add_to_log
from rescind.privacy.keys import erasure_key

TAKEN = "another request of this name was answered. Give the file another name."


@dataclass(frozen=True)
class Open:
    """A request that nobody has answered yet."""

    request: Waiting
    why: str
    """Why it was refused; "" if it waits."""


def open_requests(folder: Path, now: datetime) -> list[Open]:
    """Return the open requests of a folder, those that are due first. It changes nothing.

    Before them come those whose deadline cannot be read: they may be due earlier than is known.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Name a folder of requests.")
    asked, wrong = read_all(folder, now)
    asked, taken = not_taken(folder, asked)
    found = [Open(one, _noted(folder, one.path)) for one in asked]
    found += [Open(one, TAKEN) for one in taken] + [Open(one, one.why) for one in wrong]
    return sorted(found, key=lambda one: by_deadline(one.request))


def by_deadline(request: Waiting) -> tuple[bool, datetime, str]:
    """Return what open requests are sorted by."""
    return "due" not in request.guessed, request.due, request.name


def due_told(request: Waiting, now: datetime) -> str:
    """Say when a request is due, and how long there is until then."""
    guess = " or earlier (by the file's date)" if "due" in request.guessed else ""
    return f"due {request.due:%Y-%m-%d}{guess}, {time_left(request.due, now)}"


def time_left(due: datetime, now: datetime) -> str:
    """Say how long there is until the end of a deadline, or since when it has passed."""
    days = days_left(due, now)
    if due < now:
        return f"overdue by {count_of(-days, 'day')}" if days else f"overdue since {due:%H:%M %Z}"
    return f"{count_of(days, 'day')} left" if days else "due today"


def days_left(due: datetime, now: datetime) -> int:
    """Return the days until a deadline in UTC: negative if it has passed, 0 on the last day."""
    return (due.astimezone(UTC).date() - now.astimezone(UTC).date()).days


def about_answer(folder: Path, name: str) -> Path:
    """Return where it is noted what is known of the answer to a request."""
    return folder / ANSWERED / name / ABOUT


def read_table(path: Path) -> dict[str, Any]:
    """Read a note that this program wrote."""
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def not_taken(folder: Path, asked: list[Asked]) -> tuple[list[Asked], list[Asked]]:
    """Return the requests to answer, and those whose name another request had.

    Who came back and leaves again asks the same: a later file is another request.
    """
    left, taken = list[Asked](), list[Asked]()
    for one in asked:
        about = read_table(path) if (path := about_answer(folder, one.name)).is_file() else {}
        same = "asked" not in about or about["asked"] == one.digest
        later = "answered" in about and about.get("written") != one.path.stat().st_mtime_ns
        (left if same and not later else taken).append(one)
    return left, taken


def refuse(folder: Path, request: Waiting, why: str) -> str:
    """Note why a request cannot be answered, and when it is due; return its name.

    The log gets one line, until somebody changes the file.
    """
    note, name = note_about(folder, request.path), request.name
    known = read_table(note) if note.is_file() else {}
    due = request.due.isoformat(timespec="seconds")
    told: dict[str, Any] = {"request": name, "due": due, "why": why}
    told["file"], told["key"] = _content(request.path), _mark_of_key()
    if request.guessed:
        told["by_file_date"] = [*request.guessed]
    if told != known:
        write_atomically(note, json.dumps(told, indent=2).encode(), private=True)
    if told["file"] != known.get("file"):
        add_to_log(folder, {"event": "refused", "request": name})  # `why` may name a user
    return name


def _noted(folder: Path, path: Path) -> str:
    """Return why a request was refused, if its file is still the one that was."""
    note = note_about(folder, path)
    known = read_table(note) if note.is_file() else {}
    return str(known["why"]) if known and known.get("file") == _content(path) else ""


def notes_of_another_key(folder: Path) -> int:
    """Return how many refusals were noted with another erasure key, and may stand or not."""
    notes = [
        read_table(note) for note in (folder / REFUSED).glob("*.json") if has_file(folder, note)
    ]
    return sum(note.get("key", _mark_of_key()) != _mark_of_key() for note in notes)


def _mark_of_key() -> str:
    """Return a digest by which the erasure key is known again."""
    return blake2b(b"note of a refusal", key=erasure_key(), digest_size=8).hexdigest()


def _content(path: Path) -> str:
    """Return a keyed digest of a file, by which it is known whether somebody mended it."""
    content = b""
    with suppress(OSError):  # a folder, or it may not be read
        content = path.read_bytes()
    return blake2b(content, key=erasure_key(), digest_size=32).hexdigest()
