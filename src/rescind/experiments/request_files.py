"""Read the files of a folder of requests: what each asks, and when its answer is due."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from rescind.core.deadlines import LONGEST, months_after
from rescind.errors import DataError, suggest
from rescind.experiments.forget_run import request_digest
from rescind.experiments.read_request import Kind, NamedRecords, Source

ANSWERED, REFUSED, LOG = "answered", "refused", "log.jsonl"
ABOUT = "about.json"
"""In the folder of an answer: what is known of it, for the operator."""
_SUFFIX = ".json"
_KEYS = ("withdraw", "erase", "received", "due")
_EXAMPLE = '{"withdraw": "7"} or {"erase": {"user": "7", "items": ["50"]}}'
_CURLY = "\u201c\u201d\u201e\u00ab\u00bb"
Times = tuple[datetime, datetime]
"""When a request came, and when it is due."""


@dataclass(frozen=True)
class Waiting:
    """A file in the queue, readable or not: somebody waits for its answer."""

    path: Path
    received: datetime
    due: datetime
    guessed: tuple[str, ...] = field(default=(), kw_only=True)
    """Which of "received" and "due" cannot be read in a file that is wrong. The file's date stands
    in for them, and the true days may be earlier."""
    to_come: bool = field(default=False, kw_only=True)
    """Whether "received" can be read, but has not come yet."""

    @property
    def name(self) -> str:
        return name_of(self.path)


@dataclass(frozen=True)
class Unreadable(Waiting):
    """A file that holds no request that can be read. Its clock runs all the same."""

    why: str


@dataclass(frozen=True)
class Asked(Waiting):
    """A request in the queue."""

    kind: Kind
    source: Source

    @property
    def digest(self) -> str:
        """Return a digest under a secret, by which runs know the request."""
        return request_digest(self.kind, self.source)

    @property
    def user(self) -> str:
        """Return the original id of the user."""
        return self.source.user if isinstance(self.source, NamedRecords) else self.source

    @property
    def items(self) -> tuple[str, ...] | None:
        """Return the original ids of the items, None for all that the user has."""
        return self.source.items if isinstance(self.source, NamedRecords) else None


def name_of(path: Path) -> str:
    """Return the name of a request: that of its file, without .json."""
    return path.name.removesuffix(_SUFFIX)


def note_about(folder: Path, path: Path) -> Path:
    """Return where it is noted why the request in a file was refused."""
    return folder / REFUSED / f"{name_of(path)}{_SUFFIX}"


def has_file(folder: Path, note: Path) -> bool:
    """Return whether the file that a note is about is still there."""
    return (folder / note.name).exists() or (folder / name_of(note)).exists()


def read_all(folder: Path, now: datetime) -> tuple[list[Asked], list[Unreadable]]:
    """Read every file of a folder but those that the queue writes and what is being copied.

    A request under a wrong name is a request: if it were skipped, its deadline would pass unseen.
    """
    _check_not_above(folder)
    _check_not_another(folder)
    asked, wrong = [], []
    for path in _put_into(folder):
        table: Any = None
        try:
            table = _json(path)
            asked.append(_read(path, table, now))
        except DataError as error:
            times, guessed, to_come = _times_of(path, table, now)
            wrong.append(Unreadable(path, *times, str(error), guessed=guessed, to_come=to_come))
    return asked, wrong


def _put_into(folder: Path) -> list[Path]:
    """Return what somebody put into a folder of requests."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name not in (ANSWERED, REFUSED, LOG)
        and (path.suffix == _SUFFIX or not path.name.startswith("."))
    ]


def _check_not_above(folder: Path) -> None:
    """Refuse the folder above one of requests: nothing in it is a request."""
    inside, used = folder / "requests", (folder / ANSWERED).exists()
    if inside.is_dir() and not used and not any(folder.glob(f"*{_SUFFIX}")):
        raise DataError(
            f"{folder} has no requests (files NAME.json), but a folder {inside}. Give that one; "
            f"nothing was done."
        )


def _check_not_another(folder: Path) -> None:
    """Refuse a folder of other things, in which no request was ever: not a note about each.

    A single other thing may be somebody's letter, and a request may have a wrong name.
    """
    found = _put_into(folder)
    used = any((folder / name).exists() for name in (ANSWERED, REFUSED, LOG))
    if used or len(found) < 2 or any(map(_asks, found)):
        return
    if not _is_of_answers(folder) and any(path.suffix == _SUFFIX for path in found):
        return
    names = ", ".join(path.name for path in found[:3])
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    raise DataError(
        f"{folder} does not look like a folder of requests: nothing in it asks for anything, there "
        f"are {names}{more}. Name the folder of the requests. If these are requests, write "
        f"each as a file NAME.json: {_EXAMPLE}. Nothing was done."
    )


def _is_of_answers(folder: Path) -> bool:
    """Return whether a folder has receipts or what belongs to them, as an officer keeps them."""
    own = ("receipt*.json", ABOUT, "*.key", "*.tlog-proof", "*.request.json")
    return any(any(folder.glob(one)) for one in own)


def _asks(path: Path) -> bool:
    """Return whether a file of any name holds a request, or what was meant as one."""
    try:
        table = _json(path)
    except DataError:
        return False
    return isinstance(table, dict) and bool({*table} & {*_KEYS})


def _json(path: Path) -> Any:
    if path.is_dir():
        raise DataError(
            f"{path} is a folder, not a file of a request. If it holds requests, move their files "
            f"to {path.parent}. Then move the folder elsewhere."
        )
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows put a mark at the start
        return json.loads(text, object_pairs_hook=_once)
    except _TwiceError as twice:
        raise DataError(
            f"{path}: '{twice}' stands there twice, and only one of them would count. Write a file "
            f"for each user, the items of one in one list, and each word once: {_EXAMPLE}."
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text. Save it as UTF-8. Write {_EXAMPLE}.") from None
    except OSError as error:
        told = error.strerror or error
        raise DataError(f"{path} cannot be read: {told}. Allow it, or move it elsewhere.") from None
    except (ValueError, RecursionError) as error:
        curly = any(quote in text for quote in _CURLY)
        why = "it has curly quotes, as text programs write them" if curly else error
        move = "" if path.suffix == _SUFFIX else " If it is no request, move it elsewhere."
        raise DataError(f"{path} is not JSON ({why}). Write {_EXAMPLE}.{move}") from None


class _TwiceError(Exception):
    """A word stands twice in an object: the first one would be lost without a trace."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON in which each word stands once."""
    found: dict[str, Any] = {}
    for word, value in pairs:
        if word in found:
            raise _TwiceError(word)
        found[word] = value
    return found


def _read(path: Path, table: Any, now: datetime) -> Asked:
    """Read a request; raise `DataError` with what it must hold."""
    if path.suffix != _SUFFIX:
        raise DataError(f"{path}: the name of a request ends in .json. Rename it, or move it away.")
    if not isinstance(table, dict):
        raise DataError(f"{path} is no request. Write {_EXAMPLE}.")
    if "unshare" in table:
        raise DataError(
            f"{path}: unshare is not answered in a folder. Give rescind forget RUN --unshare FILE, "
            f"then delete this file."
        )
    _check_words(path, table, _KEYS)
    kinds = [kind for kind in ("withdraw", "erase") if kind in table]
    if len(kinds) != 1:
        raise DataError(f"{path} must have one of withdraw and erase. Write {_EXAMPLE}.")
    if kinds == ["withdraw"]:
        kind: Kind = "withdraw"
        source: Source = _one_id(path, table["withdraw"])
    else:
        kind, source = "erase", _records(path, table["erase"])
    return Asked(path, *_times(path, table, now), kind, source)


def _times(path: Path, table: dict[str, Any], now: datetime) -> Times:
    """Return when a request came and is due, if that can be."""
    received, due = _received(path, table, now), _due(path, table)
    if received is not None and due is not None and due < received:
        raise DataError(
            f"{path}: due '{table['due']}' is before received '{table['received']}'. Write a later "
            f"day (the year?), or leave due out: one month after received."
        )
    since, until = _deadline(path, received, due)
    if _is_too_late(since, until):
        of_file = f"the day of the file, {since:%Y-%m-%d}"
        came = of_file if received is None else f"received '{table['received']}'"
        raise DataError(
            f"{path}: due '{table['due']}' is more than three months after {came}. Write "
            f"{months_after(_counted_from(since), LONGEST):%Y-%m-%d} or an earlier day (is the "
            f"year right?), or leave due out: one month after received. The law gives three months "
            f"at most (GDPR Art. 12(3))."
        )
    return since, until


def _records(path: Path, given: Any) -> NamedRecords:
    if isinstance(given, dict):
        _check_words(path, given, ("user", "items"))
        if given.get("user") and given.get("items") and isinstance(given["items"], list):
            items = tuple(_quoted(path, item) for item in given["items"])
            return NamedRecords(_one_id(path, given["user"]), items)
    raise DataError(
        f"{path}: erase needs a user and a list of items. Write {_EXAMPLE}. For all records of a "
        f'user write {{"withdraw": "7"}}, which also notes that they withdrew.'
    )


def _one_id(path: Path, given: Any) -> str:
    """Return the original id of one user: each gets a receipt of their own."""
    if isinstance(given, list | dict):
        raise DataError(f"{path} names {len(given)} users. Write a file for each: {_EXAMPLE}.")
    return _quoted(path, given)


def _quoted(path: Path, given: Any) -> str:
    """Return an id that is a text: a number has lost its leading zeros, and 0815 is not 815."""
    if not isinstance(given, str):
        told = f"{path}: the id {json.dumps(given)[:40]} is not in quotes"
        raise DataError(f"{told}, and may have lost leading zeros. Write {_EXAMPLE}.")
    return given


def _check_words(path: Path, given: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for word in given:
        if word not in allowed:
            raise DataError(f"{path}: unknown word '{word}'; {suggest(word, allowed)}")


def _deadline(path: Path, received: datetime | None, due: datetime | None) -> Times:
    """Return when a request came and is due; without words of its own, by the file's time."""
    since = received or datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return since, due or _end_of(months_after(_counted_from(since), 1))


def _times_of(path: Path, table: Any, now: datetime) -> tuple[Times, tuple[str, ...], bool]:
    """Return both for a file that is wrong: of what can be read in it, else by the file's time.

    Also which of them cannot be read (one date is enough for the deadline), and whether that is
    because "received" has not come yet.
    """
    given = table if isinstance(table, dict) else {}
    received, due, to_come = None, None, False
    try:
        received = _received(path, given, now)
    except DataError as error:
        to_come = isinstance(error, _ToComeError)
    with suppress(DataError):
        due = _due(path, given)
    since, until = _deadline(path, received, due)
    if _is_too_late(since, until):
        due = None
        since, until = _deadline(path, received, due)
    came = () if received is not None else ("received",)
    guessed = came if received is not None or due is not None else (*came, "due")
    return (since, until), guessed, to_come


def _is_too_late(received: datetime, due: datetime) -> bool:
    return due.astimezone(UTC).date() > months_after(_counted_from(received), LONGEST)


class _ToComeError(DataError):
    """A request names a time of its arrival that has not come yet."""


def _received(path: Path, table: dict[str, Any], now: datetime) -> datetime | None:
    """Return the day that a request names as that of its arrival; it is not to come."""
    found = _date(path, text := table.get("received"))
    today = max(now.astimezone(UTC).date(), now.astimezone().date())  # where the machine is
    hour = found is not None and found.timetz() != time(tzinfo=UTC)
    latest = now + timedelta(hours=1 if hour else 24)  # clocks differ, and a day has no hour
    if found is None or (_counted_from(found) <= today and found <= latest):
        return found
    late = "its deadline would be too late"
    if not hour:
        raise _ToComeError(
            f"{path}: received '{text}' is after today ({today}), and {late}. Write the day on "
            f"which the request came."
        )
    raise _ToComeError(
        f"{path}: received '{text}' has not come yet: it is {_in_utc(found)}, now it is "
        f"{_in_utc(now)}, and {late}. Write when the request came (is its time zone right?)."
    )


def _in_utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _due(path: Path, table: dict[str, Any]) -> datetime | None:
    """Return when a request says it is due: with the end of a day, unless an hour is named."""
    found = _date(path, text := table.get("due"))
    if found is not None:
        with suppress(ValueError):
            return _end_of(date.fromisoformat(str(text)))
    return found


def _end_of(day: date) -> datetime:
    """Return the end of a day in UTC: a period ends with the last hour of its last day."""
    return datetime.combine(day, time.max, UTC)


def _counted_from(received: datetime) -> date:
    """Return the day from which a period counts: with an hour of elsewhere, the earlier one."""
    return min(received.date(), received.astimezone(UTC).date())


def _date(path: Path, text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise DataError(
            f"{path}: '{text}' is not a date. Write year-month-day, such as 2026-11-30."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
