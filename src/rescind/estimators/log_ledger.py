"""Who has what, after a fit on a log: the log itself knows; here are marks to recognise it by.

For each user two numbers are kept (16 bytes): a hash of the id and one of the records, under a key
drawn for this fit. To take a person out, the person's rows are read from the log again and must be
those that were counted.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from rescind.core.memory import free_memory
from rescind.core.saved import Ids, Schema, Values, fitting, ids_as_bytes, ids_from_bytes, must
from rescind.errors import ConfigError, DataError, RescindError
from rescind.estimators.frames import Frame, Id, Ints
from rescind.estimators.ledger import UNCHANGED, Change, Ledger, Marks, Owned, distinct
from rescind.estimators.logs import Log
from rescind.estimators.shuffle import (
    Total,
    groups,
    hashes,
    marks_of,
    part_of,
    scatter,
    write_items,
)
from rescind.methods.additive._solving import UNIT

Made = TypeVar("Made")
PARTITION = 2**21
"""Rows of a partition, about; changes speed and memory only."""
PARTS = 64
"""Most parts that an engine computes; in this process there is one, so one sum is in memory."""


@dataclass
class LogLedger(Ledger):
    """The records of all users, in a log; `of` is empty. It does not change: a copy of it does."""

    whole: ClassVar[bool] = False

    log: Log | None = None
    key: int = 0
    marks: Marks = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    """[users, 2] sorted by the first column."""

    def without(self, users: Iterable[Id], items: Iterable[Id], records: Frame | None) -> Change:
        if list(items):
            self.must_be_whole("forgetting an item of everybody")
        return super().without(users, (), records)

    def apply(self, change: Change) -> None:
        """Make a change, without the records that were read for it."""
        assert change.marks is not None
        super().apply(change._replace(after={}))
        self.marks = change.marks

    def _changed(
        self, before: Mapping[Id, Owned], after: Mapping[Id, Owned], slot: dict[Id, int]
    ) -> Change:
        change = super()._changed(before, after, slot)
        gone = np.isin(self.marks[:, 0], self._hashed(after))
        new = {user: own for user, own in after.items() if own.shape[1]}
        marks = np.concatenate([self.marks[~gone], self._marked(new, slot)])
        return change._replace(marks=marks[np.argsort(marks[:, 0], kind="stable")])

    def find(self, given: Id, kind: str, then: str = UNCHANGED) -> int:
        if kind != "user":
            return super().find(given, kind, then)
        if not self._known([given]):
            raise DataError(f"there is no user {given!r} among {len(self.marks):,} users.{then}")
        return 0

    def owned_by(self, users: Iterable[Id]) -> dict[Id, Owned]:
        """Read what those of the users have who are known: one pass over the log for all."""
        known = self._known(users)
        if not known:
            return {}
        if self.log is None:
            raise DataError(f"the records of user {known[0]!r} are in the log: load(..., log=...).")
        owned = self._counted(self.log.reopened().of_users(known))
        marks = {tuple(each) for each in self.marks[np.isin(self.marks[:, 0], self._hashed(known))]}
        for user in known:
            own = owned.get(user)
            if own is None or tuple(self._marked({user: own}, self.slot)[0]) not in marks:
                raise DataError(f"the log has other records of user {user!r}.{UNCHANGED}")
        return owned

    def must_be_whole(self, what: str) -> None:
        raise DataError(f"{what} needs all records, which are in the log. Fit again.")

    def _counted(self, frame: Frame) -> dict[Id, Owned]:
        """Return the rows of a frame by user; a user with an item not known here is left out."""
        slot = np.array([self.slot.get(item, -1) for item in frame.items], np.int64)
        rows = np.stack([slot[frame.item], *([] if frame.time is None else [frame.time])])
        strange = np.unique(frame.user[rows[0] < 0])
        kept = ~np.isin(frame.user, strange)
        user, rows = distinct(frame.user[kept], rows[:, kept])
        cuts = np.flatnonzero(np.diff(user)) + 1
        names = [frame.users[n] for n in user[np.append(0, cuts)]] if len(user) else []
        parts = np.split(rows, cuts, axis=1)
        return {name: part.copy() for name, part in zip(names, parts, strict=False)}

    def _known(self, users: Iterable[Id]) -> list[Id]:
        asked = list(users)
        at = np.searchsorted(self.marks[:, 0], hashed := self._hashed(asked))
        there = at < len(self.marks)
        there[there] = self.marks[at[there], 0] == hashed[there]
        return [user for user, known in zip(asked, there, strict=True) if known]

    def _hashed(self, users: Iterable[Id]) -> Any:
        """Return the hash of each id. [n]; 1 and "1" differ in nearly all keys"""
        import pyarrow

        out = []
        for user in users:
            kind = pyarrow.large_string() if isinstance(user, str) else pyarrow.int64()
            try:
                out.append(hashes(pyarrow.array([user], kind), self.key)[0])
            except OverflowError:  # a number that no column of the log can hold
                out.append(np.uint64(secrets.randbits(64)))
        return np.array(out, np.uint64)

    def _marked(self, owned: Mapping[Id, Owned], slots: Mapping[Id, int]) -> Marks:
        """Return the marks of users with these records. [n, 2]"""
        lot = self.lot(owned.values())
        used = set(lot.item.tolist())
        item = {slot: item for item, slot in slots.items() if slot in used}
        names = np.zeros(1 + max(used, default=0), np.uint64)
        names[list(item)] = self._hashed(item.values())
        return np.stack([self._hashed(owned), marks_of(lot, names, self.key)], axis=1)


def summed(
    model: Any,
    source: Any,
    columns: Mapping[str, str] | None,
    engine: Any,
    spill: str | Path | None,
) -> tuple[LogLedger, Tensor]:
    """Sum a log with the settings of a model; return who has what, and the sum."""
    executor, log = executor_of(engine), Log.opened(source, columns, model.timed)
    pieces, key = log.pieces(), secrets.randbits(64)
    rows = sum(piece.rows for piece in pieces)
    partitions = max(1, -(-rows // PARTITION))
    empty = type(model)(**model.get_params())
    with tempfile.TemporaryDirectory(prefix="rescind-", dir=spill) as name:
        folder = Path(name)
        tasks = [(log.columns, piece, folder, partitions, key) for piece in pieces]
        items: Any = None
        for done in results(executor, scatter, tasks, PARTS):
            items = _united(items, done.items)
        model._must_fit(items)
        write_items(folder, items)
        cuts = list(groups(partitions, PARTS if executor else 1))
        work = [(empty, folder, len(pieces), number, cut, key) for number, cut in enumerate(cuts)]
        total = Total()
        for part in results(executor, part_of, work, _at_a_time(model, len(items))):
            total.add(part)
    total.finish(rows)
    marks = np.concatenate(total.marks)
    marks = marks[np.argsort(marks[:, 0], kind="stable")]
    slot = {item: n for n, item in enumerate(items.to_pylist())}
    owners: Ints = np.require(total.owners, requirements="W")
    book = LogLedger(model.timed, {}, slot, owners, log, key, marks)
    return book, torch.from_numpy(np.require(total.total, requirements="W"))


def packed(model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what a file holds of a model that was fitted on a log: the sum, and marks of users."""
    book, made = model._ledger, model._from_sum()
    assert isinstance(book, LogLedger)
    tensors = {
        "items": ids_as_bytes(made["items"]),
        "owners": torch.from_numpy(book.owners[made["slot"]]),
        "marks": torch.from_numpy(book.marks.view(np.int64)),
        "total": model._in_order(made["slot"]),
    }
    return tensors, {**model._notes(), "key": str(book.key)}


SAVED: Schema = {
    "items": Ids(),
    "owners": Values(torch.int64, ("items",), 1),
    "marks": Values(torch.int64, ("people", 2)),
}


def unpacked(
    tensors: Mapping[str, Tensor],
    notes: Mapping[str, str],
    source: Any,
    columns: Mapping[str, str] | None,
    model: Any,
) -> tuple[LogLedger, Tensor]:
    """Return who has what and the sum from a file of `packed`. source: the log, or None"""
    items = len(ids_from_bytes(tensors["items"]))
    most = float(UNIT * len(tensors["marks"]))  # what each person adds at most
    sums = {"total": Values(torch.int64, model._shape(items), 0, most + 1)}
    held = fitting(tensors, {**SAVED, **sums})
    marks, key = held["marks"].numpy().view(np.uint64), int(notes["key"])
    must(bool((marks[1:, 0] >= marks[:-1, 0]).all()), "marks are not sorted")
    must(0 <= key < 2**64 and max(held["owners"], default=0) <= len(marks), "too large a number")
    log = None if source is None else Log.opened(source, columns, model.timed)
    slot = {item: n for n, item in enumerate(held["items"])}
    owners = held["owners"].numpy().copy()
    return LogLedger(model.timed, {}, slot, owners, log, key, marks), held["total"]


def _united(items: Any, more: Any) -> Any:
    """Return the distinct items of two Arrow arrays, sorted."""
    import pyarrow

    both = more if items is None else pyarrow.concat_arrays([items, more])
    return both.unique().sort()


def _at_a_time(model: Any, items: int) -> int:
    """Return how many sums may wait for being added: half of the free memory holds them."""
    free = free_memory()
    size = 8 * int(np.prod(model._shape(items)))
    return PARTS if free is None else max(2, min(PARTS, free // 2 // max(size, 1)))


# -- here, or on the workers of an engine ---------------------------------------------------------


def executor_of(engine: Any) -> Executor | None:
    """Return what runs tasks, None for this process; a Dask client gives one by `get_executor`."""
    if engine is None:
        return None
    made = engine.get_executor() if hasattr(engine, "get_executor") else engine
    if not hasattr(made, "submit") or not hasattr(made, "shutdown"):
        raise ConfigError(f"engine is a {type(engine).__name__}; give an executor or Dask client.")
    return made


def results(
    executor: Executor | None, work: Callable[..., Made], tasks: Sequence[tuple], most: int
) -> Iterator[Made]:
    """Yield work(*task) of every task, in the order in which they end.

    Tasks may run more than once. most: those that are with the engine at a time
    """
    if executor is None:
        yield from (work(*task) for task in tasks)
        return
    left = list(reversed(tasks))
    running: set[Future[Made]] = set()
    try:
        while left or running:
            while left and len(running) < most:
                running.add(executor.submit(work, *left.pop()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except RescindError:
        raise
    except Exception as error:
        raise DataError(f"the engine gave up: {type(error).__name__}: {error}.") from error
    finally:
        for future in running:
            future.cancel()
