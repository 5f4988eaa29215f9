"""Delete rows of people from an imported dataset.

A request that was answered elsewhere (`rescind forget`) leaves rows on the list of the dataset:
nobody learns them, but they are stored. They stay until they are deleted here for their own user,
so that each person's deletion can have a receipt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rescind.core.files import locked
from rescind.core.labels import Alike, told_alike, told_to_look_up
from rescind.data.arrays import Mask
from rescind.data.blocklist import Blocklist, place, without_rows
from rescind.data.dataset import Dataset
from rescind.data.importing import (
    about_imported,
    imported_folder,
    imported_names,
    load_imported,
    write,
)
from rescind.errors import DataError


class Erasing(NamedTuple):
    """Rows that are to be deleted from an imported dataset, or were."""

    name: str
    before: Dataset
    rows: Dataset
    after: Dataset

    @property
    def pairs(self) -> tuple[list[str], list[str]]:
        """Return the original ids of the rows: users, and the item of each."""
        of = self.before
        return of.users[self.rows.user].tolist(), of.items[self.rows.item].tolist()


def erase_imported(name: str, users: Sequence[str], items: Sequence[str] = ()) -> Erasing:
    """Delete rows of users from an imported dataset, and from every later import of this name.

    items: only these items of the users. Default: all
    """
    with locked(imported_folder()):  # not its own: that one is replaced
        chosen = choose(name, users, items)
        delete(chosen)
    return chosen


def choose(name: str, users: Sequence[str], items: Sequence[str] = ()) -> Erasing:
    """Find the rows of users, and what is left without them. The caller has the lock."""
    dataset = load_imported(name)
    for kind, given, known in (("user", users, dataset.users), ("item", items, dataset.items)):
        for one in given:
            if one not in known and "," in one and np.isin(one.split(","), known).all():
                raise DataError(
                    f"'{one}' are several {kind}s. Repeat --{kind} for each. Nothing was erased."
                )
            if one not in known:
                raise DataError(f"{unknown_id(name, kind, one, known)} Nothing was erased.")
    gone = _of(dataset, users, items)
    found = {*dataset.users[dataset.user[gone]]}, {*dataset.items[dataset.item[gone]]}
    # All or nothing: nobody is told "deleted" of something that they never had.
    missing = [
        f"{kind} '{one}'"
        for kind, asked, there in zip(("user", "item"), (users, items), found, strict=True)
        for one in asked
        if one not in there
    ]
    if missing:
        raise DataError(
            f"'{name}' has no such rows of {missing[0]} in this request. Nothing was erased. Look "
            f"up which items are theirs (rescind data show {name} --user USER), or erase all their "
            f"rows: leave --item out."
        )
    return Erasing(name, dataset, dataset.select(gone), without_rows(dataset, gone))


def rows_of(dataset: Dataset, users: Sequence[str], items: Sequence[str] = ()) -> Dataset:
    """Return the rows of users, given by original ids. items: only these. Default: all"""
    return dataset.select(_of(dataset, users, items))


def _of(dataset: Dataset, users: Sequence[str], items: Sequence[str]) -> Mask:
    found: Mask = np.isin(dataset.users, list(users))[dataset.user]
    if items:
        found = found & np.isin(dataset.items, list(items))[dataset.item]
    return found


def unknown_id(
    name: str, kind: str, one: str, known: Iterable[str], alike: Alike | None = None
) -> str:
    """Say what to do about an id that is not there. No other id is named: it is of other people.

    known: the ids that are there
    alike: what to say of those that may be meant. Default: that there is one, and where to look
    """
    if kind == "user" and Blocklist.of_dataset(name).has_asked(one):
        return (
            f"'{name}' has no rows of user '{one}' any more, after an earlier request. If a "
            f"command deleted them, their receipt is where it was written then: by default "
            f"receipt-{name}.json, receipt-{name}-2.json and so on where the command was given, or "
            f"answered/REQUEST/receipt-{name}.json in a folder of requests. If data was added or "
            f"imported again after the run forgot, they were left out then, without a receipt."
        )
    if alike:
        told = alike(one, known)
    else:
        told = told_to_look_up(one, known, name) if kind == "user" else told_alike(one, known)
    if name not in imported_names():
        return f"there is no {kind} '{one}' in '{name}'. {told}Its publisher's ids are used here."
    file = about_imported(name)["file"]
    shown = {
        "user": "your own records of the person",
        "item": f"rescind data show {name} --user USER",
    }
    return (
        f"there is no {kind} '{one}' in '{name}'. {told}Allowed are ids as they stand in what was "
        f"imported ({file}): capital letters and leading zeros count, and numbers that a run gives "
        f"are other ids. Take it from {shown[kind]}, and give the command again."
    )


def delete(chosen: Erasing) -> None:
    """Delete the rows that were chosen, and no others. The caller has the lock."""
    name = chosen.name
    # The list first: whatever happens next, nobody learns these rows again.
    Blocklist().with_erased(*chosen.pairs).add_to_dataset(name)
    write(name, chosen.after, about_imported(name), chosen.before.has_time)
    for old in imported_folder().glob(f".{name}-*"):  # of a command that was killed
        shutil.rmtree(old, ignore_errors=True)


def stored_rows(name: str, users: Sequence[str], items: Sequence[str]) -> int:
    """Read an imported dataset again; return how many rows it has of these pairs."""
    dataset = load_imported(name)
    return len(dataset) - len(Blocklist().with_erased(users, items).left_of(dataset))


class LeftOut(NamedTuple):
    """Rows of one user."""

    rows: int
    """Stored, and left out by every load."""
    stored: int
    """All that are stored."""

    @property
    def in_part(self) -> bool:
        """Whether the user asked about single items, so that other rows are in use."""
        return self.rows < self.stored


def left_out(name: str) -> dict[str, LeftOut]:
    """Return how many rows an imported dataset stores that every load leaves out, by user.

    A request was answered where they were learnt, and they have not been deleted here yet.
    """
    if not Blocklist.of_dataset(name):
        return {}
    data = load_imported(name)
    stored = dict(zip(data.users.tolist(), np.bincount(data.user).tolist(), strict=False))
    return {user: LeftOut(rows, stored[user]) for user, rows in rows_left_out(data).items()}


def rows_left_out(dataset: Dataset) -> dict[str, int]:
    """Return the same of a dataset that was loaded with its erased rows."""
    listed = Blocklist.of_dataset(dataset.name)
    stored, used = (
        np.bincount(of.user, minlength=len(dataset.users))
        for of in (dataset, listed.left_of(dataset))
    )
    more = stored - used
    return {str(dataset.users[at]): int(more[at]) for at in np.flatnonzero(more)}


def items_of(name: str, user: str) -> list[str]:
    """Return the items in the rows that an imported dataset stores of a user."""
    dataset = load_imported(name)
    mine = dataset.item[dataset.users[dataset.user] == user]
    return [str(item) for item in dataset.items[np.unique(mine)]]


def admit_imported(name: str, user: str) -> bool:
    """Let a user who left an imported dataset come in again; return whether they had left.

    What they had before stays away: rows that are still in the files are erased first.
    """
    if not Blocklist.of_dataset(name).has_withdrawn(user):
        return False
    if user in load_imported(name).users:
        erase_imported(name, [user])
    return Blocklist.admit(place(name), user)
