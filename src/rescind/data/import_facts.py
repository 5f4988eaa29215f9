"""What a table says about items: a title, and words such as genres, brands or categories."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rescind.data.arrays import Strings
from rescind.data.dataset import Dataset
from rescind.data.import_reading import COLUMN_NAMES, Tell
from rescind.data.import_tables import Table
from rescind.errors import DataError

FACTS = {
    "title": ("title", "item_title", "item_name", "movie_title", "product_title", "name"),
    "genres": ("genres", "genre", "class", "category", "categories", "brand", "tags"),
}
"""Names of columns about items, in lower case. Several columns of words are joined."""
_LONGEST_TEXT = 1_000
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
"""What a terminal obeys, what ends a line, and what makes text run the other way."""

Facts = dict[str, tuple[str, str]]
"""Title and words of an item, by its original id."""
Named = Mapping[str, Sequence[str]]
"""By fact, the columns that were named for it; without a name, the usual ones count."""


def named_facts(columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the columns that are named for facts: several are separated by commas."""
    named = {role: columns.get(role, "").split(",") for role in FACTS}
    stripped = {role: [n.strip() for n in names if n.strip()] for role, names in named.items()}
    return {role: names for role, names in stripped.items() if names}


def find_facts(table: Table, named: Named, ignore: Collection[str] = ()) -> dict[str, list[int]]:
    """Return the columns of titles and of words."""
    places: dict[str, list[int]] = {}
    for role, common in FACTS.items():
        fit = [
            at
            for at, name in enumerate(table.header)
            if name not in ignore
            and (name in named[role] if role in named else name.lower() in common)
        ]
        if fit:
            places[role] = fit[:1] if role == "title" else fit
    return places


def tell_unused(table: Table, used: Iterable[int], ignore: Collection[str], tell: Tell) -> None:
    """Tell which columns nothing was read from."""
    read = {*used}
    unused = [
        name or f"number {at + 1}"
        for at, name in enumerate(table.header)
        if at not in read and name not in ignore
    ]
    if unused:
        tell(
            f"not used of {table.file}: {', '.join(unused)}. Name a column with --rating, --time, "
            f"--title or --genres, or leave it out with --ignore"
        )


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
    table, differ, every = opened(), set[int](), dict[str, None]()
    for lines, cells in table.batches(sorted({item, *places})):
        rows = _not_dropped(lines, dropped)
        ids = [cells[item][row].strip() for row in rows]
        every |= dict.fromkeys(ids)
        for at in places:
            for one, row in zip(ids, rows, strict=True):
                text = _plain(cells[at][row])
                if text and texts[at].setdefault(one, text) != text:
                    differ.add(at)
    for at in sorted(differ) if tell is not None else ():
        texts[at] = {}
        assert tell is not None
        tell(f"'{table.header[at]}' differs between rows of one item: not read as a fact about it")
    return {one: tuple(_joined(one, texts, columns.get(r, ())) for r in FACTS) for one in every}  # type: ignore[misc]


def _not_dropped(lines: Sequence[int], dropped: Sequence[int]) -> Sequence[int]:
    """Return the places in a batch of the rows that were not dropped."""
    if not lines or not dropped:
        return range(len(lines))
    out = {*dropped[bisect_left(dropped, lines[0]) : bisect_right(dropped, lines[-1])]}
    return [row for row, line in enumerate(lines) if line not in out]


def _joined(item: str, texts: Mapping[int, Mapping[str, str]], places: Iterable[int]) -> str:
    return "|".join(filter(None, dict.fromkeys(texts[at].get(item, "") for at in places)))


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
        dataset, titles=_some(titles, dataset.titles), genres=_some(words, dataset.genres)
    )


def _some(texts: list[str], old: Strings | None) -> Strings | None:
    return np.asarray(texts) if any(texts) else old


def with_facts(
    dataset: Dataset,
    opened: Callable[[], Table],
    columns: Mapping[str, str],
    ignore: Collection[str],
    tell: Tell,
) -> Dataset:
    """Return a dataset with what another table says about its items.

    columns: names by role, in either table
    """
    table = opened()
    named = {
        role: [name for name in names if name in table.header]
        for role, names in named_facts(columns).items()
    }
    item = columns.get("item")
    place = table.header.index(item) if item in table.header else _item_column(table)
    facts_at = find_facts(table, named, ignore)
    if place is None or not facts_at:
        raise DataError(
            f"{table.file}: a table about items needs a column of their ids and one of titles or "
            f"words; there are {', '.join(table.header)}. Name them with --item, --title, --genres."
        )
    used = {place, *(at for places in facts_at.values() for at in places)}
    tell_unused(table, used, ignore, tell)
    facts = facts_in(opened, place, facts_at, None)
    had = {*dataset.items.tolist()}
    if missing := len(had - facts.keys()):
        tell(f"{missing:,} of {len(dataset.items):,} items are not in {table.file}")
    if unused := len(facts.keys() - had - {""}):
        tell(
            f"{unused:,} items of {table.file} without rows: not in this dataset (a service has "
            f"them: rescind serve --import {dataset.name} --items {shlex.quote(table.file)})"
        )
    return about_items(dataset, facts, more_words="genres" in named)


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


def _item_column(table: Table) -> int | None:
    names = (*COLUMN_NAMES["item"], "source_id", "id")
    return next((n for n, name in enumerate(table.header) if name.lower() in names), None)
