"""Users whom an operator has already: their loans, and a code for each to claim the account.

The service keeps no id of theirs. The file of codes is the only place where both stand together.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescind.core.words import people_of as people_told
from rescind.data.import_facts import listed_items
from rescind.data.import_tables import open_table
from rescind.data.importing import imported_names
from rescind.errors import ConfigError, DataError, suggest
from rescind.ledger.accounts import NewCodes
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import Join, Lend
from rescind.service import recovery
from rescind.service.demonstration import People, people_of

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

Say = Callable[[str], None]
TOGETHER = 200
"""Users brought at a time."""


def items_of(path: Path) -> Catalogue:
    """Read the items that people may lend from a table, as `rescind data import --items` does."""
    try:
        table = open_table(path)
        ids, titles = listed_items(table)
    except DataError as error:
        raise DataError(f"{error} Items are read from a table in UTF-8, such as CSV.") from None
    if not ids:
        raise DataError(
            f"{path} has no column 'id', or no items. Its first line must name id and title; the "
            f"columns are {', '.join(table.header)}."
        )
    if "" in ids:
        raise DataError(f"{path}: an item has no id. Give each one, or delete its line.")
    _check_once(path, ids)
    return Catalogue(ids, [title or one for one, title in zip(ids, titles, strict=True)])


def _check_once(path: Path, ids: list[str]) -> None:
    """Raise `DataError` with the lines of the first id that is listed twice."""
    first = dict[str, int]()
    for place, one in enumerate(ids):
        if (before := first.setdefault(one, place)) != place:
            table = open_table(path)  # a table is read once
            lines = [line for numbers, _ in table.batches((0,)) for line in numbers]
            raise DataError(
                f"{path}: the id '{one}' is in {table.unit} {lines[before]} and again in "
                f"{table.unit} {lines[place]}. An item has one id and one title: delete one of the "
                f"lines, or give it another id."
            )


def users_of(name: str, codes: Path | None, say: Say, items: Path | None = None) -> People:
    """Return the users of an import; refuse what cannot be begun before anything is opened.

    items: a table of the whole catalogue; without it, only what somebody had can ever be lent
    """
    if name not in imported_names():
        raise ConfigError(
            f"'{name}' is not an imported dataset; {suggest(name, imported_names())} "
            f"Import your users' records first: rescind data import FILE --name NAME."
        )
    if codes is None:
        raise ConfigError(
            "--import needs --codes FILE: a new file, with the code that lets each user in."
        )
    if codes.exists():
        raise ConfigError(
            f"{codes} exists already. If the users were brought in before, leave --import and "
            f"--codes out; otherwise name a new file with --codes."
        )
    users = people_of(name, say)
    if items is not None:
        users = _within(users, items_of(items), f"{items}", name)
        say(f"the catalogue is the {len(users.catalogue):,} items of {items}.")
    else:
        say(
            f"the catalogue is the {len(users.catalogue):,} items that somebody had (--items FILE "
            f"names all; more can be added at a later start)."
        )
    return users


def _within(users: People, catalogue: Catalogue, file: str, name: str) -> People:
    """Return the same users with loans that name places in a wider catalogue."""
    listed, had = {*catalogue.ids}, users.catalogue.ids
    if missing := [one for one in had if one not in listed]:
        raise DataError(
            f"{file} lacks {len(missing):,} of the {len(had):,} items that users of '{name}' have, "
            f"such as {missing[0]!r}. Add them: it must list every item that people may lend."
        )
    if catalogue.ids == had:
        return users
    place = np.array([catalogue.index_of(one) for one in had], np.int64)
    loans = tuple(np.sort(place[one]) for one in users.loans)
    return People(catalogue, loans, users.names)


def bring(ledger: Ledger, users: People, codes: Path, say: Say = print) -> None:
    """Let everybody join and lend, write their codes, and make the first release."""
    if there := ledger.reading.overview()["people"]:
        raise ConfigError(
            f"{ledger.state} has its data already ({people_told(there)}), and --import is for the "
            f"first start. Leave --import and --codes out; to add items, give --items FILE alone. "
            f"If an import was interrupted, delete the folder and the file of codes, and begin "
            f"again."
        )
    users = _within(users, ledger.catalogue, f"The catalogue of {ledger.state}", "the import")
    handle = os.open(codes, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")  # for loops in a shell
        table.writerow(("user", "code"))
        for first in range(0, len(users.loans), TOGETHER):
            part = slice(first, first + TOGETHER)
            texts, kept = recovery.new_codes(len(users.names[part]))
            table.writerows(zip(users.names[part], texts, strict=True))
            file.flush()
            os.fsync(file.fileno())  # before the accounts: a code that is lost locks somebody out
            joined = [ledger.submit(Join()) for _ in texts]
            for one, code, text, items in zip(joined, kept, texts, users.loans[part], strict=True):
                person = bytes.fromhex(one.result().body["person"])
                ledger.submit(NewCodes(person, (code,), (text,)))
                ledger.submit(Lend(person, tuple(items.tolist()))).result()
    ledger.releases.make(ledger)
    say(
        f"{len(users.loans):,} users lend {sum(map(len, users.loans)):,} records. Their codes are "
        f"in {codes}: send each user theirs, and keep the file, sealed, until all are used. Only "
        f"their code takes out somebody who never comes (docs/service.md)."
    )
