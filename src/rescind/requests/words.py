"""The one grammar of a request: options, CSV, JSON and mappings become people and their items."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from rescind.core.claims import one_line
from rescind.errors import ConfigError, DataError
from rescind.home.request import KINDS, Records, Refused, Request, end_of, times_of

EXAMPLE = '{"leave": "7"} or {"erase": {"user": "7", "items": ["50"]}}'
WORDS = ("kind", "user", "items", "received", "due", "case", *KINDS)
GRAPH = ("nodes", "edges", "labels")


@dataclass(frozen=True)
class Words:
    """What somebody wrote, before a ledger knows it."""

    kind: str
    records: Records
    received: datetime | None = None
    due: datetime | None = None
    case: str = ""
    source: str = ""

    def request(self, dataset: str, audit: str = "none", **options: Any) -> Request:
        """Return the request, with the days that count for it."""
        if self.kind == "leave" and len(self.records) > 1:
            raise Refused("together", "who leaves is answered alone: leave --together out.")
        if self.case:
            one_line(self.case, "the case")
        received, due = times_of(self.received, self.due, datetime.now(UTC))
        chosen = {name: value for name, value in options.items() if value}
        return Request(
            "", dataset, self.kind, self.records, received, due, self.case, self.source, audit,
            chosen,
        )  # fmt: skip


def in_options(kind: str, users: Sequence[str], items: Sequence[str] = ()) -> Words:
    """Read options of a command: --kind, --user and --item."""
    if kind not in KINDS:
        raise ConfigError(f"--kind is one of {', '.join(KINDS)}; got '{kind}'.")
    if kind in GRAPH:
        return Words(kind, {"": tuple(items)})
    people = list(dict.fromkeys(users))
    if not people:
        raise ConfigError("name a user: --user ID (an id of your data), or --file FILE.csv.")
    if items and (kind == "leave" or len(people) > 1):
        raise ConfigError("--item goes with one --user and --kind erase or unshare.")
    return Words(kind, {user: tuple(dict.fromkeys(items)) or None for user in people})


def in_table(path: Path, kind: str) -> Words:
    """Read a CSV with the columns user and item, or user alone for everything of each."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip().lower() for name in next(reader, [])]
            rows = [[cell.strip() for cell in row] for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8: {error}.") from None
    if sorted(names) not in (["user"], ["item", "user"]):
        raise DataError(f"{path} needs the header user,item or user; it is '{','.join(names)}'.")
    who, what = names.index("user"), names.index("item") if "item" in names else None
    for number, row in enumerate(rows, 2):
        if len(row) != len(names) or not all(row):  # a damaged line must not erase a whole user
            raise DataError(f"{path}, line {number}: expected {','.join(names)}, each not empty.")
    if not rows:
        raise DataError(f"{path} names nobody: it has no line below its header.")
    pairs = [(row[who], None if what is None else row[what]) for row in rows]
    return Words(kind, _by_user(pairs), source=path.name)


def _by_user(pairs: Iterable[tuple[str, str | None]]) -> Records:
    found: dict[str, tuple[str, ...] | None] = {}
    for user, item in pairs:
        items = found.get(user) or ()
        found[user] = None if item is None else (*(i for i in items if i != item), item)
    return found


def in_file(path: Path) -> Words:
    """Read a JSON file with one request; its name is the case number, unless it has one."""
    if path.suffix != ".json" or path.is_dir():
        raise DataError(f"{path}: a request ends in .json. Rename it, or move it away.")
    try:
        table = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a request in JSON ({error}). Write {EXAMPLE}.") from None
    try:
        words = in_mapping(table, datetime.fromtimestamp(path.stat().st_mtime, UTC))
    except (DataError, Refused) as error:
        error.args = (f"{path}: {error}",)
        raise
    name = path.stem if path.stem.isprintable() else ""
    return Words(
        words.kind, words.records, words.received, words.due, words.case or name, path.name
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON in which each word stands once: of two, one would be lost."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a word stands twice")
    return dict(pairs)


def in_mapping(table: Any, arrived: datetime | None = None) -> Words:
    """Read a request of JSON: {kind, user, items}, or short {"leave": user}.

    arrived: the day it came, if it names none
    """
    if not isinstance(table, dict) or not {*table} <= {*WORDS}:
        raise DataError(f"not a request: {str(table)[:60]}. Write {EXAMPLE}.")
    short = [kind for kind in KINDS if kind in table]
    inner = {name: table[name] for name in ("kind", "user", "items") if name in table}
    kind = inner.pop("kind", None)
    if len(short) == 1 and kind is None and not inner:
        kind, found = short[0], table[short[0]]
        inner = found if isinstance(found, dict) else {"user": found}
    elif short:
        raise DataError(f"a request has one kind of {', '.join(KINDS)}. Write {EXAMPLE}.")
    if not {*inner} <= {"user", "items"}:  # "item" must not erase everything
        raise DataError(f"a request has a user and items, no other word. Write {EXAMPLE}.")
    user, items = inner.get("user"), inner.get("items")
    if kind not in KINDS or not isinstance(user, str) or not user:
        raise DataError(f"a request names one user, in quotes, and a kind. Write {EXAMPLE}.")
    if items is not None and not (
        isinstance(items, list) and items and all(isinstance(one, str) for one in items)
    ):
        raise DataError(f"items are a list of ids in quotes. Write {EXAMPLE}.")
    if items is not None and kind == "leave":
        raise DataError("who leaves goes with everything: leave items out, or write erase.")
    records = {user: None if items is None else tuple(dict.fromkeys(items))}
    received = _day(table.get("received")) or arrived
    due = _day(table.get("due"), at_its_end=True)
    return Words(kind, records, received, due, str(table.get("case", "")))


def _day(text: Any, at_its_end: bool = False) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
        day = date.fromisoformat(str(text)) if len(str(text)) == 10 else None
    except ValueError:
        raise DataError(f"'{text}' is not a date. Write year-month-day: 2026-11-30.") from None
    if at_its_end and day is not None:
        return end_of(day)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def day(text: str | None, at_its_end: bool = False) -> datetime | None:
    """Read a day of an option."""
    return _day(text, at_its_end)
