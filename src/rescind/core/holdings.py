"""What clients hold: splits, which records are lent, and the cohorts made of them.

Holdings live on the client side of the boundary. Nothing the server is given leads here.
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
"""Groups of clients whose subgraphs are kept: two roles, and two that are measured."""


@dataclass(frozen=True)
class Holdings:
    """Who holds what. A value: `apply` returns new holdings."""

    records: Records
    """Sorted by client."""
    split: Tensor
    """[n] int8: 0 train, 1 valid, 2 test."""
    block: Tensor
    """[n] int16: the block each record came in."""
    lent: Tensor
    """[n] bool: the server has a copy."""
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
        """First holdings: block 0, everybody a member, nothing lent."""
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
        """How many clients there are, members or not."""
        return len(self.members)

    def to(self, device: str | torch.device) -> Holdings:
        """The same holdings on another device."""
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

    # -- what a device may use -------------------------------------------------------------------

    def lot(self, name: str, block: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct items of all clients as (first [clients], count [clients], item [n]).

        name: "own" (training records), "unshared" (of them, those only the device has), "valid",
        "test". Training records exist for the current block only, whatever `block` says.
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
            raise ConfigError(f"there is no lot '{name}': use own, unshared, valid or test.")
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
        """These clients side by side, with what they may train on and, if asked, held-out items."""
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
        """The subgraphs of these clients; those asked for last are kept, with their matrices."""
        if self.graph is None:
            return None
        for before, known in self._graphs:
            if torch.equal(before, ids):
                return known
        found = self.graph.of(ids)
        self._graphs[:] = [(ids, found), *self._graphs][:GRAPHS]
        return found

    def of_clients(self, name: str, ids: Tensor, block: int | None = None) -> Lot:
        """The lot of these clients, side by side."""
        key = (name, self.now if block is None else block)
        ids_before, lot = self._last.get(key, (None, None))
        if lot is not None and ids_before is not None and torch.equal(ids_before, ids):
            return lot  # whoever trains or measures everybody asks for the same again
        first, count, item = self.lot(name, block)
        owner, place = jagged.take(first, count, ids)
        lot = Lot(owner, item[place], len(ids))
        self._last[key] = (ids, lot)
        return lot

    @property
    def available(self) -> Tensor:
        """Which members have anything to train on now. [clients] bool"""
        return self.members & (self.lot("own")[1] > 0)

    @property
    def keeps(self) -> Tensor:
        """Which members have something to train on that only their device holds. [clients] bool"""
        return self.members & (self.lot("unshared")[1] > 0)

    def holders(self, split: str, block: int | None = None) -> Tensor:
        """Members with a held-out item of a block (None: the present one). [n] ids"""
        return (self.members & (self.lot(split, block)[1] > 0)).nonzero()[:, 0]

    # -- events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> Holdings:
        """These holdings after an event; a request that does not fit them is a `ConsentError`."""
        match event:
            case Share(records):
                found = self._hold(records, "shared") & (self.split == TRAIN)
                self._must_be_trained_on(records)
                return replace(self, lent=self.lent | found)
            case Unshare(records):
                found = self._hold(records, "unshared")
                self._must_be_lent(records)
                after = replace(self, lent=self.lent & ~found)
                # Of earlier blocks a device keeps a note of its loans only.
                current = (self.split != TRAIN) | (self.block == self.now)
                return after.keep(current | after.lent)
            case Erase(records):
                rest = self.keep(~self._hold(records, "erased"))
                return replace(rest, graph=_without_nodes(self.graph, records))
            case Withdraw(client):
                self._must_be_member(client)
                members = self.members.clone()
                members[client] = False
                rest = self.keep(self.records.client != client)
                graph = self.graph
                if graph is not None:  # the subgraph leaves with its owner
                    graph = graph.keep(graph.owner != client)
                return replace(rest, members=members, graph=graph)
            case Join(client):
                return self._join(client)
            case Arrive():
                return self._arrive(event)
            case _:
                return self

    def _hold(self, records: Records, verb: str) -> Tensor:
        """Where the requested pairs are; each must be held by a member. [n] bool"""
        wanted = records.to(self.records.client.device)
        held = wanted.among(self.records)
        if not bool(held.all()):
            client, item = (int(c[~held][0]) for c in (wanted.client, wanted.item))
            has = self.records.item[self.records.client == client]
            raise ConsentError(
                f"client {client} does not hold item {item}, so it cannot be {verb}. "
                f"They hold {len(has)} records; the first are {has[:5].tolist()}. "
                f"Nothing was changed.",
                client=client,
                item=item,
            )
        return self.records.among(wanted)

    def _must_be_trained_on(self, records: Records) -> None:
        """What is held out for measuring cannot be lent: the server would learn the answers."""
        wanted = records.to(self.records.client.device)
        missing = ~wanted.among(self.records[self.split == TRAIN])
        if bool(missing.any()):
            client, item = (int(c[missing][0]) for c in (wanted.client, wanted.item))
            raise ConsentError(
                f"item {item} of client {client} is held out for measuring, so it cannot be "
                f"shared. Share training records only. Nothing was changed.",
                client=client,
                item=item,
            )

    def _must_be_lent(self, records: Records) -> None:
        lent = self.records[self.lent]
        wanted = records.to(self.records.client.device)
        missing = ~wanted.among(lent)
        if bool(missing.any()):
            client, item = (int(c[missing][0]) for c in (wanted.client, wanted.item))
            theirs = lent.item[lent.client == client]
            raise ConsentError(
                f"client {client} does not share item {item}, so it cannot be unshared (never "
                f"shared, or taken back before). They share {len(theirs)} items; the first are "
                f"{theirs[:5].tolist()}. Nothing was changed.",
                client=client,
                item=item,
            )

    def _must_be_member(self, client: int) -> None:
        if not 0 <= client < self.clients or not bool(self.members[client]):
            raise ConsentError(
                f"client {client} is not a member, so it cannot withdraw. "
                f"There are {int(self.members.sum())} members among "
                f"{self.clients} clients.",
                client=client,
            )

    def without(self, records: Records) -> Holdings:
        """These holdings less whatever of the records they contain; nobody has to ask."""
        rest = self.keep(~self.records.among(records))
        return replace(rest, graph=_without_nodes(self.graph, records))

    def without_loans(self, records: Records) -> Holdings:
        """These holdings with nothing of the records lent; nobody has to ask."""
        return replace(self, lent=self.lent & ~self.records.among(records))

    def without_client(self, client: int) -> Holdings:
        """These holdings less everything of one client."""
        graph = self.graph
        if graph is not None:
            graph = graph.keep(graph.owner != client)
        return replace(self.keep(self.records.client != client), graph=graph)

    def keep(self, mask: Tensor) -> Holdings:
        """These records alone; who is a member and what graph there is stay. mask: [n] bool"""
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
        """The next block. Training records of earlier blocks are dropped, not hidden.

        A device keeps a note of what it lent, so that it can take it back; no lot contains it.
        """
        _check(event.records, event.split, event.clients, event.items)
        if event.clients < self.clients or event.items < self.items:
            raise DataError(
                f"a block cannot shrink the world: it has {self.clients} clients and "
                f"{self.items} items, the block says {event.clients} and "
                f"{event.items}. Erase or Withdraw instead."
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
        order = order[members[records.client[order]]]  # data of people who left is not taken in
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
        """One digest of everything held."""
        seen = hashlib.blake2b(key=key, digest_size=32)
        seen.update(f"{self.task}/{self.items}/{self.now}".encode())
        for part in () if self.graph is None else vars(self.graph).values():
            flat = part.cpu().numpy().tobytes() if isinstance(part, Tensor) else str(part).encode()
            seen.update(flat)
        mine = self.records
        columns = (mine.client, mine.item, mine.time, self.split, self.block, self.lent)
        for column in (*columns, self.members):
            seen.update(column.cpu().numpy().tobytes())
        return "blake2b:" + seen.hexdigest()


def _without_nodes(graph: Graph | None, records: Records) -> Graph | None:
    """The graph without erased nodes: their features, labels and edges go too."""
    if graph is None:
        return None
    nodes = Records(graph.owner, graph.index, torch.zeros_like(graph.owner))
    return graph.keep(~nodes.among(records))


def _check(records: Records, split: Tensor, clients: int, items: int) -> None:
    """Labels and indices must fit the sizes they are given with."""
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
            f"{int(records.item.max())}, but the sizes say {clients} clients and "
            f"{items} items. Indices count from 0."
        )
