"""Requests about parts of a graph: nodes, edges and labels, by the numbers of nodes."""

from __future__ import annotations

from rescind.core.federation import Federation
from rescind.core.records import Erase, EraseEdges, EraseLabels, Event, Records
from rescind.home import Refused, Request


def graph_event(fed: Federation, request: Request) -> Event:
    """Return the event of a request about a graph; the client of a node is looked up."""
    graph = fed.now.vault.holdings.graph
    if graph is None:
        raise Refused("no-graph", f"{request.kind} are parts of a graph, and this run has none.")
    owner = dict(zip(graph.index.tolist(), graph.owner.tolist(), strict=True))
    labelled = dict(zip(graph.index.tolist(), (graph.label >= 0).tolist(), strict=True))
    rows = _numbers(request)
    for node in (n for row in rows for n in row):
        if node not in owner:
            raise Refused("not-held", f"there is no node {node} in this run, or no more.")
    client = [owner[row[0]] for row in rows]
    if request.kind == "edges":
        ends = [sorted(row) for row in rows]
        there = {*map(tuple, graph.index[graph.edge].T.tolist())}
        if none := [row for row in ends if tuple(row) not in there]:
            low, high = none[0]
            raise Refused("not-held", f"there is no edge {low}-{high} in this run, or no more.")
        return EraseEdges(Records.of(client, [low for low, _ in ends], [high for _, high in ends]))
    if bare := [row[0] for row in rows if not labelled[row[0]]]:
        raise Refused("not-held", f"node {bare[0]} has no label in this run, or no more.")
    records = Records.of(client, [row[0] for row in rows])
    return Erase(records) if request.kind == "nodes" else EraseLabels(records)


def _numbers(request: Request) -> list[list[int]]:
    """Return distinct rows of node numbers: `12`, of edges `12-40`."""
    width = 2 if request.kind == "edges" else 1
    rows = [text.split("-") for items in request.records.values() for text in items or ()]
    good = [row for row in rows if len(row) == width and all(map(str.isdecimal, row))]
    if len(good) < len(rows) or not rows:
        form = "12-40,12-55" if width == 2 else "12,40"
        raise Refused("form", f"{request.kind} are written {form}, by numbers of nodes.")
    return [list(row) for row in dict.fromkeys(tuple(map(int, row)) for row in good)]
