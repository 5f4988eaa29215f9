"""What a table says about items: a title, and words such as genres, brands or categories."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rescind.data.arrays import Strings
from rescind.data.dataset import Dataset
from rescind.data.import_reading import COLUMN_NAMES, Tell, ignoring
from rescind.data.import_tables import Table
from rescind.data.import_words import column, setting
from rescind.errors import ConfigError, DataError, suggest

FACTS = {
    "title": ("title", "item_title", "item_name", "movie_title", "product_title", "name"),
    "genres": ("genres", "genre", "class", "category", "categories", "brand", "tags"),
}
"""Names of columns about items, in lower case. Several columns of words are joined."""
_ROLES = {
    "time": "times", "rating": "ratings", "split": "split", "title": "titles",
    "genres": "words about items",
}  # fmt: skip
_LIKE_TITLES = ("name", "title")
_LIKE_TIMES = ("time", "date", "stamp", "when", "heard", "seen", "_at", "day")
_LONGEST_TEXT = 1_000
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
"""What a terminal obeys, what ends a line, and what makes text run the other way."""

Facts = dict[str, tuple[str, str]]
"""Title and words of an item, by its original id."""


ELSEWHERE = ","
"""Names no column, and is not empty: then the usual names would count."""


class Asked(NamedTuple):
    """What was asked for of one table."""

    columns: Mapping[str, str]
    """By role. Of titles and words: `ELSEWHERE` if all that was named is in another table."""
    ignore: Collection[str]
    """Columns to leave out; the table has all of them."""
    known: Collection[str] = ()
    """Columns, of any table, that need not be told if nothing is read from them."""


def divided(
    rows: Table, items: Table, columns: Mapping[str, str], ignore: Collection[str]
) -> tuple[Asked, Asked]:
    """Divide what was asked for between a table of rows and one about its items.

    A column of titles or words is read from the table about items if it is there. One to ignore is
    left out of the table of rows if it is there, so that it may differ from one about items.
    """
    of_rows, of_items = dict(columns), dict[str, str]()
    if (name := columns.get("item")) in items.header:
        of_items["item"] = str(name)
        if name not in rows.header:
            del of_rows["item"]
    for role in FACTS:
        if names := names_in(columns.get(role, "")):
            for name in names:
                if name not in rows.header and name not in items.header:
                    raise DataError(
                        f"there is no column '{name}' for the {role} of items. The columns of "
                        f"{rows.file} are {', '.join(rows.header)}; those of {items.file} are "
                        f"{', '.join(items.header)}."
                    )
            there = [name for name in names if name in items.header]
            here = [name for name in names if name not in there]
            of_items[role] = ",".join(there) or ELSEWHERE
            of_rows[role] = ",".join(here) or ELSEWHERE
    for name in ignore:
        if name not in (both := [*rows.header, *items.header]):
            raise ConfigError(f"there is no column '{name}' to ignore; {suggest(name, both)}")
    here = [name for name in ignore if name in rows.header]
    there = [name for name in ignore if name not in rows.header]
    return Asked(of_rows, here, ignore), Asked(of_items, there, ignore)


def names_in(given: str) -> list[str]:
    """Return the names of columns that are separated by commas."""
    return [name.strip() for name in given.split(",") if name.strip()]


def find_facts(
    table: Table, given: Mapping[str, str], ignore: Collection[str] = ()
) -> dict[str, list[int]]:
    """Return the columns of titles and of words. given: names, several separated by commas"""
    ignored, found = ignoring(table.header, ignore), dict[str, list[int]]()
    for role, common in FACTS.items():
        names = names_in(given.get(role, ""))
        for name in names:
            if name not in table.header:
                raise DataError(
                    f"{table.file}: there is no column '{name}' for the {role} of items. The "
                    f"columns are {', '.join(table.header)}."
                )
        places = [n for n, name in enumerate(table.header) if name in names]
        if not given.get(role, "").strip():
            places = [n for n, name in enumerate(table.header) if name.lower() in common]
        if left := [n for n in places if n not in ignored]:
            found[role] = left[:1] if role == "title" else left
    return found


def tell_unused(
    table: Table,
    used: Mapping[str, Collection[int]],
    ignore: Collection[str],
    tell: Tell,
    about_items: bool = False,
) -> None:
    """Tell which columns nothing was read from, and the ways to use one.

    used: the columns of each role; how to give a role that is there is not told
    about_items: whether the table is one about items
    """
    read = {at for places in used.values() for at in places}
    unused = {
        at: name for at, name in enumerate(table.header) if at not in read and name not in ignore
    }
    if not unused:
        return
    shown = [name if name.strip() else f"number {at + 1} (no name)" for at, name in unused.items()]
    where = f" of {table.file}" if about_items else ""
    told = f"not used{where}: column{'s' * (len(shown) > 1)} {', '.join(shown)}."
    if names := [name for name in unused.values() if name.strip()]:
        title, when = (
            next((name for name in names if any(word in name.lower() for word in like)), "COLUMN")
            for like in (_LIKE_TITLES, _LIKE_TIMES)
        )
        ways = {
            "rating": f"ratings with {column('rating')}",
            "time": f"times with {column('time', when)}",
            "title": f"item names with {column('title', title)}",
            "genres": f"words about items with {column('genres')}",
        }
        roles = FACTS if about_items else ways
        free = ", ".join(ways[role] for role in roles if role not in used)
        told += (f" A column is read as {free};" if free else "") + (
            f" {setting('ignore', ['COLUMN'])} says that you know"
        )
    tell(told)


def tell_left_out(
    given: Mapping[str, str], used: Mapping[str, Collection[int]], tell: Tell
) -> None:
    """Tell which roles have no column because the one that was named for them is also ignored."""
    for role, name in given.items():
        if role not in used:
            told = f"{_ROLES[role]}: none. {column(role, name)} names a column"
            tell(f"{told} that {setting('ignore', [name])} leaves out")


def facts_in(
    opened: Callable[[], Table],
    item: int,
    columns: Mapping[str, list[int]],
    tell: Tell | None,
    dropped: Sequence[int] = (),
) -> Facts:
    """Read titles and words of every item; the first that is not empty counts.

    tell: columns that differ between rows of one item are not about items (the title of a review
    is not), so they are left out and told. None: they were named for this, so they count
    dropped: numbers of rows, in order, that are not in the dataset: they say nothing about items
    """
    places = sorted({at for some in columns.values() for at in some})
    texts: dict[int, dict[str, str]] = {at: {} for at in places}
    if not places:
        return {}
    table, differ, every = opened(), dict[int, str](), dict[str, None]()
    for lines, cells in table.batches(sorted({item, *places})):
        kept = _kept(lines, dropped)
        ids = [cells[item][row].strip() for row in kept]
        every |= dict.fromkeys(ids)
        for at in places:
            some = cells[at]
            for one, row in zip(ids, kept, strict=True):
                text = _plain(some[row])
                if text and texts[at].setdefault(one, text) != text:
                    differ[at] = table.header[at]
    if tell is not None:
        for at, name in differ.items():
            texts[at] = {}
            tell(f"column '{name}' differs between rows of one item: not read as a fact about it")
    return {one: tuple(_joined(one, texts, columns.get(r, ())) for r in FACTS) for one in every}  # type: ignore[misc]


def _kept(lines: Sequence[int], dropped: Sequence[int]) -> Sequence[int]:
    """Return the places in a batch of the rows that were not dropped."""
    if not lines or not dropped:
        return range(len(lines))
    out = {*dropped[bisect_left(dropped, lines[0]) : bisect_right(dropped, lines[-1])]}
    return [row for row, line in enumerate(lines) if line not in out]


def _joined(item: str, texts: Mapping[int, Mapping[str, str]], places: Iterable[int]) -> str:
    found = dict.fromkeys(texts[at].get(item, "") for at in places)
    return "|".join(text for text in found if text)


def about_items(dataset: Dataset, facts: Facts, more_words: bool = False) -> Dataset:
    """Return a dataset with titles and words of its items, where there are any.

    more_words: the words come behind those that are there, not in their place
    """
    if not facts:
        return dataset
    known = [facts.get(one, ("", "")) for one in dataset.items.tolist()]
    titles, words = ([fact[n] for fact in known] for n in (0, 1))
    if more_words and dataset.genres is not None:
        both = zip(dataset.genres.tolist(), words, strict=True)
        words = ["|".join(filter(None, pair)) for pair in both]
    return replace(
        dataset,
        titles=_some(titles, dataset.titles),
        genres=_some(words, dataset.genres),
    )


def _some(texts: list[str], old: Strings | None) -> Strings | None:
    return np.asarray(texts) if any(texts) else old


def with_facts(dataset: Dataset, opened: Callable[[], Table], tell: Tell, asked: Asked) -> Dataset:
    """Return a dataset with what another table says about its items."""
    table = opened()
    given = {role: name for role, name in asked.columns.items() if role in FACTS}
    place = _item_column(table, asked.columns.get("item"))
    columns = find_facts(table, given, asked.ignore)
    if place is None or not columns:
        raise DataError(
            f"{table.file}: a table about items needs a column of their ids "
            f"({', '.join(COLUMN_NAMES['item'])}, id) and one of titles or words "
            f"({', '.join([*FACTS['title'], *FACTS['genres']])}). The columns are "
            f"{', '.join(table.header)}. Name others with {column('item')}, {column('title')} or "
            f"{column('genres')}."
        )
    tell_left_out({role: name for role, name in given.items() if names_in(name)}, columns, tell)
    used = {**dict.fromkeys(given, ()), **columns, "item": [place]}
    tell_unused(table, used, asked.known, tell, about_items=True)
    facts = facts_in(opened, place, columns, None)
    had = {*dataset.items.tolist()}
    if missing := len(had - facts.keys()):
        tell(f"{missing:,} of {len(dataset.items):,} items are not in {table.file}")
    if unused := len(facts.keys() - had - {""}):
        some, are = (
            ("item", "has no rows: it is") if unused == 1 else ("items", "have no rows: they are")
        )
        told = f"{unused:,} {some} of {table.file} {are} not in this dataset"
        if place == _item_column(table):  # a service finds it by its usual name alone
            told += f" (a service: rescind serve --import {dataset.name} --items "
            told += f"{shlex.quote(table.file)} has all of them)"
        tell(told)
    return about_items(dataset, facts, more_words="genres" in given)


def listed_items(table: Table) -> tuple[list[str], list[str]]:
    """Return the ids that a table about items lists, in its order, and their titles or "".

    Both are empty if no column has a name that ids of items have.
    """
    place, title = _item_column(table), find_facts(table, {}).get("title", [])
    ids, titles = list[str](), list[str]()
    if place is None:
        return ids, titles
    for _, cells in table.batches(sorted({place, *title})):
        ids += [cell.strip() for cell in cells[place]]
        texts = cells[title[0]] if title else [""] * len(cells[place])
        titles += map(_plain, texts)
    return ids, titles


def _plain(text: str) -> str:
    return (text if text.isprintable() else _COMMANDS.sub(" ", text)).strip()[:_LONGEST_TEXT]


def _item_column(table: Table, named: str | None = None) -> int | None:
    if named is not None:
        return table.header.index(named)
    names = (*COLUMN_NAMES["item"], "source_id", "id")
    return next((n for n, name in enumerate(table.header) if name.lower() in names), None)
