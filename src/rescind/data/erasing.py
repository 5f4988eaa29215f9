"""Rows of people in an imported dataset: look at them, delete them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

import numpy as np

from rescind.data.arrays import Mask
from rescind.data.blocklist import Blocklist, without_rows
from rescind.data.dataset import Dataset
from rescind.data.importing import (
    about_imported,
    imported_folder,
    load_imported,
    write,
)


def rows_of(dataset: Dataset, users: Sequence[str], items: Sequence[str] = ()) -> Dataset:
    """Return the rows of users, given by original ids. items: only these. Default: all"""
    return dataset.select(_of(dataset, users, items))


def _of(dataset: Dataset, users: Sequence[str], items: Sequence[str]) -> Mask:
    found: Mask = np.isin(dataset.users, list(users))[dataset.user]
    if items:
        found = found & np.isin(dataset.items, list(items))[dataset.item]
    return found


def delete_rows(name: str, pairs: Collection[tuple[str, str]]) -> None:
    """Delete rows of users and items, and no others. The caller has the lock."""
    before, wanted = load_imported(name), {*pairs}
    gone = _of(before, [user for user, _ in wanted], ())
    rows = np.flatnonzero(gone)
    users, items = before.users[before.user[rows]], before.items[before.item[rows]]
    named = zip(users.tolist(), items.tolist(), strict=True)
    gone[rows] = np.fromiter((pair in wanted for pair in named), dtype=bool, count=len(rows))
    write(name, without_rows(before, gone), about_imported(name), before.has_time)
    for old in imported_folder().glob(f".{name}-*"):  # of a command that was killed
        shutil.rmtree(old, ignore_errors=True)


def rows_left_out(dataset: Dataset) -> dict[str, int]:
    """Return the same of a dataset that was loaded with its erased rows."""
    listed = Blocklist.of_dataset(dataset.name)
    stored, used = (
        np.bincount(of.user, minlength=len(dataset.users))
        for of in (dataset, listed.left_of(dataset))
    )
    more = stored - used
    return {str(dataset.users[at]): int(more[at]) for at in np.flatnonzero(more)}
