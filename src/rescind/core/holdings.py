"""The clients' data: records, splits, which records are shared, and cohorts made from them.

Holdings stay on the client side. The server gets no reference to them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rescind.core import jagged, lots
from rescind.core.cohort import Cohort, Graph, Lot
from rescind.core.consent import (
    HELD_OUT,
    NOT_HELD,
    NOT_SHARED,
    check_among,
    check_edges,
    check_fits,
)
from rescind.core.lots import Lots
from rescind.core.records import (
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
from rescind.core.table import Table
from rescind.errors import ConsentError, DataError

TRAIN, VALID, TEST, SPLITS = lots.TRAIN, lots.VALID, lots.TEST, lots.SPLITS
GRAPHS = 4
"""Number of cohorts whose subgraphs are cached: two roles, and two for evaluation."""


_MARKS = ("split", "block", "lent")


@dataclass(frozen=True)
class Holdings:
    """The data of all clients. Immutable: `apply` returns new holdings.

    An event changes the rows of the clients it names. Old and new holdings share the other rows in
    a table; its columns are merged when they are read.
    """

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
        check_fits(records, split, clients, items)
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
        if self.members.device == torch.device(device):
            return self
        return replace(
            self,
            records=self.records.to(device),
            split=self.split.to(device),
            block=self.block.to(device),
            lent=self.lent.to(device),
            members=self.members.to(device),
            graph=None if self.graph is None else self.graph.to(device),
        )

    # -- rows of some clients --------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Read the columns of a table."""
        if "table" not in self.__dict__ or name not in ("records", *_MARKS):
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        made = Records.on(self.table) if name == "records" else self.table.columns[name]
        self.__dict__[name] = made
        return made

    @cached_property
    def table(self) -> Table:
        """All records with their marks, sorted by client."""
        return Table(self.records.columns() | {name: getattr(self, name) for name in _MARKS})

    def part(self, clients: Tensor) -> Holdings:
        """Return holdings with the records of these clients only, without the graph."""
        _, rows = self.table.take(clients)
        return Holdings(
            records=Records.from_rows(rows),
            split=rows["split"],
            block=rows["block"],
            lent=rows["lent"],
            members=self.members,
            items=self.items,
            now=self.now,
            task=self.task,
        )

    def _with(
        self, clients: Tensor, part: Holdings, loans_only: bool = False, **changes: Any
    ) -> Holdings:
        """Return the holdings with the records of some clients as in `part`, and other fields.

        loans_only: records are the same as before, except for what is shared
        """
        after = object.__new__(type(self))
        kept = (f.name for f in fields(self) if f.name not in ("records", *_MARKS))
        after.__dict__.update({name: getattr(self, name) for name in kept} | changes)
        rows = part.table.columns
        after.__dict__["table"] = table = self.table.put(clients, rows)
        after.__dict__["_lots"] = self._lots.after(table, clients, rows, after.clients, loans_only)
        return after

    def without_lots(self) -> Holdings:
        """Return the same holdings, whose lots are made when they are asked for."""
        after = object.__new__(type(self))
        made = {"table": self.table} | self.__dict__
        after.__dict__.update({name: value for name, value in made.items() if name != "_lots"})
        return after

    # -- lots and cohorts ------------------------------------------------------------------------

    @cached_property
    def _lots(self) -> Lots:
        return Lots(self.table, self.now, self.clients)

    @cached_property
    def _graphs(self) -> list[tuple[Tensor, Graph]]:
        return []

    def lot(self, name: str, block: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the items of all clients: (first [clients], count [clients], item [n]).

        name: see `lots.Kind`    block: of held-out items; None: the current one
        """
        columns = self._lots.all(self._lots.kind(name, block)).columns
        count = jagged.counts(columns["client"], self.clients)
        return jagged.starts(count), count, columns["item"]

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
        return self._lots.of(self._lots.kind(name, block, ordered), ids)

    @property
    def available(self) -> Tensor:
        """Return which members have training records now. [clients] bool"""
        return self.members & self._lots.owners(self._lots.kind("own"))

    @property
    def keeps(self) -> Tensor:
        """Return which members have training records that are not shared. [clients] bool"""
        return self.members & self._lots.owners(self._lots.kind("unshared"))

    def holders(self, split: str, block: int | None = None) -> Tensor:
        """Return members with a held-out item of a block (None: the current one). [n] ids"""
        owners = self._lots.owners(self._lots.kind(split, block))
        return (self.members & owners).nonzero()[:, 0]

    # -- events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> Holdings:
        """Return the holdings after an event; raise `ConsentError` if it is not allowed."""
        match event:
            case Share(records):
                clients, mine = self._find(records, "shared")
                trained = mine.split == TRAIN
                check_among(records, mine.records[trained], HELD_OUT)
                lent = mine.lent | (trained & mine.records.among(records))
                return self._with(clients, replace(mine, lent=lent), loans_only=True)
            case Unshare(records):
                clients, mine = self._find(records, "unshared")
                check_among(records, mine.records[mine.lent], NOT_SHARED)
                after = replace(mine, lent=mine.lent & ~mine.records.among(records))
                # Of earlier blocks a device keeps only the list of shared records.
                stays = (mine.split != TRAIN) | (mine.block == self.now) | after.lent
                if bool(stays.all()):
                    return self._with(clients, after, loans_only=True)
                return self._with(clients, after.keep(stays))
            case EraseEdges():
                check_edges(event, self.graph)
                return self.erased(event)
            case Erase(records):
                self._find(records, "erased")
                return self.erased(event)
            case Withdraw(client):
                if not 0 <= client < self.clients or not bool(self.members[client]):
                    raise ConsentError(
                        f"client {client} is not a member and cannot withdraw.", client=client
                    )
                return self._without(client, members=with_member(self.members, client, False))
            case Join(client):
                if not 0 <= client <= self.clients:
                    raise ConsentError(
                        f"client {client} cannot join: the next free index is {self.clients}."
                    )
                members = with_member(self.members, client, True)
                none = torch.zeros(0, dtype=torch.int64)
                return self._with(none, self.part(none), loans_only=True, members=members)
            case Arrive():
                return self._arrive(event)
            case _:
                return self

    def _find(self, records: Records, verb: str) -> tuple[Tensor, Holdings]:
        """Return the clients of a request, and their part; raise if a pair is not held."""
        clients = records.clients
        mine = self.part(clients)
        check_among(records, mine.records, NOT_HELD + verb)
        return clients, mine

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
        return self._cut(named, graph=replace(graph, label=label))

    def without(self, records: Records) -> Holdings:
        """Return the holdings without these records. No consent check."""
        graph = self.graph
        if graph is not None:  # with a node go its features, label and edges
            nodes = Records(graph.owner, graph.index, torch.zeros_like(graph.owner))
            graph = graph.keep(~nodes.among(records))
        return self._cut(records, graph=graph)

    def without_loans(self, records: Records) -> Holdings:
        """Return the holdings with these records not shared. No consent check."""
        clients = records.clients
        mine = self.part(clients)
        lent = mine.lent & ~mine.records.among(records)
        return self._with(clients, replace(mine, lent=lent), loans_only=True)

    def without_client(self, client: int) -> Holdings:
        return self._without(client)

    def _without(self, client: int, **changes: Any) -> Holdings:
        graph, clients = self.graph, torch.tensor([client])
        if graph is not None:
            graph = graph.keep(graph.owner != client)
        return self._with(clients, self.part(clients).keep(slice(0)), graph=graph, **changes)

    def _cut(self, records: Records, **changes: Any) -> Holdings:
        """Return the holdings without the rows of some records, and with other fields changed."""
        clients = records.clients
        mine = self.part(clients)
        return self._with(clients, mine.keep(~mine.records.among(records)), **changes)

    def keep(self, mask: Tensor | slice) -> Holdings:
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
        check_fits(event.records, event.split, event.clients, event.items)
        if event.clients < self.clients or event.items < self.items:
            raise DataError(f"a block cannot shrink {self.clients} clients and {self.items} items.")
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


def with_member(members: Tensor, client: int, value: bool) -> Tensor:
    """Return the flags with one client's set, longer if its index is new. [clients] bool"""
    longer = torch.cat([members, members.new_zeros(max(client + 1 - len(members), 0))])
    longer[client] = value
    return longer
