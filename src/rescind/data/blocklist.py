"""Rows that must not be learnt again: erased, or taken back.

The ledger of the home lists them (table `departure`), because the file of a dataset may still
contain them: every load, run and silo leaves them out. Digests are under a secret of the home
(`keys.erasure_key`); without it they do not show whom they mean. People and items go by original
id, because data that grows may number them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.labels import Labels, left, removed
from rescind.data.dataset import Dataset
from rescind.home.ledger import Ledger, departed, keyed_digest
from rescind.privacy import keys

if TYPE_CHECKING:
    from torch import Tensor

    from rescind.core.cohort import Graph
    from rescind.core.holdings import Holdings
    from rescind.core.records import Arrive, Event, Records, Share

Array = NDArray[Any]
LISTS = ("people", "erased", "unshared", "withdrawn", "graph")


def erased_elsewhere(dataset: Dataset) -> dict[str, int]:
    """Return how many rows of a dataset are on the lists of others, by their names.

    A list counts for its own name: the same ids may be other people elsewhere.
    """
    ledger = Ledger.there()
    if ledger is None:
        return {}
    with ledger:
        names = [n for n in ledger.datasets() if n != dataset.name and ":" not in n]
        lists = {name: Blocklist.of_dataset(name) for name in names}
    found = {name: len(dataset) - len(listed.left_of(dataset)) for name, listed in lists.items()}
    return {name: rows for name, rows in found.items() if rows}


def of_run(name: str) -> str:
    """Return the name under which the ledger lists what a run on published data leaves out."""
    return f"run:{name}"


@dataclass(frozen=True)
class Blocklist:
    """Digests of users with requests, of erased records and of unshared records."""

    people: frozenset[str] = frozenset()
    """Users with at least one record here: only their rows must be compared."""
    erased: frozenset[str] = frozenset()
    unshared: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()
    """Users who left: all their rows are left out, also those that a run did not use."""
    graph: frozenset[str] = frozenset()
    """Nodes, labels and edges of a graph, by the numbers of nodes: clients are parts that a run
    may draw anew."""
    _key: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def of_dataset(cls, name: str, home: Path | None = None) -> Blocklist:
        """Read the list of a dataset, or of a run (`of_run`); empty if there is none.

        home: another one than this user's, as each silo has one
        """
        lists: dict[str, Any] = {**departed(name, home)}
        return cls(**lists, _key=keys.erasure_key()) if lists else cls()

    def add_to(self, name: str, home: Path | None = None) -> None:
        """Add the rows of this list to the list of a dataset."""
        with Ledger.open(home) as ledger:
            ledger.depart(name, {n: getattr(self, n) for n in LISTS})

    @property
    def nbytes(self) -> int:
        """Return the size of the digests on this list."""
        return sum(len(digest) for n in LISTS for digest in getattr(self, n))

    def __or__(self, other: Blocklist) -> Blocklist:
        both = {n: getattr(self, n) | getattr(other, n) for n in LISTS}
        return Blocklist(**both, _key=self._key or other._key)

    def __bool__(self) -> bool:
        return bool(self.erased or self.unshared or self.withdrawn or self.graph)

    def after(self, event: Event, records: Records, labels: Labels) -> Blocklist:
        """Return the list with one more request. records: those that the request removed"""
        from rescind.core.records import Erase, Unshare, Withdraw  # torch

        users = [labels.user_id(c) for c in records.client.tolist()]
        items = [labels.item_id(i) for i in records.item.tolist()]
        if isinstance(event, Withdraw):
            return self.with_erased(users, items).with_withdrawn(labels.user_id(event.client))
        if isinstance(event, Erase):
            return self.with_erased(users, items)
        assert isinstance(event, Unshare)
        listed = Blocklist().with_erased(users, items)
        return self | replace(listed, erased=frozenset(), unshared=listed.erased)

    def digest_of(self, user: str) -> str:
        """Return the digest under which a user stands on a list."""
        return keyed_digest(self._key or keys.erasure_key(), user)

    def with_withdrawn(self, user: str) -> Blocklist:
        """Return the list with a user who left, given by original id."""
        key = self._key or keys.erasure_key()
        who = {keyed_digest(key, user)}
        return replace(self, people=self.people | who, withdrawn=self.withdrawn | who, _key=key)

    def has_withdrawn(self, user: str) -> bool:
        """Return whether all rows of a user, given by original id, are left out."""
        return bool(self.withdrawn) and keyed_digest(self._key, user) in self.withdrawn

    def with_erased(self, users: Sequence[str], items: Sequence[str]) -> Blocklist:
        """Return the list with erased rows, given by original ids."""
        key = self._key or keys.erasure_key()
        people = self.people | {keyed_digest(key, u) for u in users}
        pairs = frozenset(keyed_digest(key, u, i) for u, i in zip(users, items, strict=True))
        return replace(self, people=people, erased=self.erased | pairs, _key=key)

    def with_lost(self, before: Graph, after: Graph) -> Blocklist:
        """Return the list with the nodes, labels and edges that a graph has lost."""
        key = self._key or keys.erasure_key()
        lost = _contents(before) - _contents(after)
        gone = {int(what[1]) for what in lost if what[0] == "node"}
        kept = (what for what in lost if what[0] == "node" or not gone & {*what[1:]})
        new = {keyed_digest(key, *what) for what in kept}
        return replace(self, graph=self.graph | new, _key=key)

    def left(self, user: str, labels: Labels) -> bool:
        """Return whether this user made a request and is not a member any more."""
        return self.has_asked(user) and user not in labels.users

    def covers(self, other: Blocklist) -> bool:
        """Return whether all of another list is on this one, or of users who left by this one."""
        if other.people and other.people <= self.withdrawn:
            return True
        return all(getattr(self, n) >= getattr(other, n) for n in LISTS)

    def has_asked(self, user: str) -> bool:
        """Return whether this user, given by original id, made a request."""
        return bool(self._key) and keyed_digest(self._key, user) in self.people

    def has_erased(self, user: str, item: str) -> bool:
        """Return whether this row, given by original ids, was erased."""
        return bool(self._key) and keyed_digest(self._key, user, item) in self.erased

    def left_of(self, dataset: Dataset) -> Dataset:
        """Return the dataset without the erased rows, and without ids that only they had."""
        if not (self.erased or self.withdrawn):
            return dataset
        gone = self._rows(self.erased, dataset.user, dataset.item, dataset.users, dataset.items)
        if not gone.any():
            return dataset
        return without_rows(dataset, gone)

    def without_erased(
        self, holdings: Holdings, users: Sequence[str] = (), items: Sequence[str] = ()
    ) -> Holdings:
        """Return holdings without erased records and people who left.

        users, items: what names each number; a graph needs neither
        """
        if holdings.graph is not None:
            return self._left_of_graph(holdings, holdings.graph)
        import torch

        records = holdings.records
        gone = self.listed(records, users, items)
        if not bool(gone.any()):
            return holdings
        kept = holdings.keep(~gone.to(records.client.device))
        nobody = torch.isin(records.client[gone], kept.records.client, invert=True)
        members = kept.members.clone()
        members[records.client[gone][nobody]] = False
        return replace(kept, members=members)

    def left_of_block(self, block: Arrive, users: Sequence[str], items: Sequence[str]) -> Arrive:
        """Return a block without erased records and people who left."""
        kept = ~self.listed(block.records, users, items)
        return replace(block, records=block.records[kept], split=block.split[kept])

    def listed(self, records: Records, users: Sequence[str], items: Sequence[str]) -> Tensor:
        """Return which records are erased, or of people who left. [n] bool

        users, items: what names each number
        """
        import torch

        if not (self.erased or self.withdrawn):
            return torch.zeros(len(records), dtype=torch.bool)
        client, item = (column.cpu().numpy() for column in (records.client, records.item))
        named = np.array(users, dtype=object), np.array(items, dtype=object)
        return torch.from_numpy(self._rows(self.erased, client, item, *named))

    def _left_of_graph(self, holdings: Holdings, graph: Graph) -> Holdings:
        """Return holdings without the listed nodes, labels and edges."""
        if not self.graph:
            return holdings
        import torch

        def listed(kind: str, *columns: Tensor) -> Tensor:
            rows = zip(*(column.tolist() for column in columns), strict=True)
            found = [keyed_digest(self._key, kind, *row) in self.graph for row in rows]
            return torch.tensor(found, dtype=torch.bool)

        records, ends = holdings.records, graph.index[graph.edge]
        edge = graph.edge[:, ~listed("edge", ends.amin(0), ends.amax(0))]
        unknown, gone = listed("label", graph.index), listed("node", graph.index)
        label = torch.where(unknown, -1, graph.label)
        kept = replace(graph, edge=edge, label=label).keep(~gone)
        out = torch.isin(records.item, graph.index[unknown | gone])
        nobody = torch.isin(graph.owner[gone], kept.owner, invert=True)
        members = holdings.members.clone()
        members[graph.owner[gone][nobody]] = False
        return replace(holdings.keep(~out), graph=kept, members=members)

    def left_of_loan(self, event: Share, labels: Labels) -> Share:
        """Return the shared records without those that were unshared."""
        import torch

        from rescind.core.records import Share

        if not self.unshared:
            return event
        user, item = (c.numpy() for c in (event.records.client, event.records.item))
        gone = self._rows(self.unshared, user, item, np.array(labels.users), np.array(labels.items))
        return Share(event.records[torch.from_numpy(~gone)])

    def _rows(
        self, listed: frozenset[str], user: Array, item: Array, users: Array, items: Array
    ) -> Array:
        """Return which rows are on the list, or of users who left. [n] bool"""
        who = [keyed_digest(self._key, u) for u in users.tolist()]
        known = np.array([one in self.people for one in who], dtype=bool)
        gone = np.array([one in self.withdrawn for one in who], dtype=bool)
        found = known[user] if len(known) else np.zeros(len(user), dtype=bool)
        rows = np.flatnonzero(found)
        found[rows] = [
            bool(gone[u]) or keyed_digest(self._key, users[u], items[i]) in listed
            for u, i in zip(user[rows].tolist(), item[rows].tolist(), strict=True)
        ]
        return found


def without_rows(dataset: Dataset, gone: Array) -> Dataset:
    """Return a dataset without some rows, and without ids that only they had. gone: [n] bool"""
    kept = dataset.select(~gone)
    users = _unnamed(kept.users, dataset.user[gone], kept.user, left)
    items = _unnamed(kept.items, dataset.item[gone], kept.item, removed)
    about = {"titles": kept.titles, "genres": kept.genres}
    named: dict[str, Any] = {
        name: None if texts is None else np.where(items == kept.items, texts, "")
        for name, texts in about.items()
    }
    return replace(kept, users=users, items=items, **named)


def _unnamed(ids: Array, gone: Array, kept: Array, stand_in: Callable[[int], str]) -> Array:
    """Replace ids that had rows and have none any more."""
    nobody = np.setdiff1d(gone, kept)
    if not len(nobody):
        return ids
    named = ids.tolist()
    for index in nobody.tolist():
        named[index] = stand_in(index)
    return np.array(named)


def _contents(graph: Graph) -> set[tuple[str | int, ...]]:
    """Return the nodes, known labels and edges of a graph, by the numbers of nodes."""
    ends = graph.index[graph.edge]
    found: set[tuple[str | int, ...]] = {("node", n) for n in graph.index.tolist()}
    found |= {("label", n) for n in graph.index[graph.label >= 0].tolist()}
    return found | {("edge", *pair) for pair in ends[:, ends[0] < ends[1]].T.tolist()}
