"""Checks before clients' data changes: what a request may name, and whether data fits its sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.cohort import Graph
from rescind.core.lots import TEST, TRAIN
from rescind.core.records import EraseEdges, Records
from rescind.errors import ConsentError, DataError

NOT_HELD = "client {client} does not hold {items}, so {they} cannot be "
HELD_OUT = "client {client} holds out {items} for evaluation, so {they} cannot be shared"
NOT_SHARED = "client {client} does not share {items}, so {they} cannot be unshared"
_MOST_NAMED = 20


def check_among(wanted: Records, known: Records, message: str) -> None:
    """Raise `ConsentError` if the (client, item) of a wanted record is not among the known.

    message: what is said of the first client with such records, and of these
    """
    missing = ~wanted.to(known.client.device).among(known)
    if bool(missing.any()):
        clients, items = (c.to(missing.device)[missing] for c in (wanted.client, wanted.item))
        client = int(clients[0])
        named = list(dict.fromkeys(items[clients == client].tolist()))
        # What else they have, and how much, is not told: the error may go to a server.
        told = ", ".join(f"item {item}" for item in named[:_MOST_NAMED])
        told += ", ..." if len(named) > _MOST_NAMED else ""
        text = message.format(client=client, items=told, they="they" if len(named) > 1 else "it")
        raise ConsentError(f"{text}. Nothing was changed.", client=client, item=named[0])


def check_edges(event: EraseEdges, graph: Graph | None) -> None:
    """Raise `ConsentError` unless the client has all these edges."""
    if graph is None:
        raise ConsentError("these clients have no graph, so there are no edges to erase.")
    named = event.records.to(graph.owner.device)
    missing = ~graph.edges_at(named.client, named.item, named.time).any(1)
    if bool(missing.any()):
        columns = (named.client, named.item, named.time)
        client, one, other = (int(column[missing][0]) for column in columns)
        raise ConsentError(
            f"client {client} has no edge between nodes {one} and {other}. Nothing was changed.",
            client=client,
        )


def check_fits(records: Records, split: Tensor, clients: int, items: int) -> None:
    """Raise `DataError` if labels or indices do not fit the given sizes."""
    if len(split) != len(records) or not bool(((split >= TRAIN) & (split <= TEST)).all()):
        raise DataError(
            f"{len(records)} records need as many split labels (0 train, 1 valid, 2 test); got "
            f"{len(split)}: {torch.unique(split).tolist()[:9]}."
        )
    check_sizes(records, clients, items)


def check_sizes(records: Records, clients: int, items: int) -> None:
    """Raise `DataError` if a client or an item is too large an index."""
    if not len(records):
        return
    client, item = int(records.client.max()), int(records.item.max())
    if client >= clients or item >= items:
        raise DataError(
            f"the largest client is {client} and the largest item {item}; there are {clients} "
            f"clients and {items} items, counted from 0."
        )
