"""Measure the leak of virtual clients: `python papers/scripts/findings/virtual_client.py` (1 min).

FedGCV's virtual clients of Cora, made by a VGAE as published and compared with the real subgraph:
the AUC of its edge likelihoods (.5: no leak), and the fraction of nodes that are nearest to their
own synthetic features.
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
    """Return the digest of the graph and a row per client."""
    graph, rows = load("cora"), []
    held = subgraphs(graph, seed=2025)
    for client in clients:
        mine = held.graph.keep(held.graph.owner == client)
        virtual = VGAE().stand_in(mine, Clock(0))
        result = leak(mine, virtual.likely, virtual.features)
        rows.append(
            {
                "client of Cora": client,
                "nodes": len(mine.index),
                "edges told, AUC": round(result.edge_auc, 3),
                "nodes found again": round(result.found_again, 3),
                "by chance": round(1 / len(mine.index), 3),
            }
        )
    return {"cora": graph.digest}, rows


if __name__ == "__main__":
    write("virtual_client", *found())
