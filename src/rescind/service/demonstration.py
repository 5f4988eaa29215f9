"""A service full of people, to try it out: a public dataset whose users lend what they rated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from rescind.data.dataset import Dataset
from rescind.data.loading import load
from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import Join, Lend

Say = Callable[[str], None]
FALLBACK = "synthetic"
WAITING = 2_000
"""Operations handed to the writer at a time: a few batches."""


@dataclass(frozen=True)
class People:
    """A catalogue and what each person lends."""

    catalogue: Catalogue
    loans: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]


def people_of(name: str, say: Say = print) -> People:
    """Return the people of a dataset; synthetic ones if it cannot be had here."""
    data = _obtained(name, say).compact()  # without what stands for ids of erased rows
    order = np.lexsort((data.item, data.user))
    user, item = data.user[order], data.item[order]
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]]) if len(user) else np.empty(0, int)
    loans = tuple(np.unique(part) for part in np.split(item, first[1:]))
    ids = [str(one) for one in data.items]
    titles = ids if data.titles is None else data.titles
    titles = [str(title) or one for title, one in zip(titles, ids, strict=True)]
    say(f"{data.name}: {len(loans):,} people, {len(ids):,} items, from {data.source}.")
    return People(Catalogue(ids, titles), loans, tuple(map(str, data.users[user[first]])))


def _obtained(name: str, say: Say) -> Dataset:
    try:
        data = load(name)
        if not isinstance(data, Dataset):
            raise DataError(f"'{name}' is a graph, not people with items. Try ml-100k.")
        return data
    except DataError as error:
        if "could not be obtained" not in str(error):
            raise
        say(f"{name} cannot be obtained here: {str(error).splitlines()[0]}")
        say("Using built-in SYNTHETIC people instead; their lists mean nothing elsewhere.")
    data = load(FALLBACK)
    assert isinstance(data, Dataset)
    return data


def fill(ledger: Ledger, people: People, say: Say = print) -> None:
    """Let everybody join and lend, and make the first release; nothing if people are there."""
    if ledger.reading.overview()["people"]:
        say("the demonstration's people are there already.")
        return
    ids = []
    for first in range(0, len(people.loans), WAITING):
        some = people.loans[first : first + WAITING]
        joined = [ledger.submit(Join()) for _ in some]
        fresh = [bytes.fromhex(one.result().body["person"]) for one in joined]
        lent = [
            ledger.submit(Lend(person, tuple(items.tolist())))
            for person, items in zip(fresh, some, strict=True)
        ]
        for one in lent:
            one.result()
        ids += fresh
    if ledger.releases.missing:
        ledger.releases.make(ledger)
    say(f"{len(ids):,} people lend {sum(map(len, people.loans)):,} records.")


def guest(ledger: Ledger) -> bytes:
    table = tables.person
    query = select(table.c.id).where(table.c.lent > 0).order_by(table.c.lent, table.c.id)
    with ledger.store.reading() as tx:
        found = [bytes(row.id) for row in tx.execute(query)]
    if not found:
        raise DataError("nobody lends anything here. Name a new folder with --state.")
    return found[len(found) // 2]
