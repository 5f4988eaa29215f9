"""All the server may know. Client-side data is not reachable from here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.errors import ConsentError


@dataclass(frozen=True, eq=False)
class Host(Event):
    """The server takes in a client whose data it holds itself (a virtual client, say)."""

    client: int
    data: Holdings


@dataclass(frozen=True)
class Sizes:
    """How many of each there are; indices are below these numbers."""

    clients: int
    items: int
    features: int = 0
    classes: int = 0


@dataclass(frozen=True)
class Announced:
    """What devices say of themselves: whether they can take part, not what they hold."""

    available: Tensor
    """[clients] bool: a member that has something to train on now."""
    keeps: Tensor
    """[clients] bool: of these, who has something that only the device holds."""


@dataclass(frozen=True)
class World:
    """Sizes, members, who is available, what was lent, and what the server hosts itself."""

    task: str
    sizes: Sizes
    members: Tensor
    """[clients] bool"""
    announced: Announced
    shared: Records
    hosted: tuple[tuple[int, Holdings], ...] = ()
    """Clients whose data the server itself holds, by their number."""
    block: int = 0

    @classmethod
    def around(cls, task: str, sizes: Sizes, announced: Announced) -> World:
        """A world at its start: everybody a member, nothing shared."""
        device = announced.available.device
        members = torch.ones(sizes.clients, dtype=torch.bool, device=device)
        return cls(task, sizes, members, announced, Records.none().to(device))

    @property
    def available(self) -> Tensor:
        """Who can take part now. [clients] bool"""
        return self.announced.available

    def apply(self, event: Event, announced: Announced) -> World:
        """The world after an event that the devices accepted, with what they announce then."""
        world = replace(self, announced=announced)
        shared, device = self.shared, self.members.device
        match event:
            case Share(records):
                new = records.to(device)
                new = new[~new.among(shared)]
                return replace(world, shared=(shared + new).sorted())
            case Unshare(records) | Erase(records):
                hosted = tuple((n, data.without(records)) for n, data in self.hosted)
                return replace(world, shared=shared[~shared.among(records)], hosted=hosted)
            case Withdraw(client) if self.only_hosts(event):
                return replace(world, hosted=tuple(h for h in self.hosted if h[0] != client))
            case Withdraw(client):
                stays = shared.client != client
                return replace(
                    world,
                    members=_marked(self.members, client, False),
                    shared=shared if bool(stays.all()) else shared[stays],
                    hosted=tuple((n, d.without_client(client)) for n, d in self.hosted),
                )
            case Join(client):
                if any(number == client for number, _ in self.hosted):
                    raise ConsentError(
                        f"number {client} is a client the server hosts; it cannot "
                        f"join as a device. Use a free number."
                    )
                members = _marked(self.members, client, True)
                sizes = replace(self.sizes, clients=len(members))
                return replace(world, members=members, sizes=sizes)
            case Arrive():
                taken = [number for number, _ in self.hosted if number < event.clients]
                if taken:
                    raise ConsentError(
                        f"the block numbers {event.clients} clients, but number {taken[0]} is a "
                        f"client the server hosts. Withdraw it first, or host under a higher one."
                    )
                hosted = tuple((n, replace(data, items=event.items)) for n, data in self.hosted)
                members = torch.ones(event.clients, dtype=torch.bool, device=device)
                members[: len(self.members)] = self.members
                sizes = replace(self.sizes, clients=event.clients, items=event.items)
                return replace(
                    world, members=members, sizes=sizes, hosted=hosted, block=self.block + 1
                )
            case Host(client, data):
                self._must_be_hostable(client, data)
                return replace(world, hosted=(*self.hosted, (client, data)))
            case _:
                return world

    def _must_be_hostable(self, client: int, data: Holdings) -> None:
        if any(number == client for number, _ in self.hosted):
            raise ConsentError(f"client {client} is hosted already; withdraw it first.")
        if 0 <= client < len(self.members) and bool(self.members[client]):
            raise ConsentError(
                f"client {client} is a member with a device; host under a free number."
            )
        if client >= data.clients or not bool(data.available[client]):
            raise ConsentError(
                f"the hosted data has nothing to train on for client {client} "
                f"(it has {data.clients} clients)."
            )
        if data.task != self.task or data.items > self.sizes.items:
            raise ConsentError(
                f"the hosted data is for {data.task} with {data.items} items; this world "
                f"is for {self.task} with {self.sizes.items}."
            )

    def only_hosts(self, event: Event) -> bool:
        """Whether the event is about a hosted client that is no member: no device is concerned."""
        if not isinstance(event, Withdraw):
            return False
        client = event.client
        member = 0 <= client < len(self.members) and bool(self.members[client])
        return not member and any(number == client for number, _ in self.hosted)

    def digest(self) -> str:
        """One digest of everything the server knows."""
        text = f"{self.task}/{self.sizes}/{self.block}/{self.shared.digest()}"
        seen = hashlib.blake2b(text.encode(), digest_size=32)
        for flags in (self.members, self.announced.available, self.announced.keeps):
            seen.update(flags.cpu().numpy().tobytes())
        for number, data in self.hosted:
            seen.update(f"{number}/{data.digest()}".encode())
        return "blake2b:" + seen.hexdigest()


def _marked(members: Tensor, client: int, value: bool) -> Tensor:
    longer = members.new_zeros(max(len(members), client + 1))
    longer[: len(members)] = members
    longer[client] = value
    return longer
