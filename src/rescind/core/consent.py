"""Checks before clients' data changes: what a request may name, and whether data fits its sizes."""

from __future__ import annotations

from torch import Tensor

from rescind.core.cohort import Graph
from rescind.core.lots import TEST, TRAIN
from rescind.core.records import EraseEdges, Records
from rescind.errors import ConsentError, DataError

_NOT_HELD = "client {client} does not hold {items}, so {it} cannot be {verb}. Nothing was changed."
_HELD_OUT = (
    "{items} of client {client} {is_} held out for evaluation, so {it} cannot be shared. Share "
    "training records only. Nothing was changed."
)
_NOT_SHARED = (
    "client {client} does not share {items}, so {it} cannot be unshared: {it} {was} never shared, "
    "or {is_} unshared already. Nothing was changed."
)
_MOST_NAMED = 20
_ONE = {"it": "it", "is_": "is", "was": "was"}
_SEVERAL = {"it": "they", "is_": "are", "was": "were"}


def check_held(wanted: Records, held: Records, verb: str) -> None:
    """Raise `ConsentError` if a client does not hold a record. verb: what is asked, for words"""
    _check_among(wanted, held, _NOT_HELD, verb)


def check_trained(wanted: Records, trained: Records) -> None:
    """Raise `ConsentError` if a record to share is held out: the server would get test data."""
    _check_among(wanted, trained, _HELD_OUT)


def check_shared(wanted: Records, shared: Records) -> None:
    """Raise `ConsentError` if a record to unshare is not shared."""
    _check_among(wanted, shared, _NOT_SHARED)


def _check_among(wanted: Records, known: Records, message: str, verb: str = "") -> None:
    """Raise `ConsentError` if the (client, item) of a wanted record is not among the known."""
    missing = ~wanted.to(known.client.device).among(known)
    if bool(missing.any()):
        clients, items = (c.to(missing.device)[missing] for c in (wanted.client, wanted.item))
        client = int(clients[0])
        named = list(dict.fromkeys(items[clients == client].tolist()))
        # What else they have, and how much, is not told: the error may go to a server.
        told = ", ".join(f"item {item}" for item in named[:_MOST_NAMED])
        if len(named) > _MOST_NAMED:
            told += f" and {len(named) - _MOST_NAMED:,} more of those named"
        words = _ONE if len(named) == 1 else _SEVERAL
        text = message.format(client=client, items=told, verb=verb, **words)
        raise ConsentError(text, client=client, item=named[0])


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
            f"client {client} has no edge between nodes {one} and {other}, so it cannot be "
            f"erased. Name edges of its own subgraph. Nothing was changed.",
            client=client,
        )


def check_fits(records: Records, split: Tensor, clients: int, items: int) -> None:
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
