"""Keyed digests of records that were erased or unshared, so that a rerun leaves them out.

The published dataset still contains them. A run keeps `withheld.json`: digests under a secret of
this user (`keys.erasure_key`). Without the secret they do not show which records they stand for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.files import write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.data import Dataset
from rescind.errors import DataError
from rescind.forgetting import keys

Array = NDArray[Any]
FILE = "withheld.json"


@dataclass(frozen=True)
class Blocklist:
    """Digests of users with requests, of erased records and of unshared records."""

    people: frozenset[str] = frozenset()
    """Users with at least one record here: only their rows must be compared."""
    erased: frozenset[str] = frozenset()
    unshared: frozenset[str] = frozenset()
    _key: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def read(cls, folder: Path) -> Blocklist:
        """Read the blocklist of a run's folder; empty if there is none."""
        path = folder / FILE
        if not path.is_file():
            return cls()
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            lists = {n: frozenset(map(str, table[n])) for n in ("people", "erased", "unshared")}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{path} cannot be read ({error}), so it is unknown what this run must leave out. "
                f"Restore it from a copy; without it, erased records would be learnt again."
            ) from None
        return cls(**lists, _key=keys.erasure_key())

    def write(self, folder: Path) -> None:
        table = {n: sorted(getattr(self, n)) for n in ("people", "erased", "unshared")}
        write_atomically(folder / FILE, (json.dumps(table, indent=1) + "\n").encode())

    def __bool__(self) -> bool:
        return bool(self.erased or self.unshared)

    def after(self, event: Event, records: Records, labels: Labels) -> Blocklist:
        """Return the list with one more request. records: those that the request removed"""
        key = self._key or keys.erasure_key()
        users = [labels.user_id(c) for c in records.client.tolist()]
        items = [labels.item_id(i) for i in records.item.tolist()]
        people = self.people | {_digest(key, u) for u in users}
        pairs = frozenset(_digest(key, u, i) for u, i in zip(users, items, strict=True))
        if isinstance(event, Erase | Withdraw):
            return replace(self, people=people, erased=self.erased | pairs, _key=key)
        assert isinstance(event, Unshare)
        return replace(self, people=people, unshared=self.unshared | pairs, _key=key)

    def left(self, user: str, labels: Labels) -> bool:
        """Return whether this user made a request and is not a member any more."""
        known = self._key and _digest(self._key, user) in self.people
        return bool(known) and user not in labels.users

    def left_of(self, dataset: Dataset) -> Dataset:
        """Return the dataset without the erased records."""
        if not self.erased:
            return dataset
        gone = self._rows(self.erased, dataset.user, dataset.item, dataset.users, dataset.items)
        return dataset.select(~gone)

    def left_of_loan(self, event: Share, labels: Labels) -> Share:
        """Return the shared records without those that were unshared."""
        if not self.unshared:
            return event
        user, item = (c.numpy() for c in (event.records.client, event.records.item))
        gone = self._rows(self.unshared, user, item, np.array(labels.users), np.array(labels.items))
        return Share(event.records[torch.from_numpy(~gone)])

    def _rows(
        self, listed: frozenset[str], user: Array, item: Array, users: Array, items: Array
    ) -> Array:
        """Return which rows are on the list. [n] bool"""
        known = np.array([_digest(self._key, u) in self.people for u in users.tolist()])
        found = known[user] if len(known) else np.zeros(len(user), dtype=bool)
        rows = np.flatnonzero(found)
        found[rows] = [
            _digest(self._key, users[u], items[i]) in listed
            for u, i in zip(user[rows].tolist(), item[rows].tolist(), strict=True)
        ]
        return found


def _digest(key: bytes, *parts: str) -> str:
    text = json.dumps([str(p) for p in parts], ensure_ascii=False).encode()
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()
