"""Select one silo's part of the data, and remove records from it."""

from __future__ import annotations

from dataclasses import replace

import torch

from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Event, Unshare, Withdraw
from rescind.errors import ConfigError


def silo_part(holdings: Holdings, silo: int, silos: int) -> Holdings:
    """Return the holdings of one silo's clients. Client numbers do not change."""
    if not 0 <= silo < silos:
        raise ConfigError(f"the number of a silo must be 0 to {silos - 1}; got {silo}.")
    mine = torch.arange(holdings.clients) % silos == silo
    graph = holdings.graph
    return replace(
        holdings.keep(mine[holdings.records.client]),
        members=holdings.members & mine,
        graph=graph and graph.keep(mine[graph.owner]),
    )


def leave_out(holdings: Holdings, event: Event) -> Holdings:
    """Return the holdings as if the records that an event removes had never been there."""
    match event:
        case Withdraw(client):
            there = 0 <= client < holdings.clients and bool(holdings.members[client])
            return holdings.apply(event) if there else holdings.without_client(client)
        case Erase():
            return holdings.erased(event)
        case Unshare(records):
            return holdings.without_loans(records)
        case _:
            raise ConfigError(f"expected Withdraw, Erase or Unshare; got {type(event).__name__}.")


def grow(holdings: Holdings, clients: int, items: int) -> Holdings:
    """Return the holdings with room for at least this number of clients and items."""
    if clients <= holdings.clients and items <= holdings.items:
        return holdings
    members = holdings.members.new_zeros(max(clients, holdings.clients))
    members[: holdings.clients] = holdings.members
    return replace(holdings, members=members, items=max(items, holdings.items))


def heaviest(holdings: Holdings) -> int:
    """Return the largest weight of a client: its number of nodes, or 1 without a graph."""
    owner = holdings.graph.owner if holdings.graph is not None else None
    return int(torch.bincount(owner).max()) if owner is not None and len(owner) else 1
