"""What a virtual client gives away: `python papers/scripts/findings/virtual_client.py` (a minute).

FedGCV's stand-in for clients of Cora, made as published by a VGAE and held against the subgraph it
was made of: how well its likelihoods tell real edges from pairs without one (.5: not at all), and
how many nodes are nearest to their own synthetic features.
"""

from __future__ import annotations

from typing import Any

from writing import write

from rescind.audits.virtual_client import leak
from rescind.core.clock import Clock
from rescind.data import load
from rescind.data.partition import subgraphs
from rescind.methods.graphs._vgae import VGAE


def found(clients: tuple[int, ...] = (0, 3, 6)) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The digest of the graph; a row for each client."""
    graph, rows = load("cora"), []
    held = subgraphs(graph, seed=2025)
    for client in clients:
        mine = held.graph.keep(held.graph.owner == client)
        double = VGAE().stand_in(mine, Clock(0))
        told = leak(mine, double.likely, double.features)
        rows.append(
            {
                "client of Cora": client,
                "nodes": len(mine.index),
                "edges told, AUC": round(told.edge_auc, 3),
                "nodes found again": round(told.found_again, 3),
                "by chance": round(1 / len(mine.index), 3),
            }
        )
    return {"cora": graph.digest}, rows


if __name__ == "__main__":
    write("virtual_client", *found())
