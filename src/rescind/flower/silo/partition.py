"""What of a world is on one silo, and how it was before something was taken away."""

from __future__ import annotations

from dataclasses import replace

import torch

from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Event, Unshare, Withdraw
from rescind.errors import ConfigError


def part_of(holdings: Holdings, silo: int, silos: int) -> Holdings:
    """The share of one silo: its clients' records, in the numbering of everybody."""
    if not 0 <= silo < silos:
        raise ConfigError(f"silos are numbered 0 to {silos - 1}; got {silo}.")
    mine = torch.arange(holdings.clients) % silos == silo
    graph = holdings.graph
    return replace(
        holdings.keep(mine[holdings.records.client]),
        members=holdings.members & mine,
        graph=graph and graph.keep(mine[graph.owner]),
    )


def never(holdings: Holdings, event: Event) -> Holdings:
    """Holdings as if what an event takes away had never been there."""
    match event:
        case Withdraw(client):
            there = 0 <= client < holdings.clients and bool(holdings.members[client])
            return holdings.apply(event) if there else holdings.without_client(client)
        case Erase(records):
            return holdings.without(records)
        case Unshare(records):
            return holdings.without_loans(records)
        case _:
            raise ConfigError(f"a {type(event).__name__} cannot be undone.")


def as_many(holdings: Holdings, clients: int, items: int) -> Holdings:
    """The same holdings in a world that may have grown."""
    if clients <= holdings.clients and items <= holdings.items:
        return holdings
    members = holdings.members.new_zeros(max(clients, holdings.clients))
    members[: holdings.clients] = holdings.members
    return replace(holdings, members=members, items=max(items, holdings.items))
