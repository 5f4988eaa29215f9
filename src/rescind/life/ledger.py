"""The oracle: who holds and lends what after each step, in plain dictionaries.

It shares no code with the federations that it judges. What is left in it is what a method that
forgets must be equal to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.data.arrays import Ints
from rescind.errors import ConsentError
from rescind.life.entry import Arrival, Asked, Kind

TRAIN, VALID, TEST = 0, 1, 2
Pair = tuple[int, int]
NO_ROWS = np.zeros((0, 5), dtype=np.int64)


class Ledger:
    """Who is a member, who holds what, and who lends what."""

    def __init__(self) -> None:
        self.members: set[int] = set()
        self.held: dict[int, dict[int, tuple[int, int, int]]] = {}
        """By user and item: (time, split, block)."""
        self.lent: dict[int, set[int]] = {}
        self.left: dict[int, int] = {}
        """Who left, and in which block."""
        self.forgotten: dict[Pair, int] = {}
        """Training records that are forgotten now, and in which block they were."""
        self.probes: dict[int, dict[int, int]] = {}
        """Validation items of everybody, ever, with their times: no method was trained on them."""
        self.block = -1
        self._made: dict[int, Ints] = {}

    # -- events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Write down one event; raise `ConsentError` if it cannot happen."""
        match event:
            case Arrive():
                self._arrive(event)
            case Share(records):
                for user, item in pairs(records):
                    self._must_train(user, item)
                    self.lent.setdefault(user, set()).add(item)
                    self._made.pop(user, None)
            case Unshare(records):
                for user, item in pairs(records):
                    if item not in self.lent.get(user, ()):
                        raise ConsentError(f"user {user} does not lend item {item}.")
                    self.lent[user].discard(item)
                    self._made.pop(user, None)
            case Erase(records):
                for user, item in pairs(records):
                    self._drop(user, item)
            case Withdraw(client):
                self._withdraw(client)
            case Join(client):
                self.members.add(client)
                self.left.pop(client, None)
            case _:
                raise ConsentError(f"{type(event).__name__} is no event of a story.")

    def _arrive(self, event: Arrive) -> None:
        self.block += 1
        records = event.records
        columns = (records.client, records.item, records.time, event.split)
        for user, item, time, split in zip(*(c.tolist() for c in columns), strict=True):
            if user in self.left:
                raise ConsentError(f"user {user} has left, so no record of theirs can arrive.")
            self.members.add(user)
            self._made.pop(user, None)
            self.held.setdefault(user, {})[item] = (time, split, self.block)
            self.forgotten.pop((user, item), None)  # given again
            if split == VALID:
                self.probes.setdefault(user, {})[item] = time

    def _withdraw(self, client: int) -> None:
        if client not in self.members:
            raise ConsentError(f"user {client} is not a member, so it cannot withdraw.")
        for item in list(self.held.get(client, ())):
            self._drop(client, item)
        self.members.discard(client)
        self.left[client] = self.block

    def _must_train(self, user: int, item: int) -> None:
        if self.held.get(user, {}).get(item, (0, TEST, 0))[1] != TRAIN:
            raise ConsentError(f"user {user} has no training record of item {item} to lend.")

    def _drop(self, user: int, item: int) -> None:
        if item not in self.held.get(user, {}):
            raise ConsentError(f"user {user} does not hold item {item}.")
        _, split, _ = self.held[user].pop(item)
        self.lent.get(user, set()).discard(item)
        self._made.pop(user, None)
        if split == TRAIN:
            self.forgotten[user, item] = self.block

    # -- what is true now ------------------------------------------------------------------------

    def trained(self, user: int) -> dict[int, int]:
        """Return the training items of a person, with their times."""
        mine = self.held.get(user, {})
        return {item: time for item, (time, split, _) in mine.items() if split == TRAIN}

    def asked(self, events: Iterable[Event]) -> Asked:
        """Return a request to forget as methods get it, before the ledger applies it."""
        named: list[Pair] = []
        leavers: list[int] = []
        kind: Kind = "erase"
        for event in events:
            if isinstance(event, Withdraw):
                kind = "withdraw"
                leavers.append(event.client)
                named += [(event.client, item) for item in self.trained(event.client)]
            elif isinstance(event, Unshare | Erase):
                kind = "unshare" if isinstance(event, Unshare) else "erase"
                found = pairs(event.records)
                named += [(u, i) for u, i in found if self.held[u][i][1] == TRAIN]
            else:
                raise ConsentError(f"{type(event).__name__} is not a request to forget.")
        user, item = np.array(sorted(named), dtype=np.int64).reshape(-1, 2).T.copy()
        return Asked(kind, user, item, np.array(sorted(leavers), dtype=np.int64))

    def blocks(self) -> list[Arrival]:
        """Return what remains, block by block: the life in which the rest was never there."""
        parts = [self._rows(user) for user in sorted(self.held)]
        rows = np.concatenate([NO_ROWS, *parts])
        return [arrival_of(block, rows[rows[:, 4] == block]) for block in range(self.block + 1)]

    def _rows(self, user: int) -> Ints:
        """Return (user, item, time, lent, block) of a person's training records; made once."""
        if user not in self._made:
            lent = self.lent.get(user, set())
            mine = sorted(self.held[user].items())
            rows = [(user, i, t, i in lent, b) for i, (t, split, b) in mine if split == TRAIN]
            self._made[user] = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return self._made[user]

    def held_out(self, split: int) -> Iterator[tuple[int, int, int]]:
        """Yield (user, item, block) of the held-out records of members."""
        for user, mine in self.held.items():
            for item, (_, kind, block) in mine.items():
                if kind == split:
                    yield user, item, block

    def gone(self, block: int | None = None) -> list[Pair]:
        """Return the training records that were forgotten in a block (None: in any), sorted."""
        return sorted(p for p, at in self.forgotten.items() if block is None or at == block)


def pairs(records: Records) -> list[Pair]:
    """Return (user, item) of each record."""
    return list(zip(records.client.tolist(), records.item.tolist(), strict=True))


def arrival_of(block: int, rows: Ints) -> Arrival:
    """Return rows (user, item, time, lent, ...) as an arrival."""
    user, item, time, lent = (np.ascontiguousarray(rows[:, n]) for n in range(4))
    return Arrival(block, user, item, time, lent.astype(np.bool_))
