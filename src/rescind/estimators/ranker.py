"""The verbs of every estimator that ranks: fit, add, forget, recommend, evaluate, save, load.

A model is a function of whole-number sums and settings, and the sums are a function of the records.
So adding and forgetting change the sums by the parts of the users concerned, and nothing else.
Weights are solved from the sums, in the order of the original ids, at the first recommendation
after a change: they are bit for bit those of a fit on what remains, and there is no other path.
"""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Cohort, Lot
from rescind.core.files import write_atomically
from rescind.core.saved import ids_as_bytes, reading
from rescind.core.settings import whole
from rescind.core.tasks.metrics import Ranking, top_k
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.estimators.frames import Frame, Id, Ints, ids_that_read, in_order, plain_id, read
from rescind.estimators.ledger import Change, Ledger, Owned, ids_of, unpacked_records
from rescind.estimators.log_ledger import packed, summed, unpacked
from rescind.estimators.logs import is_log
from rescind.estimators.settings import Settings
from rescind.estimators.state import State, Stateful
from rescind.methods.additive.gram import Gram

AT_ONCE = 1024
"""Users scored at once; changes speed and memory only."""


def _tell_fitted(fitted: int, of: int) -> None:
    """Warn of held-out records that the model knows; refuse if there are no others."""
    told = f"{fitted:,} of {of:,} held-out records are in the fit: own items are not ranked"
    if fitted == of:
        raise DataError(f"{told}. Give others.")
    warnings.warn(f"{told}, so they count as missed.", stacklevel=3)


class Recommended(NamedTuple):
    """An item under its original id, and its score."""

    item: Id
    score: float


@dataclass(kw_only=True, eq=False, repr=False)
class Ranker(Settings, Stateful[Ledger], ABC):
    """An estimator that ranks items for people, from sums over people."""

    timed: ClassVar[bool] = False
    """Whether the order of a user's records counts."""

    def __post_init__(self) -> None:
        self._state = State(Ledger(self.timed))

    # -- what a learner says -----------------------------------------------------------------------

    @abstractmethod
    def _method(self) -> Gram:
        """Return the method of a federation with these settings, or raise if they are wrong."""

    @abstractmethod
    def _counting(self) -> Any:
        """Return the settings that change the sum."""

    @abstractmethod
    def _shape(self, slots: int) -> tuple[int, ...]:
        """Return the shape of a sum. More slots only append rows."""

    @abstractmethod
    def _count(self, total: Tensor, lot: Lot, sign: int) -> None:
        """Add the parts of a lot to a sum, or subtract them, in place."""

    @abstractmethod
    def _in_order(self, slot: Ints) -> Tensor:
        """Return the sum of the items in these slots, in this order."""

    @abstractmethod
    def _solve(self, total: Tensor) -> Tensor:
        """Return the weights from a sum in order. [I, I]"""

    @abstractmethod
    def _scores(self, weights: Tensor, lot: Lot) -> Tensor:
        """Return the scores of all items for each owner of a lot. [C, I]"""

    # -- learning and forgetting -------------------------------------------------------------------

    def fit(
        self,
        frame: Any,
        *,
        columns: Mapping[str, str] | None = None,
        engine: Any = None,
        spill: str | Path | None = None,
    ) -> Self:
        """Learn the records of a frame, instead of all earlier ones.

        frame: pandas, polars, Arrow, a mapping of columns, tuples (user, item, time), a scipy
        sparse matrix of users by items, or `rs.load(...)`; or a log that need not fit into memory:
        a path, pattern or list of Parquet files, or a `pyarrow.dataset` (docs/logs.md)
        columns: which column is user, item and time, if their names do not say so; later frames
        with such columns are read in the same way
        engine: for a log, who computes: this process, a Dask client, or any executor of
        `concurrent.futures`
        spill: for a log, a folder for temporary files, which all workers see; default: a new one
        """
        if is_log(frame):
            fitted = self._empty()._of_log(summed(self, frame, columns, engine, spill))
            fitted._state.columns = dict(columns or {})
            self._state = fitted._state
            return self
        if engine is not None or spill is not None:
            raise ConfigError("engine and spill are for logs in Parquet files. Leave them out.")
        records = read(frame, columns, self.timed)
        self._must_fit(records.items)
        fitted = self._empty()
        fitted._state.columns = dict(columns or {})
        self._state = fitted._add(records)._state
        return self

    def _of_log(self, learnt: tuple[Ledger, Tensor]) -> Self:
        self._state = State(*learnt, self._counting())
        return self

    def _empty(self) -> Self:
        """Return an estimator with these settings that has learnt nothing."""
        empty = copy(self)
        empty.__post_init__()
        return empty

    def add(self, frame: Any, *, columns: Mapping[str, str] | None = None) -> Self:
        """Learn more records: as if all had been there from the start, bit for bit."""
        records = read(frame, columns, self.timed, self._state.columns)
        self._must_fit({*self._ledger.slot, *records.items})
        return self._add(records)

    def forget(
        self,
        users: Iterable[Id] = (),
        items: Iterable[Id] = (),
        records: Any = None,
        *,
        columns: Mapping[str, str] | None = None,
        ledger: Path | str | bool = False,
        data: str = "estimator",
    ) -> Any:
        """Forget users, items and single records: as if they had never been there, bit for bit.

        records: a frame as in `fit`; all copies of a pair of user and item go, whatever their time
        ledger: a home (True: that of RESCIND_HOME). The users leave `data` by a request that it
        keeps, and their signed receipt is returned; without one, the estimator itself
        Raises `DataError` and changes nothing if one of them is not there.
        """
        if ledger:
            from rescind.requests.estimators import forget_with_receipt

            return forget_with_receipt(self, users, ledger, data, self._file)
        named = None if records is None else read(records, columns, usual=self._state.columns)
        people, things = ids_of(users, "users", "records"), ids_of(items, "items", "records")
        if not people and not things and not named:
            raise ConfigError("nothing to forget. Name users, items or records.")
        self._change(self._ledger.without(people, things, named))
        return self

    def _must_fit(self, items: Collection[Id]) -> None:
        self._method().must_fit(len(items))

    def _add(self, records: Frame) -> Self:
        self._change(self._ledger.with_(records))
        return self

    def _change(self, change: Change) -> None:
        """Replace what users have, and their parts in the sum."""
        if self._ledger.whole:
            self._change_in_place(change)
            return
        beside, state = copy(self), self._state
        beside._state = replace(state, book=replace(state.book), total=state.total.clone())
        beside._change_in_place(change)
        self._state = beside._state

    def _change_in_place(self, change: Change) -> None:
        """Change ledger and sum. After an interrupt the sum is counted again (`State`)."""
        state = self._state
        counted = state.change(change)
        book = self._ledger
        # Two parts of most users take longer than one part of everybody.
        most = book.whole and 2 * len(change.before) > len(book.of)
        if most or counted is None or counted != self._counting():
            self._recount()
            return
        shape = self._shape(book.slots)
        if shape != state.total.shape:
            grown = torch.zeros(shape, dtype=torch.int64)
            grown[: len(state.total)] = state.total
            state.total = grown
        for owned, sign in ((change.before, -1), (change.after, 1)):
            if parts := [own for own in owned.values() if own.shape[1]]:
                self._count(state.total, book.lot(parts), sign)
        state.counted_by = counted

    def _recount(self) -> None:
        book, state = self._ledger, self._state
        book.must_be_whole("counting everybody again")
        state.counted_by, state.made = None, {}
        state.total = torch.zeros(self._shape(book.slots), dtype=torch.int64)
        self._count(state.total, book.lot(book.of.values()), 1)
        state.counted_by = self._counting()

    # -- what is made from the sum ---------------------------------------------------------------

    def _from_sum(self) -> dict[str, Any]:
        """Return what was made from the sum; nothing if settings have changed since."""
        settings, book, state = self._method(), self._ledger, self._state
        if state.counted_by is None or state.counted_by != self._counting():
            self._recount()
        if state.made.get("settings") != settings:
            items, place = book.order()
            slot = np.array([book.slot[each] for each in items], np.int64)
            state.made = {"settings": settings, "items": items, "slot": slot, "place": place}
        return state.made

    def _weights(self) -> Tensor:
        made = self._from_sum()
        if "weights" not in made:
            made["weights"] = self._solve(self._in_order(made["slot"]))
        return made["weights"]

    def digest(self) -> str:
        """Return the SHA-256 of the sum and its items, whatever order records came and went in.

        Who has the remaining records gets the same digest from a new `fit`.
        """
        made = self._from_sum()
        if "digest" not in made:
            total = self._in_order(made["slot"])
            made["digest"] = params.digest(
                {"items": ids_as_bytes(made["items"]), type(self).__name__: total}
            )
        return made["digest"]

    def holding(self, user: str) -> list[Id] | None:
        """Return the items of a user whose id reads so; None if there is nobody."""
        book = self._ledger
        known = next((one for one in ids_that_read(user) if one in book.of), None)
        if known is None:
            return None
        item = {slot: item for item, slot in book.slot.items()}
        return [item[slot] for slot in book.owned_by([known])[known][0].tolist()]

    def drop(self, users: Iterable[str], pairs: Collection[tuple[str, str]] | None) -> None:
        """Forget users whose ids read so; pairs: only these of their records"""
        book = self._ledger
        if pairs is None:
            self.forget([one for user in users for one in ids_that_read(user) if one in book.of])
            return
        self.forget(
            records=[
                (u, i)
                for user, item in pairs
                for u in ids_that_read(user)
                for i in ids_that_read(item)
                if u in book.of and i in book.slot
            ]
        )

    @property
    def users(self) -> list[Id]:
        """Return the original ids of all users, in order."""
        self._ledger.must_be_whole("a list of all users")
        return in_order(self._ledger.of)

    @property
    def items(self) -> list[Id]:
        """Return the original ids of all items that somebody has, in order."""
        return in_order(self._ledger.slot)

    def __len__(self) -> int:
        """Return the number of records: distinct pairs of user and item."""
        return self._ledger.records

    # -- using it ----------------------------------------------------------------------------------

    def recommend(
        self, user: Id | None = None, k: int = 10, *, history: Iterable[Id] | None = None
    ) -> list[Recommended]:
        """Return the k best items that a user does not have, best first.

        If nobody else has any of their items, all scores are 0, and the order says nothing.
        history: items of somebody who is not a user here, oldest first; unknown ones do not count
        """
        if (user is None) == (history is None):
            raise ConfigError("give a user or a history: recommend('ann'), recommend(history=...).")
        if whole("k", k) < 1:
            raise ConfigError(f"k must be 1 or more; got {k}.")
        book = self._ledger
        if user is not None:
            user = plain_id(user, "user")
            book.find(user, "user", then="")
            own = book.owned_by([user])[user]
        else:
            own = self._known(ids_of(history, "history"))
        weights, made = self._weights(), self._from_sum()
        lot = book.lot([own], made["place"])
        scores = self._scores(weights, lot)
        best = top_k(scores.clone(), lot, min(k, scores.shape[1]))[0].tolist()
        return [Recommended(made["items"][i], float(scores[0, i])) for i in best if i >= 0]

    def _known(self, history: list[Id]) -> Owned:
        """Return the known items of a history as a user would have them."""
        first = {item: n for n, item in reversed(list(enumerate(history)))}
        known = sorted(
            (self._ledger.slot[i], n) for i, n in first.items() if i in self._ledger.slot
        )
        if not known:
            raise DataError(f"none of the {len(history)} items of the history is known here.")
        return np.array(known, np.int64).T[: 1 + self.timed].copy()

    def evaluate(
        self,
        frame: Any,
        k: int | tuple[int, ...] = 20,
        *,
        columns: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Rank all items for each user of a frame of held-out records; return the means.

        Own items are not ranked, so held-out records that are in the fit count as missed: a warning
        tells how many. Users who are not known have no list and do not count; held-out items that
        are not known count as missed.
        """
        held = read(frame, columns, usual=self._state.columns)
        metric = Ranking(k=(k,) if isinstance(k, int) else tuple(k))
        weights, made, book = self._weights(), self._from_sum(), self._ledger
        new = [i for i in held.items if i not in book.slot]
        number = {item: n for n, item in enumerate([*made["items"], *new])}
        item = np.array([number[i] for i in held.items], np.int64)[held.item]
        pairs = np.unique(np.stack([held.user, item]), axis=1)
        owned = book.owned_by(held.users)
        known = [n for n, user in enumerate(held.users) if user in owned]
        if not known:
            raise DataError("no user of the held-out records is known. Give users of `fit`.")
        total, fitted, held_out = Sum({}, 0.0, 0), 0, 0
        for begin in range(0, len(known), AT_ONCE):
            chunk = np.array(known[begin : begin + AT_ONCE])
            mine = pairs[:, np.isin(pairs[0], chunk)]
            asked = Lot(
                torch.from_numpy(np.searchsorted(chunk, mine[0])),
                torch.from_numpy(mine[1].copy()),
                len(chunk),
            )
            own = book.lot([owned[held.users[n]] for n in chunk], made["place"])
            scores = torch.nn.functional.pad(
                self._scores(weights, own), (0, len(new)), value=-torch.inf
            )
            ids = torch.from_numpy(chunk)
            both = (lot.owner * len(number) + lot.item for lot in (asked, own))
            fitted, held_out = fitted + int(torch.isin(*both).sum()), held_out + len(asked.item)
            cohort = Cohort(ids, len(number), own, own, held=asked)
            totals, people = metric.totals(scores, cohort, own)
            total = total + Sum(totals, float(people), people)
        if fitted:
            _tell_fitted(fitted, held_out)
        return metric.finish(total.totals, total.weight)

    def _strongest(self, weights: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k largest weights of each item above 0: (item, neighbour, weight)."""
        items = weights.shape[-1]
        value, place = weights.reshape(-1, items, items).sum(0).topk(k, dim=1)
        row, column = (value > 0).nonzero().unbind(1)
        return row, place[row, column], value[row, column]

    def write_neighbours(self, path: str | Path, k: int = 50) -> None:
        """Write the k items that each item speaks for most as Parquet: item, neighbour, weight.

        The score of a neighbour for a user is about the sum of its weights at the user's items.
        """
        import pyarrow
        import pyarrow.parquet

        items = self._from_sum()["items"]
        if len({type(each) for each in items}) > 1:
            raise DataError("ids of items are text and numbers, but a Parquet column has one type.")
        row, column, value = self._strongest(self._weights(), min(k, len(items)))
        named = np.array(items, dtype=object)
        table = pyarrow.table(
            {
                "item": pyarrow.array(named[row].tolist()),
                "neighbour": pyarrow.array(named[column].tolist()),
                "weight": pyarrow.array(value.numpy()),
            }
        )
        made = io.BytesIO()
        pyarrow.parquet.write_table(table, made)
        write_atomically(Path(path), made.getvalue(), private=True)

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write settings and records to one file, which only its owner may read. No pickle.

        Sums and weights are functions of these and are not stored. Records are in the order of
        their ids: the file is that of a new `fit` on what remains. After a fit on a log, the sum
        and 16 bytes per user are stored instead of records.
        """
        params.save(Path(path), *(self._packed() if self._ledger.whole else packed(self)))
        self._file = str(path)

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        return self._ledger.packed(), self._notes()

    @classmethod
    def load(
        cls, path: str | Path, *, log: Any = None, columns: Mapping[str, str] | None = None
    ) -> Self:
        """Read a saved estimator, and count its records again.

        log: after a fit on a log, the log as the model knows it, to forget people of it
        """
        with reading(path):
            made, tensors, notes = cls._stored(Path(path))
            if "marks" in tensors:
                return made._of_log(unpacked(tensors, notes, log, columns, made))
            if log is not None:
                raise ConfigError(f"{path} holds its own records and needs no log. Leave log out.")
            return made._add(unpacked_records(tensors, cls.timed))
