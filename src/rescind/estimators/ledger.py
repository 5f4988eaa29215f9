"""Who has what: the records an estimator needs to take a person's part back.

Items stand in slots, in the order they came; a slot of an item that nobody has is used again. What
leaves an estimator is in the order of the original ids, so slots tell nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.saved import Ids, Schema, Values, fitting, ids_as_bytes, must
from rescind.errors import ConfigError, DataError
from rescind.estimators.frames import Frame, Id, Ints, in_order, plain_id

Owned = Ints
"""A user's distinct items. [1 | 2, n]: slots, sorted; then times, if any"""
Marks = NDArray[np.uint64]
"""[users, 2] a hash of the user's id, and one of the records: enough to recognise both again."""
SAVED: Schema = {
    "users": Ids(),
    "items": Ids(),
    "user": Values(torch.int64, ("records",), 0, "users"),
    "item": Values(torch.int64, ("records",), 0, "items"),
}
SAVED_TIME: Schema = {"time": Values(torch.int64, ("records",))}
SPARE = 64
"""Slots added at a time when there is no free one; changes speed only."""
UNCHANGED = " Nothing was changed."
"""The end of a refusal; questions, which change nothing anyway, leave it out."""


class Change(NamedTuple):
    """What is there after a change. These are final values: making it twice is making it once."""

    before: Mapping[Id, Owned]
    """What its users have until now, those who are known."""
    after: Mapping[Id, Owned]
    """What its users have from now on; nothing: the user is gone."""
    slot: dict[Id, int]
    owners: Ints
    marks: Marks | None = None
    """Of the users of a log."""


@dataclass
class Ledger:
    """The records of all users. A pair of user and item counts once, at its earliest time."""

    whole: ClassVar[bool] = True
    """Whether all records are at hand, so that they can be counted again."""

    timed: bool = False
    of: dict[Id, Owned] = field(default_factory=dict)
    slot: dict[Id, int] = field(default_factory=dict)
    owners: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[slots] how many users have the item of a slot."""

    @property
    def records(self) -> int:
        return int(self.owners.sum())

    @property
    def slots(self) -> int:
        return len(self.owners)

    @property
    def nothing(self) -> Owned:
        return np.zeros((1 + self.timed, 0), np.int64)

    def must_be_whole(self, what: str) -> None:
        """Raise where `what` needs records that are not at hand."""

    # -- what would change -----------------------------------------------------------------------

    def with_(self, frame: Frame) -> Change:
        """Return what the users of a frame have with its records; new items get slots."""
        before, slots = self.owned_by(frame.users), self._with_room(frame.items)
        slot = np.fromiter((slots[each] for each in frame.items), np.int64, len(frame.items))
        rows = np.stack([slot[frame.item], *([] if frame.time is None else [frame.time])])
        known = [(n, before[u]) for n, u in enumerate(frame.users) if u in before]
        user = np.concatenate([frame.user, *(np.full(own.shape[1], n) for n, own in known)])
        rows = np.concatenate([rows, *(own for _, own in known)], axis=1)
        user, rows = distinct(user, rows)
        begin = np.flatnonzero(np.diff(user, prepend=-1))
        end = np.append(begin, len(user))[1:]
        # Copies, not views: a view would keep the records of users who leave in memory.
        ends = zip(begin, end, strict=True)
        after = {frame.users[user[b]]: rows[:, b:e].copy() for b, e in ends}
        return self._changed(before, after, slots)

    def without(self, users: Iterable[Id], items: Iterable[Id], records: Frame | None) -> Change:
        """Return what users have without these; raise if something is not there."""
        people = [*users]
        named = people + ([] if records is None else [*records.users])
        for user in named:
            self.find(user, "user")
        before = self.owned_by(named)
        left = dict.fromkeys(people, self.nothing)
        slots = np.array([self.find(item, "item") for item in items], np.int64)
        for user, own in self.of.items() if len(slots) else ():
            kept = ~np.isin(own[0], slots)
            if user not in left and not kept.all():
                before[user], left[user] = own, own[:, kept]
        for user, gone in self._named(records, before) if records is not None else ():
            own = left.get(user, before[user])
            left[user] = own[:, ~np.isin(own[0], gone)]
        return self._changed({user: before[user] for user in left}, left, self.slot)

    def _named(self, records: Frame, owned: Mapping[Id, Owned]) -> Iterator[tuple[Id, Ints]]:
        """Yield the slots of the named records by user; all of them are there."""
        slot = np.array([self.find(item, "item") for item in records.items], np.int64)
        order = np.argsort(records.user, kind="stable")
        ends = np.cumsum(np.bincount(records.user, minlength=len(records.users)))
        groups = np.split(slot[records.item[order]], ends)  # after the last end: nothing
        for user, gone in zip(records.users, groups, strict=False):
            own = owned[user]
            there = np.isin(gone, own[0])
            if not there.all():
                wrong = next(i for i, s in self.slot.items() if s == gone[~there][0])
                raise DataError(f"user {user!r} has no record of item {wrong!r}.{UNCHANGED}")
            yield user, gone

    def find(self, given: Id, kind: str, then: str = UNCHANGED) -> int:
        """Return the slot of an item, or 0 for a user; raise if it is not known."""
        must_be_known(given, self.of if kind == "user" else self.slot, kind, then)
        return self.slot[given] if kind == "item" else 0

    def owned_by(self, users: Iterable[Id]) -> dict[Id, Owned]:
        """Return what those of the users have who are known."""
        return {user: self.of[user] for user in users if user in self.of}

    # -- changing --------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Make a change; whoever interrupts it makes it again."""
        for user, own in change.after.items():
            if own.shape[1]:
                self.of[user] = own
            else:
                self.of.pop(user, None)
        self.slot, self.owners = change.slot, change.owners

    def _changed(
        self, before: Mapping[Id, Owned], after: Mapping[Id, Owned], slot: dict[Id, int]
    ) -> Change:
        """Return a change, without the ids of items that nobody has any more."""
        slots = self.slots if slot is self.slot else 1 + max(slot.values())
        if slots > self.slots > 0:
            slots += SPARE
        owners = np.zeros(max(self.slots, slots), np.int64)
        owners[: self.slots] = self.owners
        for owned, one in ((before, -1), (after, 1)):
            slots_of = np.concatenate([self.nothing[0], *(own[0] for own in owned.values())])
            owners += one * np.bincount(slots_of, minlength=len(owners))
        empty = {*np.flatnonzero((owners[: self.slots] == 0) & (self.owners > 0)).tolist()}
        if empty:
            slot = {item: at for item, at in slot.items() if at not in empty}
        return Change(before, after, slot, owners)

    def _with_room(self, items: Iterable[Id]) -> dict[Id, int]:
        """Return the slots with some for new items."""
        if not (new := [each for each in items if each not in self.slot]):
            return self.slot
        taken = np.zeros(self.slots, bool)
        taken[list(self.slot.values())] = True
        free = np.flatnonzero(~taken).tolist()
        free += range(self.slots, self.slots + len(new))
        return {**self.slot, **dict(zip(new, free, strict=False))}

    # -- reading ---------------------------------------------------------------------------------

    def order(self) -> tuple[list[Id], Ints]:
        """Return the items in the order of their ids, and the place of each slot in it. [slots]"""
        items, place = in_order(self.slot), np.full(self.slots, -1)
        place[[self.slot[each] for each in items]] = np.arange(len(items))
        return items, place

    def lot(self, owned: Iterable[Owned], place: Ints | None = None) -> Lot:
        """Return items of several users as a lot; place: a number for each slot, instead of it."""
        parts = list(owned)
        count = [part.shape[1] for part in parts]
        owner = np.repeat(np.arange(len(parts)), count)
        rows = np.concatenate([self.nothing, *parts], axis=1)
        if place is not None:
            rows = np.stack([place[rows[0]], *rows[1:]])
            order = np.lexsort((rows[0], owner))
            rows = rows[:, order]  # owners are sorted already
        time = torch.from_numpy(rows[1].copy()) if self.timed else None
        return Lot(torch.from_numpy(owner), torch.from_numpy(rows[0].copy()), len(parts), time)

    # -- files -----------------------------------------------------------------------------------

    def packed(self) -> dict[str, Tensor]:
        """Return all records as a file holds them, in the order of the ids."""
        (items, place), users = self.order(), in_order(self.of)
        lot = self.lot((self.of[user] for user in users), place)
        time = {} if lot.time is None else {"time": lot.time}
        names = {"users": ids_as_bytes(users), "items": ids_as_bytes(items)}
        return {"user": lot.owner, "item": lot.item, **names, **time}


def unpacked_records(tensors: Mapping[str, Tensor], timed: bool) -> Frame:
    """Return what `Ledger.packed` wrote, or raise `ValueError`."""
    held = fitting(tensors, {**SAVED, **(SAVED_TIME if timed else {})})
    for name, each in (("users", "user"), ("items", "item")):
        must(len(held[each].unique()) == len(held[name]), f"some {name} have no record")
    time = held["time"].numpy() if timed else None
    user, item = held["user"].numpy(), held["item"].numpy()
    return Frame(held["users"], user, held["items"], item, time)


def distinct(user: Ints, rows: Owned) -> tuple[Ints, Owned]:
    """Sort records by user, then item; keep each pair once, at its earliest time.

    user: [n] numbers from 0    rows: [1 | 2, n] slots; then times, if any
    """
    if len(rows) == 1:  # user and slot in one number, which sorts several times as fast
        slots = int(rows[0].max(initial=0)) + 1
        key = np.sort(user * slots + rows[0])
        key = key[np.diff(key, prepend=-1) != 0]
        return key // slots, (key % slots)[None]
    order = np.lexsort((*rows[::-1], user))
    user, rows = user[order], rows[:, order]
    first = np.ones(len(user), bool)
    first[1:] = (user[1:] != user[:-1]) | (rows[0, 1:] != rows[0, :-1])
    return user[first], rows[:, first]


def ids_of(given: Any, what: str, of_pairs: str = "") -> list[Id]:
    """Return a list of ids as given by a caller. of_pairs: the argument that takes pairs of ids"""
    if isinstance(given, str | int):
        raise ConfigError(f"{what} must be a list of ids; got {given!r}. Write {what}=[{given!r}].")
    ids = [*given]
    pair = next((each for each in ids if isinstance(each, tuple | list)), None)
    if pair is not None and of_pairs:
        raise ConfigError(f"{what} takes ids. Write {of_pairs}=[{tuple(pair)!r}] for pairs.")
    return [plain_id(each, what) for each in ids]


def must_be_known(given: Id, known: Collection[Id], kind: str, then: str = UNCHANGED) -> None:
    """Raise `DataError` if an id is not known. then: said last"""
    if given in known:
        return
    other = next((e for e in known if str(e) == str(given)), None)
    hint = "" if other is None else f" Ids are compared with their type: did you mean {other!r}?"
    raise DataError(f"there is no {kind} {given!r} among {len(known):,} {kind}s.{hint}{then}")
