"""Everything the server may know. Client-side data is not reachable from here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rescind.core.holdings import Holdings, with_member
from rescind.core.params import Params
from rescind.core.records import (
    Arrive,
    Erase,
    EraseEdges,
    Event,
    Join,
    Records,
    Share,
    Unshare,
    Withdraw,
)
from rescind.errors import ConsentError


@dataclass(frozen=True, eq=False)
class Host(Event):
    """The server adds a client whose data it holds itself, such as a virtual client."""

    client: int
    data: Holdings


@dataclass(frozen=True)
class Sizes:
    """Numbers of clients, items, features and classes; indices are below them."""

    clients: int
    items: int
    features: int = 0
    classes: int = 0


@dataclass(frozen=True)
class Announced:
    """What devices report: whether they can take part, not what data they hold."""

    available: Tensor
    """[clients] bool: members with training data now."""
    keeps: Tensor
    """[clients] bool: those of them with training data that is not shared."""


@dataclass(frozen=True)
class World:
    """Sizes, members, available clients, shared records, and clients hosted by the server."""

    task: str
    sizes: Sizes
    members: Tensor
    """[clients] bool"""
    announced: Announced
    shared: Records
    hosted: tuple[tuple[int, Holdings], ...] = ()
    """(client number, data) of clients whose data the server itself holds."""
    block: int = 0
    about: Params = field(default_factory=dict)
    """What is publicly known about items (`about_items`). Not in the digest."""

    @classmethod
    def initial(cls, task: str, sizes: Sizes, announced: Announced) -> World:
        """Make the initial world: every client is a member, nothing is shared."""
        device = announced.available.device
        members = torch.ones(sizes.clients, dtype=torch.bool, device=device)
        return cls(task, sizes, members, announced, Records.none().to(device))

    @property
    def available(self) -> Tensor:
        """Return which clients can take part now. [clients] bool"""
        return self.announced.available

    def apply(self, event: Event, announced: Announced) -> World:
        """Return the world after an event that the devices accepted, with their new report."""
        world = replace(self, announced=announced)
        shared, device = self.shared, self.members.device
        match event:
            case Share(records):
                new = records.to(device)
                clients = new.clients
                mine = shared.of_clients(clients)
                mine = (mine + new[~new.among(mine)]).sorted()
                return replace(world, shared=shared.with_clients(clients, mine))
            case Erase(records):
                hosted = tuple((n, data.erased(event)) for n, data in self.hosted)
                edges = isinstance(event, EraseEdges)
                left = shared if edges else shared.without(records)
                return replace(world, shared=left, hosted=hosted)
            case Unshare(records):
                hosted = tuple((n, data.without(records)) for n, data in self.hosted)
                return replace(world, shared=shared.without(records), hosted=hosted)
            case Withdraw(client) if self.concerns_hosted_only(event):
                return replace(world, hosted=tuple(h for h in self.hosted if h[0] != client))
            case Withdraw(client):
                members = with_member(self.members, client, False)
                hosted = tuple((n, data.without_client(client)) for n, data in self.hosted)
                left = shared.without_client(client)
                return replace(world, members=members, shared=left, hosted=hosted)
            case Join(client):
                if any(number == client for number, _ in self.hosted):
                    raise ConsentError(f"the server hosts client {client}. Use a free number.")
                members = with_member(self.members, client, True)
                sizes = replace(self.sizes, clients=len(members))
                return replace(world, members=members, sizes=sizes)
            case Arrive():
                taken = [number for number, _ in self.hosted if number < event.clients]
                if taken:
                    raise ConsentError(f"the block has client {taken[0]}, whom the server hosts.")
                hosted = tuple((n, replace(data, items=event.items)) for n, data in self.hosted)
                members = torch.ones(event.clients, dtype=torch.bool, device=device)
                members[: len(self.members)] = self.members
                sizes = replace(self.sizes, clients=event.clients, items=event.items)
                block = self.block + 1
                return replace(world, members=members, sizes=sizes, hosted=hosted, block=block)
            case Host(client, data):
                self._check_hostable(client, data)
                return replace(world, hosted=(*self.hosted, (client, data)))
            case _:
                return world

    def _check_hostable(self, client: int, data: Holdings) -> None:
        member = 0 <= client < len(self.members) and bool(self.members[client])
        if member or any(number == client for number, _ in self.hosted):
            raise ConsentError(f"client {client} is a member, or hosted already.")
        if client >= data.clients or not bool(data.available[client]):
            raise ConsentError(f"the hosted data has no training data for client {client}.")
        if data.task != self.task or data.items > self.sizes.items:
            raise ConsentError("the hosted data is for another task, or has more items.")

    def concerns_hosted_only(self, event: Event) -> bool:
        """Return whether the event concerns only a hosted client, so no device."""
        if not isinstance(event, Withdraw):
            return False
        client = event.client
        member = 0 <= client < len(self.members) and bool(self.members[client])
        return not member and any(number == client for number, _ in self.hosted)

    def digest(self) -> str:
        """Return one digest of everything the server knows."""
        text = f"{self.task}/{self.sizes}/{self.block}/{self.shared.digest()}"
        hasher = hashlib.blake2b(text.encode(), digest_size=32)
        for flags in (self.members, self.announced.available, self.announced.keeps):
            hasher.update(flags.cpu().numpy().tobytes())
        for number, data in self.hosted:
            hasher.update(f"{number}/{data.digest()}".encode())
        return "blake2b:" + hasher.hexdigest()
