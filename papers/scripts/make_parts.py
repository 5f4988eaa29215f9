"""Split each graph into ten clients with METIS, and write the parts to the package's data folder.

Needs pymetis, which is used only here (it compiles from source on some machines):

    pip install pymetis && python papers/scripts/make_parts.py
"""

from __future__ import annotations

import argparse

import numpy as np

from rescind.data import GraphDataset, load
from rescind.data.partition import FOLDER, METIS, write_parts


def metis(graph: GraphDataset, clients: int, seed: int) -> np.ndarray:
    """Return the part of each node, with few edges between parts. [N]"""
    import pymetis

    nodes = len(graph)
    start, end = graph.edge_index
    key = np.unique((start * nodes + end)[start != end])
    first = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(key // nodes, minlength=nodes), out=first[1:])
    adjacency = pymetis.CSRAdjacency(adj_starts=first, adjacent=key % nodes)
    _, part = pymetis.part_graph(clients, adjacency, options=pymetis.Options(seed=seed))
    return np.asarray(part, dtype=np.int64)


def main() -> None:
    """Write the parts of every graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for name in METIS:
        graph = load(name)
        assert isinstance(graph, GraphDataset)
        part = metis(graph, chosen.clients, chosen.seed)
        by = f"METIS (pymetis), seed {chosen.seed}"
        print(write_parts(FOLDER / f"{name}.json", graph, part, by), np.bincount(part).tolist())


if __name__ == "__main__":
    main()
