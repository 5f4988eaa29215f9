"""What a table says about items: a title, and words such as genres, brands or categories."""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rescind.data.arrays import Strings
from rescind.data.dataset import Dataset
from rescind.data.import_reading import COLUMN_NAMES, Tell, ignoring
from rescind.data.import_tables import Table
from rescind.data.import_words import column, setting
from rescind.errors import DataError

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

Facts = dict[str, tuple[str, str]]
"""Title and words of an item, by its original id."""


def find_facts(
    table: Table, given: Mapping[str, str], ignore: Collection[str] = ()
) -> dict[str, list[int]]:
    """Return the columns of titles and of words. given: names, several separated by commas"""
    ignored, found = ignoring(table.header, ignore), dict[str, list[int]]()
    for role, common in FACTS.items():
        names = [name.strip() for name in given.get(role, "").split(",") if name.strip()]
        for name in names:
            if name not in table.header:
                raise DataError(
                    f"{table.file}: there is no column '{name}' for the {role} of items. The "
                    f"columns are {', '.join(table.header)}."
                )
        places = [n for n, name in enumerate(table.header) if name in names]
        if not names:
            places = [n for n, name in enumerate(table.header) if name.lower() in common]
        if left := [n for n in places if n not in ignored]:
            found[role] = left[:1] if role == "title" else left
    return found


def tell_unused(
    table: Table, used: Mapping[str, Collection[int]], ignore: Collection[str], tell: Tell
) -> None:
    """Tell which columns nothing was read from, and the ways to use one.

    used: the columns of each role; how to give a role that has one is not told
    """
    known = {at for places in used.values() for at in places} | {*ignoring(table.header, ignore)}
    unused = {at: name for at, name in enumerate(table.header) if at not in known}
    if not unused:
        return
    shown = [name if name.strip() else f"number {at + 1} (no name)" for at, name in unused.items()]
    told = f"not used: column{'s' * (len(shown) > 1)} {', '.join(shown)}."
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
        free = ", ".join(how for role, how in ways.items() if role not in used)
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
                text = some[row].strip()[:_LONGEST_TEXT]
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


def about_items(dataset: Dataset, facts: Facts) -> Dataset:
    """Return a dataset with titles and words of its items, where there are any."""
    if not facts:
        return dataset
    known = [facts.get(one, ("", "")) for one in dataset.items.tolist()]
    titles, words = ([fact[n] for fact in known] for n in (0, 1))
    return replace(
        dataset,
        titles=_some(titles, dataset.titles),
        genres=_some(words, dataset.genres),
    )


def _some(texts: list[str], old: Strings | None) -> Strings | None:
    return np.asarray(texts) if any(texts) else old


def with_facts(dataset: Dataset, opened: Callable[[], Table], tell: Tell) -> Dataset:
    """Return a dataset with what another table says about its items."""
    table = opened()
    place, columns = _item_column(table), find_facts(table, {})
    if place is None or not columns:
        raise DataError(
            f"{table.file}: a table about items needs a column of their ids "
            f"({', '.join(COLUMN_NAMES['item'])}, id) and one of titles or words "
            f"({', '.join([*FACTS['title'], *FACTS['genres']])}). The columns are "
            f"{', '.join(table.header)}."
        )
    facts = facts_in(opened, place, columns, None)
    had = {*dataset.items.tolist()}
    if missing := len(had - facts.keys()):
        tell(f"{missing:,} of {len(dataset.items):,} items are not in {table.file}")
    if unused := len(facts.keys() - had - {""}):
        some, are = (
            ("item", "has no rows: it is") if unused == 1 else ("items", "have no rows: they are")
        )
        tell(
            f"{unused:,} {some} of {table.file} {are} not in this dataset (a service: rescind "
            f"serve --import {dataset.name} --items {shlex.quote(table.file)} has all of them)"
        )
    return about_items(dataset, facts)


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
        titles += [text.strip()[:_LONGEST_TEXT] for text in texts]
    return ids, titles


def _item_column(table: Table) -> int | None:
    names = (*COLUMN_NAMES["item"], "source_id", "id")
    return next((n for n, name in enumerate(table.header) if name.lower() in names), None)
