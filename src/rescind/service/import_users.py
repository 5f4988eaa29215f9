"""Users whom an operator has already: their loans, and a code for each to claim the account.

The service keeps no id of theirs. The file of codes is the only place where both stand together.
Which import is under way stands in the ledger from before its first user until after its release: a
start sees it, and every backup has it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rescind.core import doing
from rescind.core.files import write_atomically
from rescind.core.words import count_of
from rescind.core.words import people_of as people_told
from rescind.data.import_facts import listed_items
from rescind.data.import_tables import open_table
from rescind.data.importing import check_imported
from rescind.data.obtain import where
from rescind.errors import ConfigError, DataError
from rescind.ledger.accounts import Code
from rescind.ledger.batch import Answer, Batch, Keep
from rescind.ledger.catalogue import FILE as CATALOGUE
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.credentials import RECOVERY, find_credential
from rescind.ledger.lending import Lend, join
from rescind.service import recovery
from rescind.service.demonstration import People, people_of

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

Say = Callable[[str], None]
Progress = Callable[[str], AbstractContextManager[Any]]
TOGETHER = 200
COLUMNS = ("user", "code")
IMPORT = "import"
"""The setting that says which import is under way; empty when it is complete."""
COMPLETE = "import complete"
"""The setting that says which import was completed last."""
ANEW = "To begin anew instead, delete the folder and the file of codes."


@dataclass(frozen=True)
class BringIn:
    """Somebody comes with their loans: an account, its code and the loans, all or nothing."""

    code: Code = field(repr=False)
    items: tuple[int, ...]

    def carry_out(self, batch: Batch) -> Answer:
        person, _ = join(batch)
        self.code.write(batch, person)
        return Lend(person, self.items).carry_out(batch)


def items_of(path: Path) -> Catalogue:
    """Read the items that people may lend from a table, as `rescind data import --items` does."""
    try:
        table = open_table(path)
        ids, titles = listed_items(table)
    except DataError as error:
        raise DataError(f"{error} Items are read from a table in UTF-8, such as CSV.") from None
    if not ids:
        raise DataError(f"{path} has no column 'id', or no items. Name the columns id and title.")
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
                f"{table.unit} {lines[place]}. Delete one of the lines, or give it another id."
            )


def users_of(name: str, codes: Path | None, say: Say, items: Path | None = None) -> People:
    """Return the users of an import; refuse what cannot be begun before anything is opened.

    items: a table of the whole catalogue; without it, only what somebody had can ever be lent
    """
    check_imported(name)
    if codes is None:
        raise ConfigError("--import needs --codes FILE: a new file for the code of each user.")
    users = people_of(name, say)
    if items is not None:
        users = _within(users, items_of(items), f"{items}", name)
    which = f"of {items}" if items else "that somebody had (--items FILE names all)"
    say(f"the catalogue is the {len(users.catalogue):,} items {which}.")
    return users


def _within(users: People, catalogue: Catalogue, file: str, name: str) -> People:
    """Return the same users with loans that name places in a wider catalogue."""
    listed, had = {*catalogue.ids}, users.catalogue.ids
    if missing := [one for one in had if one not in listed]:
        raise DataError(
            f"{file} lacks {len(missing):,} of the {len(had):,} items that users of '{name}' have, "
            f"such as {missing[0]!r}. Add them."
        )
    if catalogue.ids == had:
        return users
    place = np.array([catalogue.index_of(one) for one in had], np.int64)
    loans = tuple(np.sort(place[one]) for one in users.loans)
    return People(catalogue, loans, users.names)


def check_begun(state: Path, codes: Path | None) -> None:
    """Refuse a file of codes that is there before the service is: it is of another one."""
    if codes is not None and codes.exists() and not (state / CATALOGUE).exists():
        raise ConfigError(_taken(codes))


def check_complete(ledger: Ledger) -> None:
    """Refuse to serve some of the users of an import that was interrupted."""
    if begun := ledger.reading.noted(IMPORT):
        there = ledger.reading.overview()["people"]
        raise ConfigError(
            f"an import into {ledger.state} was interrupted: {there:,} of its {begun['users']:,} "
            f"users are here. To go on, give it again: {_options(begun)}. {ANEW}"
        )


def bring(
    ledger: Ledger,
    name: str,
    users: People,
    codes: Path,
    say: Say = print,
    progress: Progress = nullcontext,
) -> None:
    """Let everybody join and lend, write their codes, and make the first release.

    Killed at any moment, it goes on with the same data and file of codes, and does nothing if it is
    complete. progress: shows what goes on (`core.doing`), because each code takes a while on
    purpose
    """
    begun = ledger.reading.noted(IMPORT)
    if not begun and _completed(ledger, name, users, codes):
        say(f"the import of {name} is complete already: --import and --codes can be left out.")
        return
    if not begun:
        _check_new(ledger, codes)
    users = _within(users, ledger.catalogue, f"The catalogue of {ledger.state}", "the import")
    texts = _codes_in(codes) if begun else {}
    here = _brought(ledger, texts)
    if begun and (why := _misfit(ledger, users, texts, here)):
        raise ConfigError(
            f"the interrupted import into {ledger.state} cannot go on: {why}. Give it as before: "
            f"{_options(begun)}. {ANEW}"
        )
    if here:
        say(f"{len(here):,} of {len(users.names):,} users were brought in before; going on.")
    about = {"name": name, "codes": str(codes.absolute()), "users": len(users.names)}
    ledger.submit(Keep({IMPORT: about})).result()
    say(
        f"bringing in {count_of(len(users.names) - len(here), 'user')} of {name}. Ended before it "
        f"is complete, it goes on with the same command."
    )
    with progress(f"importing {name}"):
        if not texts:
            texts = {user: recovery.new_text() for user in users.names}
            _write_codes(codes, texts)  # before the accounts: who has no code is locked out
        _bring_rest(ledger, users, texts, here)
        if ledger.releases.missing:
            with doing.step("making the first release"):
                ledger.releases.make(ledger)
    known = _known_by(name, users, texts)
    ledger.submit(Keep({IMPORT: {}, COMPLETE: known})).result()
    say(
        f"{where(name, 'imported')} still has these rows, and whoever leaves the service stays in "
        f"it. Delete this folder and the imported file, or answer requests there, too."
    )
    say(
        f"{len(users.loans):,} users lend {sum(map(len, users.loans)):,} records. Their codes are "
        f"in {codes}: send each user theirs, and keep the file, sealed, until all are used."
    )


def _bring_rest(
    ledger: Ledger, users: People, texts: dict[str, str], here: dict[str, bytes]
) -> None:
    every = zip(users.names, users.loans, strict=True)
    rest = [(texts[user], items) for user, items in every if user not in here]
    with doing.step("accounts and codes", len(users.names), "users", len(here)) as shown:
        for first in range(0, len(rest), TOGETHER):
            coming = [
                ledger.submit(BringIn(recovery.kept(text), tuple(items.tolist())))
                for text, items in rest[first : first + TOGETHER]
            ]
            for one in coming:
                one.result()
            shown.reach(shown.done + len(coming))  # together, or the pace would be that of a moment


def _known_by(name: str, users: People, texts: dict[str, str]) -> dict[str, Any]:
    """Return by what the command of an import is known again.

    Nothing of loans but their number: with a digest of all, whoever has the other loans could test
    guesses of those that somebody took back. The digest of the codes tells nothing without them.
    """
    about = json.dumps([users.names, list(texts.items())]).encode()
    records = sum(map(len, users.loans))
    return {"name": name, "records": records, "codes": hashlib.sha256(about).hexdigest()}


def _completed(ledger: Ledger, name: str, users: People, codes: Path) -> bool:
    kept = ledger.reading.noted(COMPLETE)
    with suppress(DataError):  # another file: not that of the codes
        return bool(kept) and kept == _known_by(name, users, _codes_in(codes))
    return False


def _check_new(ledger: Ledger, codes: Path) -> None:
    """Refuse to begin an import where people are, or over a file."""
    if there := ledger.reading.overview()["people"]:
        raise ConfigError(
            f"{ledger.state} has its data already ({people_told(there)}), and --import is for the "
            f"first start. Leave --import and --codes out; to add items, give --items FILE alone."
        )
    if codes.exists():
        raise ConfigError(_taken(codes))


def _taken(codes: Path) -> str:
    return f"{codes} exists already, and no import was begun here. Name a new file with --codes."


def _options(begun: dict[str, Any]) -> str:
    return f"--import {begun['name']} --codes {begun['codes']}"


def _write_codes(path: Path, texts: dict[str, str]) -> None:
    """Write all codes at once: the file is whole, or not there."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")  # for loops in a shell
    table.writerows([COLUMNS, *texts.items()])
    write_atomically(path, out.getvalue().encode(), private=True)


def _codes_in(path: Path) -> dict[str, str]:
    """Read the code of each user; empty if there is no such file. Another file is refused."""
    if not path.exists():
        return {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            first, *rows = csv.reader(file)
        if tuple(first) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(first)}")
        return {user: code for user, code in rows}
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} is not a file of codes ({error}). Put back the one that was written."
        ) from None


def _brought(ledger: Ledger, texts: dict[str, str]) -> dict[str, bytes]:
    """Return who is here already, found by their codes: the person of each user."""
    with ledger.store.reading() as tx:
        found = {
            user: find_credential(tx, ledger.keys, recovery.split(text)[0], RECOVERY)
            for user, text in texts.items()
        }
    return {user: one.person for user, one in found.items() if one is not None}


def _misfit(
    ledger: Ledger, users: People, texts: dict[str, str], here: dict[str, bytes]
) -> str | None:
    """Return why an import cannot go on with this data and these codes; None: it can."""
    there = ledger.reading.overview()["people"]
    if len(here) != there:
        return f"{there:,} users are here, and the file has the codes of {len(here):,} of them"
    if texts and tuple(texts) != users.names:
        return "the file has codes of other users than the data"
    loans = zip(users.names, users.loans, strict=True)
    if any(not np.array_equal(ledger.live.of(here[u]), own) for u, own in loans if u in here):
        return "the data changed since, for users who are here"
    return None
