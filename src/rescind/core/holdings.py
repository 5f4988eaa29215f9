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
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError

TRAIN, VALID, TEST = 0, 1, 2
SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}
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
        graph = self.graph
        if graph is not None:
            graph = graph.to(device)
        return replace(
            self,
            records=self.records.to(device),
            split=self.split.to(device),
            block=self.block.to(device),
            lent=self.lent.to(device),
            members=self.members.to(device),
            graph=graph,
        )

    # -- lots and cohorts ------------------------------------------------------------------------

    def lot(self, name: str, block: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct items of all clients: (first [clients], count [clients], item [n]).

        name: "own" (training records), "unshared" (training records that are not shared), "valid",
        "test". `block` is ignored for training records: only the current block has any.
        """
        key = (name, self.now if block is None or name in ("own", "unshared") else block)
        if key not in self._lots:
            self._lots[key] = self._build(*key)
        return self._lots[key]

    @cached_property
    def _last(self) -> dict[tuple[str, int], tuple[Tensor, Lot]]:
        return {}

    @cached_property
    def _graphs(self) -> list[tuple[Tensor, Graph]]:
        return []

    @cached_property
    def _lots(self) -> dict[tuple[str, int], tuple[Tensor, Tensor, Tensor]]:
        return {}

    def _build(self, name: str, block: int) -> tuple[Tensor, Tensor, Tensor]:
        if name in ("own", "unshared"):
            mask = (self.split == TRAIN) & (self.block == self.now)
            if name == "unshared":
                mask &= ~self.lent
        elif name in ("valid", "test"):
            mask = (self.split == SPLITS[name]) & (self.block == block)
        else:
            raise ConfigError(f"there is no lot '{name}'. Use own, unshared, valid or test.")
        pairs = torch.unique(self.records[mask].pairs())
        client, item = pairs >> 31, pairs & (2**31 - 1)
        count = jagged.counts(client, self.clients)
        return jagged.starts(count), count, item

    def cohort(
        self,
        ids: Tensor,
        include_lent: bool = True,
        held: str | None = None,
        block: int | None = None,
    ) -> Cohort:
        """Return these clients as a cohort, with training items and optionally held-out items."""
        own = self.of_clients("own", ids, block)
        train = own if include_lent else self.of_clients("unshared", ids, block)
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

    def of_clients(self, name: str, ids: Tensor, block: int | None = None) -> Lot:
        """Return the lot of these clients."""
        key = (name, self.now if block is None else block)
        cached_ids, lot = self._last.get(key, (None, None))
        if lot is not None and cached_ids is not None and torch.equal(cached_ids, ids):
            return lot  # often the same clients several times
        first, count, item = self.lot(name, block)
        owner, place = jagged.take(first, count, ids)
        lot = Lot(owner, item[place], len(ids))
        self._last[key] = (ids, lot)
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
                found = self._hold(records, "shared") & (self.split == TRAIN)
                self._check_training(records)
                return replace(self, lent=self.lent | found)
            case Unshare(records):
                found = self._hold(records, "unshared")
                self._check_shared(records)
                after = replace(self, lent=self.lent & ~found)
                # Of earlier blocks a device keeps only the list of shared records.
                current = (self.split != TRAIN) | (self.block == self.now)
                return after.keep(current | after.lent)
            case Erase(records):
                rest = self.keep(~self._hold(records, "erased"))
                return replace(rest, graph=_without_nodes(self.graph, records))
            case Withdraw(client):
                self._check_member(client)
                members = self.members.clone()
                members[client] = False
                rest = self.keep(self.records.client != client)
                graph = self.graph
                if graph is not None:  # the subgraph is removed with its owner
                    graph = graph.keep(graph.owner != client)
                return replace(rest, members=members, graph=graph)
            case Join(client):
                return self._join(client)
            case Arrive():
                return self._arrive(event)
            case _:
                return self

    def _hold(self, records: Records, verb: str) -> Tensor:
        """Return which records are requested; raise if a pair is not held. [n] bool"""
        wanted = records.to(self.records.client.device)
        held = wanted.among(self.records)
        if not bool(held.all()):
            client, item = (int(c[~held][0]) for c in (wanted.client, wanted.item))
            has = self.records.item[self.records.client == client]
            raise ConsentError(
                f"client {client} does not hold item {item}, so it cannot be {verb}. "
                f"The client holds {len(has)} records; the first are {has[:5].tolist()}. "
                f"Nothing was changed.",
                client=client,
                item=item,
            )
        return self.records.among(wanted)

    def _check_training(self, records: Records) -> None:
        """Raise if a record is held out: sharing it would leak test data to the server."""
        wanted = records.to(self.records.client.device)
        missing = ~wanted.among(self.records[self.split == TRAIN])
        if bool(missing.any()):
            client, item = (int(c[missing][0]) for c in (wanted.client, wanted.item))
            raise ConsentError(
                f"item {item} of client {client} is held out for evaluation, so it cannot be "
                f"shared. Share training records only. Nothing was changed.",
                client=client,
                item=item,
            )

    def _check_shared(self, records: Records) -> None:
        lent = self.records[self.lent]
        wanted = records.to(self.records.client.device)
        missing = ~wanted.among(lent)
        if bool(missing.any()):
            client, item = (int(c[missing][0]) for c in (wanted.client, wanted.item))
            theirs = lent.item[lent.client == client]
            raise ConsentError(
                f"client {client} does not share item {item}, so it cannot be unshared (it was "
                f"never shared, or is unshared already). The client shares {len(theirs)} items; "
                f"the first are {theirs[:5].tolist()}. Nothing was changed.",
                client=client,
                item=item,
            )

    def _check_member(self, client: int) -> None:
        if not 0 <= client < self.clients or not bool(self.members[client]):
            raise ConsentError(
                f"client {client} is not a member, so it cannot withdraw. "
                f"There are {int(self.members.sum())} members among "
                f"{self.clients} clients.",
                client=client,
            )

    def without(self, records: Records) -> Holdings:
        """Return the holdings without these records. No consent check."""
        rest = self.keep(~self.records.among(records))
        return replace(rest, graph=_without_nodes(self.graph, records))

    def without_loans(self, records: Records) -> Holdings:
        """Return the holdings with these records not shared. No consent check."""
        return replace(self, lent=self.lent & ~self.records.among(records))

    def without_client(self, client: int) -> Holdings:
        """Return the holdings without the data of one client."""
        graph = self.graph
        if graph is not None:
            graph = graph.keep(graph.owner != client)
        return replace(self.keep(self.records.client != client), graph=graph)

    def keep(self, mask: Tensor) -> Holdings:
        """Keep only these records; members and graph do not change. mask: [n] bool"""
        return replace(
            self,
            records=self.records[mask],
            split=self.split[mask],
            block=self.block[mask],
            lent=self.lent[mask],
        )

    def _join(self, client: int) -> Holdings:
        if not 0 <= client <= self.clients:
            raise ConsentError(
                f"client {client} cannot join: the next free index is {self.clients}."
            )
        members = self.members.new_zeros(max(self.clients, client + 1))
        members[: self.clients] = self.members
        members[client] = True
        return replace(self, members=members)

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
        device = self.members.device
        kept = self.keep((self.split != TRAIN) | self.lent)
        records = kept.records + event.records.to(device)
        split = torch.cat([kept.split, event.split.to(device, torch.int8)])
        now = self.now + 1
        new_block = torch.full((len(event.records),), now, dtype=torch.int16, device=device)
        lent = torch.cat([kept.lent, torch.zeros_like(new_block, dtype=torch.bool)])
        members = torch.ones(event.clients, dtype=torch.bool, device=device)
        members[: self.clients] = self.members
        block = torch.cat([kept.block, new_block])
        order = torch.argsort(records.client, stable=True)
        order = order[members[records.client[order]]]  # skip data of clients that left
        return replace(
            self,
            records=records[order],
            split=split[order],
            block=block[order],
            lent=lent[order],
            members=members,
            items=event.items,
            now=now,
        )

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


def _without_nodes(graph: Graph | None, records: Records) -> Graph | None:
    """Return the graph without these nodes, their features, labels and edges."""
    if graph is None:
        return None
    nodes = Records(graph.owner, graph.index, torch.zeros_like(graph.owner))
    return graph.keep(~nodes.among(records))


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
