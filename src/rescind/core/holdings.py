"""The clients' data: records, splits, which records are shared, and cohorts made from them.

Holdings stay on the client side. The server gets no reference to them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Cohort, Graph, Lot
from rescind.core.records import (
    FEW,
    Arrive,
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Join,
    Records,
    Share,
    Unshare,
    Withdraw,
)
from rescind.errors import ConfigError, ConsentError, DataError

TRAIN, VALID, TEST = 0, 1, 2
SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}
LOTS = 2
"""Number of cohorts whose items are cached, of each kind."""
GRAPHS = 4
"""Number of cohorts whose subgraphs are cached: two roles, and two for evaluation."""


@dataclass(frozen=True)
class Holdings:
    """The data of all clients. Immutable: `apply` returns new holdings."""

    records: Records
    """Sorted by client."""
    split: Tensor
    """[n] int8: 0 train, 1 valid, 2 test."""
    block: Tensor
    """[n] int16: the block each record came in."""
    lent: Tensor
    """[n] bool: shared, so the server has a copy."""
    members: Tensor
    """[clients] bool"""
    items: int
    now: int = 0
    """The current block."""
    task: str = "ranking"
    """"ranking", "next_item" (a ranking whose records have an order) or "nodes"."""
    graph: Graph | None = None

    @classmethod
    def of(
        cls,
        records: Records,
        split: Tensor,
        clients: int,
        items: int,
        task: str = "ranking",
        graph: Graph | None = None,
    ) -> Holdings:
        """Make initial holdings: block 0, every client is a member, nothing is shared."""
        _check(records, split, clients, items)
        order = torch.argsort(records.client, stable=True)
        n = len(records)
        return cls(
            records=records[order],
            split=split[order].to(torch.int8),
            block=torch.zeros(n, dtype=torch.int16),
            lent=torch.zeros(n, dtype=torch.bool),
            members=torch.ones(clients, dtype=torch.bool),
            items=items,
            task=task,
            graph=graph,
        )

    @property
    def clients(self) -> int:
        """Return the number of clients, members or not."""
        return len(self.members)

    def to(self, device: str | torch.device) -> Holdings:
        """Copy the holdings to another device."""
        return replace(
            self,
            records=self.records.to(device),
            split=self.split.to(device),
            block=self.block.to(device),
            lent=self.lent.to(device),
            members=self.members.to(device),
            graph=None if self.graph is None else self.graph.to(device),
        )

    # -- lots and cohorts ------------------------------------------------------------------------

    def lot(self, name: str, block: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct items of all clients: (first [clients], count [clients], item [n]).

        name: "own" (training records), "unshared" (training records that are not shared), "known"
        (training and validation records: the history before the test item), "valid", "test".
        `block` is ignored for training records: only the current block has any.
        """
        key = (name, block if block is not None and name in ("valid", "test") else self.now)
        if key not in self._lots:
            self._lots[key] = self._build(*key)
        return self._lots[key]

    @cached_property
    def _last(self) -> dict[tuple[str, int], list[tuple[Tensor, Lot]]]:
        return {}

    @cached_property
    def _graphs(self) -> list[tuple[Tensor, Graph]]:
        return []

    @cached_property
    def _lots(self) -> dict[tuple[str, int], tuple[Tensor, Tensor, Tensor]]:
        return {}

    def _build(
        self, name: str, block: int, rows: Tensor | slice = slice(None)
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Make a lot. rows: only of these records"""
        records = self.records if isinstance(rows, slice) else self.records[rows]
        pairs = torch.unique(records[self._mask(name, block, rows)].pairs())
        client, item = pairs >> 31, pairs & (2**31 - 1)
        count = jagged.counts(client, self.clients)
        return jagged.starts(count), count, item

    def with_lots_of(self, before: Holdings, clients: Tensor) -> Holdings:
        """Take over the lots that were made before a change of these clients; return itself.

        Only their items are listed anew, so that one client costs little in a large federation.
        """
        if len(clients) > FEW or before.clients != self.clients:
            return self
        rows, clients = self.records.rows_of(clients), clients.to(self.members.device)
        for key, (first, count, item) in before._lots.items():
            start, many, new = self._build(*key, rows)
            pieces, end = [], 0
            for client in clients.tolist():
                begin, here = int(first[client]), int(start[client])
                pieces += [item[end:begin], new[here : here + int(many[client])]]
                end = begin + int(count[client])
            after = count.index_copy(0, clients, many[clients])
            self._lots[key] = (jagged.starts(after), after, torch.cat([*pieces, item[end:]]))
        return self

    def _mask(self, name: str, block: int, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return which of these records are in a lot; training records are of the current block."""
        split, came = self.split[rows], self.block[rows]
        now = came == self.now
        match name:
            case "own":
                return now & (split == TRAIN)
            case "unshared":
                return now & (split == TRAIN) & ~self.lent[rows]
            case "known":
                return now & (split != TEST)
            case "valid" | "test":
                return (came == block) & (split == SPLITS[name])
        raise ConfigError(f"there is no lot '{name}'. Use own, unshared, known, valid or test.")

    @cached_property
    def _known_marks(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        return {}

    def _marks(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return when each item of a lot of training records first came, and its best rating."""
        if name not in self._known_marks:
            records = self.records[self._mask(name, self.now)]
            pairs, place = torch.unique(records.pairs(), return_inverse=True)
            time = torch.full_like(pairs, torch.iinfo(pairs.dtype).max)
            time.scatter_reduce_(0, place, records.time, "amin")
            rating = None
            if records.rating is not None:
                best = torch.full_like(pairs, torch.iinfo(pairs.dtype).min)
                rating = best.scatter_reduce_(0, place, records.rating.long(), "amax")
            self._known_marks[name] = time, rating
        return self._known_marks[name]

    def cohort(
        self,
        ids: Tensor,
        include_lent: bool = True,
        held: str | None = None,
        block: int | None = None,
        ordered: bool = False,
    ) -> Cohort:
        """Return these clients as a cohort, with training items and optionally held-out items.

        ordered: training items also have their times and ratings
        """
        name = "known" if self.task == "next_item" and held == "test" else "own"
        own = self.of_clients(name, ids, block, ordered)
        train = self.of_clients("own" if include_lent else "unshared", ids, block, ordered)
        return Cohort(
            ids=ids,
            items=self.items,
            train=train,
            own=own,
            held=None if held is None else self.of_clients(held, ids, block),
            weight=torch.ones(len(ids), device=ids.device),
            graph=self._subgraph(ids),
        )

    def _subgraph(self, ids: Tensor) -> Graph | None:
        """Return the subgraphs of these clients; the last ones are cached."""
        if self.graph is None:
            return None
        for cached_ids, cached in self._graphs:
            if torch.equal(cached_ids, ids):
                return cached
        graph = self.graph.of(ids)
        self._graphs[:] = [(ids, graph), *self._graphs][:GRAPHS]
        return graph

    def of_clients(
        self, name: str, ids: Tensor, block: int | None = None, ordered: bool = False
    ) -> Lot:
        """Return the lot of these clients."""
        key = (f"{name}, ordered" if ordered else name, self.now if block is None else block)
        cached = self._last.setdefault(key, [])
        for cached_ids, lot in cached:
            if torch.equal(cached_ids, ids):
                return lot  # often the same clients: those who train, those who are measured
        first, count, item = self.lot(name, block)
        owner, place = jagged.take(first, count, ids)
        lot = Lot(owner, item[place], len(ids))
        if ordered:
            time, rating = self._marks(name)
            lot = replace(lot, time=time[place], rating=None if rating is None else rating[place])
        cached[:] = [(ids, lot), *cached][:LOTS]
        return lot

    @property
    def available(self) -> Tensor:
        """Return which members have training records now. [clients] bool"""
        return self.members & (self.lot("own")[1] > 0)

    @property
    def keeps(self) -> Tensor:
        """Return which members have training records that are not shared. [clients] bool"""
        return self.members & (self.lot("unshared")[1] > 0)

    def holders(self, split: str, block: int | None = None) -> Tensor:
        """Return members with a held-out item of a block (None: the current one). [n] ids"""
        return (self.members & (self.lot(split, block)[1] > 0)).nonzero()[:, 0]

    # -- events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> Holdings:
        """Return the holdings after an event; raise `ConsentError` if it is not allowed."""
        match event:
            case Share(records):
                found = self._find(records, "shared") & (self.split == TRAIN)
                # Sharing a held-out record would leak test data to the server.
                _check_among(records, self.records[self.split == TRAIN], _HELD_OUT)
                return replace(self, lent=self.lent | found)
            case Unshare(records):
                found = self._find(records, "unshared")
                lent = self.records.rows_of(torch.unique(records.client))
                _check_among(records, self.records[lent[self.lent[lent]]], _NOT_SHARED)
                after = replace(self, lent=self.lent & ~found)
                # Of earlier blocks a device keeps only the list of shared records.
                current = (self.split != TRAIN) | (self.block == self.now)
                return after._cut((~(current | after.lent)).nonzero().squeeze(1))
            case EraseEdges():
                self._check_edges(event)
                return self.erased(event)
            case Erase(records):
                self._find(records, "erased")
                return self.erased(event)
            case Withdraw(client):
                if not 0 <= client < self.clients or not bool(self.members[client]):
                    raise ConsentError(
                        f"client {client} is not a member, so it cannot withdraw. There are "
                        f"{int(self.members.sum())} members among {self.clients} clients.",
                        client=client,
                    )
                members = with_member(self.members, client, False)
                return replace(self.without_client(client), members=members)
            case Join(client):
                if not 0 <= client <= self.clients:
                    free = f"the next free index is {self.clients}"
                    raise ConsentError(f"client {client} cannot join: {free}.")
                return replace(self, members=with_member(self.members, client, True))
            case Arrive():
                return self._arrive(event)
            case _:
                return self

    def _find(self, records: Records, verb: str) -> Tensor:
        """Return which records are requested; raise if a pair is not held. [n] bool"""
        _check_among(records, self.records, _NOT_HELD, verb)
        return self.records.among(records)

    def _check_edges(self, event: EraseEdges) -> None:
        """Raise `ConsentError` unless the client has all these edges."""
        if self.graph is None:
            raise ConsentError("these clients have no graph, so there are no edges to erase.")
        named = event.records.to(self.members.device)
        missing = ~self.graph.edges_at(named.client, named.item, named.time).any(1)
        if bool(missing.any()):
            columns = (named.client, named.item, named.time)
            client, one, other = (int(column[missing][0]) for column in columns)
            raise ConsentError(
                f"client {client} has no edge between nodes {one} and {other}, so it cannot be "
                f"erased. Name edges of its own subgraph. Nothing was changed.",
                client=client,
            )

    def erased(self, event: Erase) -> Holdings:
        """Return the holdings without what an erasure names. No consent check."""
        named, graph = event.records.to(self.members.device), self.graph
        if graph is None or not isinstance(event, EraseEdges | EraseLabels):
            return self.without(event.records)
        if isinstance(event, EraseEdges):
            gone = graph.edges_at(named.client, named.item, named.time).any(0)
            return replace(self, graph=replace(graph, edge=graph.edge[:, ~gone]))
        nodes = Records(graph.owner, graph.index, torch.zeros_like(graph.owner))
        label = torch.where(nodes.among(named), -1, graph.label)
        left = self.keep(~self.records.among(named))
        return replace(left, graph=replace(graph, label=label))

    def without(self, records: Records) -> Holdings:
        """Return the holdings without these records. No consent check."""
        graph = self.graph
        if graph is not None:  # with a node go its features, label and edges
            nodes = Records(graph.owner, graph.index, torch.zeros_like(graph.owner))
            graph = graph.keep(~nodes.among(records))
        return replace(self._cut(self.records.find(records)), graph=graph)

    def without_loans(self, records: Records) -> Holdings:
        """Return the holdings with these records not shared. No consent check."""
        return replace(self, lent=self.lent & ~self.records.among(records))

    def without_client(self, client: int) -> Holdings:
        """Return the holdings without the data of one client."""
        graph = self.graph
        if graph is not None:
            graph = graph.keep(graph.owner != client)
        return replace(self._cut(self.records.rows_of(torch.tensor([client]))), graph=graph)

    def _cut(self, gone: Tensor) -> Holdings:
        """Return the holdings without some records. gone: [k] positions, sorted"""
        cut = jagged.Cut.of(gone)
        return replace(
            self,
            records=self.records.without(cut),
            split=cut(self.split),
            block=cut(self.block),
            lent=cut(self.lent),
        )

    def keep(self, mask: Tensor) -> Holdings:
        """Keep only these records; members and graph do not change. mask: [n] bool, or positions"""
        return replace(
            self,
            records=self.records[mask],
            split=self.split[mask],
            block=self.block[mask],
            lent=self.lent[mask],
        )

    def _arrive(self, event: Arrive) -> Holdings:
        """Add the next block and delete the training records of earlier blocks.

        A device keeps the list of shared records, so that it can unshare them; no lot contains it.
        """
        _check(event.records, event.split, event.clients, event.items)
        if event.clients < self.clients or event.items < self.items:
            raise DataError(
                f"a block cannot shrink the federation: it has {self.clients} clients and "
                f"{self.items} items, the block has {event.clients} and {event.items}. "
                f"Use Erase or Withdraw to remove data."
            )
        device, now, new = self.members.device, self.now + 1, len(event.records)
        kept = self.keep((self.split != TRAIN) | self.lent)
        records = kept.records + event.records.to(device)
        members = torch.ones(event.clients, dtype=torch.bool, device=device)
        members[: self.clients] = self.members
        order = torch.argsort(records.client, stable=True)
        order = order[members[records.client[order]]]  # skip data of clients that left
        return replace(
            self,
            records=records,
            split=torch.cat([kept.split, event.split.to(device, torch.int8)]),
            block=torch.cat([kept.block, kept.block.new_full((new,), now)]),
            lent=torch.cat([kept.lent, kept.lent.new_zeros(new)]),
            members=members,
            items=event.items,
            now=now,
        ).keep(order)

    def digest(self, key: bytes = b"") -> str:
        """Return one digest of all data."""
        hasher = hashlib.blake2b(key=key, digest_size=32)
        hasher.update(f"{self.task}/{self.items}/{self.now}".encode())
        for part in () if self.graph is None else vars(self.graph).values():
            flat = part.cpu().numpy().tobytes() if isinstance(part, Tensor) else str(part).encode()
            hasher.update(flat)
        mine = self.records
        columns = (mine.client, mine.item, mine.time, self.split, self.block, self.lent)
        for column in (*columns, self.members):
            hasher.update(column.cpu().numpy().tobytes())
        return "blake2b:" + hasher.hexdigest()


_NOT_HELD = (
    "client {client} does not hold item {item}, so it cannot be {verb}. The client holds {count} "
    "records; the first are {first}. Nothing was changed."
)
_HELD_OUT = (
    "item {item} of client {client} is held out for evaluation, so it cannot be shared. Share "
    "training records only. Nothing was changed."
)
_NOT_SHARED = (
    "client {client} does not share item {item}, so it cannot be unshared (it was never shared, or "
    "is unshared already). The client shares {count} items; the first are {first}. Nothing was "
    "changed."
)


def _check_among(wanted: Records, known: Records, message: str, verb: str = "") -> None:
    """Raise `ConsentError` if the (client, item) of a wanted record is not among the known."""
    missing = ~wanted.to(known.client.device).among(known)
    if bool(missing.any()):
        client, item = (int(c.to(missing.device)[missing][0]) for c in (wanted.client, wanted.item))
        theirs = known.item[known.client == client]
        facts = {"verb": verb, "count": len(theirs), "first": theirs[:5].tolist()}
        text = message.format(client=client, item=item, **facts)
        raise ConsentError(text, client=client, item=item)


def with_member(members: Tensor, client: int, value: bool) -> Tensor:
    """Return the flags with one client's set, longer if its index is new. [clients] bool"""
    longer = members.new_zeros(max(len(members), client + 1))
    longer[: len(members)] = members
    longer[client] = value
    return longer


def _check(records: Records, split: Tensor, clients: int, items: int) -> None:
    """Raise `DataError` if labels or indices do not fit the given sizes."""
    if len(split) != len(records):
        raise DataError(
            f"there are {len(records)} records but {len(split)} split labels. "
            f"Give one label per record: 0 train, 1 valid, 2 test."
        )
    if len(records) == 0:
        return
    low, high = int(split.min()), int(split.max())
    if low < TRAIN or high > TEST:
        raise DataError(f"split labels must be 0, 1 or 2, got values from {low} to {high}.")
    if int(records.client.max()) >= clients or int(records.item.max()) >= items:
        raise DataError(
            f"the largest client and item are {int(records.client.max())} and "
            f"{int(records.item.max())}, but there are {clients} clients and {items} items. "
            f"Indices start at 0."
        )
