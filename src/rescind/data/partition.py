"""Divide a graph among clients, and its nodes into train, valid and test.

Each client holds one part of the graph; edges between clients are dropped, because no device
knows both ends. METIS parts are in the package; other parts are an array of part numbers.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.holdings import TEST, TRAIN, VALID, Holdings
from rescind.core.records import Records
from rescind.data.arrays import Ints, LabelledGraph, Labels, both_directions
from rescind.data.split import rank_in_owner
from rescind.errors import ConfigError, DataError, how_to_install

METIS = ("cora", "citeseer", "pubmed", "tolokers")
"""Graphs with parts in the package, made by `papers/scripts/make_parts.py`."""
FOLDER = Path(__file__).parent / "parts"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

RATIO = (20, 40, 40)
RATIOS = {"tolokers": (50, 25, 25)}
"""Per cent of train, valid and test nodes, by graph (fedgcv.md 2.1). Default: `RATIO`."""


def subgraphs(
    graph: LabelledGraph,
    part: Ints | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    ratio: tuple[int, int, int] | None = None,
) -> Holdings:
    """Divide a graph among clients, and split each client's classes (fedgcv.md section 3).

    Nodes without a label pass messages but are not records. Self-loops and duplicate edges are
    dropped, and every edge is stored in both directions.

    part: [N] the client of each node. Default: the METIS parts in the package
    clients: number of clients, if the last ones have no nodes
    """
    owner = np.asarray(published_parts(graph) if part is None else part)
    n_clients = _count_clients(graph, owner, clients)
    ratio = RATIOS.get(graph.name, RATIO) if ratio is None else ratio
    labelled = np.flatnonzero(graph.y >= 0)
    split = node_split(owner[labelled], graph.y[labelled], labelled, seed, ratio)
    client = torch.from_numpy(owner[labelled].astype(np.int64))
    records, joined = Records.of(client, torch.from_numpy(labelled)), _block_diagonal(graph, owner)
    labels = torch.from_numpy(split)
    return Holdings.of(records, labels, n_clients, len(graph), task="nodes", graph=joined)


def node_split(
    owner: Ints, label: Ints, node: Ints, seed: int, ratio: tuple[int, int, int]
) -> Labels:
    """Label nodes 0 train, 1 valid, 2 test inside each client and class. [n] int8

    Of n nodes, in an order drawn from the seed, the first floor(a n) are train, up to
    floor((a + b) n) valid, the rest test. A node's draw depends only on the seed and its number.
    """
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) != 100:
        raise ConfigError(
            f"ratio is {tuple(ratio)}; percentages must add up to 100, such as {RATIO}."
        )
    draw = Clock(seed).bits("node split", torch.from_numpy(node)).numpy()
    order = np.lexsort((draw, label, owner))
    cell = owner[order] * (int(label.max(initial=0)) + 1) + label[order]
    rank, count = rank_in_owner(cell), np.bincount(cell)[cell]
    first, second = count * ratio[0] // 100, count * (ratio[0] + ratio[1]) // 100
    split = np.empty(len(cell), dtype=np.int8)
    split[order] = np.where(rank < first, TRAIN, np.where(rank < second, VALID, TEST))
    return split


def published_parts(graph: LabelledGraph) -> Ints:
    """Return the METIS parts in the package for the graph they were made from. [N]"""
    stored = _read_parts(graph.name) if graph.name in METIS else {"graph": ""}
    if stored["graph"] != graph.digest:
        raise DataError(
            f"the package has no parts for this graph '{graph.name}', only for the published "
            f"{', '.join(METIS)}. Give parts: subgraphs(graph, louvain(graph, clients=10))."
        )
    return np.array([DIGITS.index(digit) for digit in stored["part"]], dtype=np.int64)


def louvain(graph: LabelledGraph, clients: int, seed: int = 0) -> Ints:
    """Find communities (Blondel et al. 2008) and assign them to clients, largest first. [N]

    Each goes to the client with the fewest nodes so far. Needs networkx.
    """
    if clients < 1:
        raise ConfigError(f"a graph needs 1 client or more; got {clients}.")
    try:
        import networkx
    except ImportError:
        raise ConfigError(
            f"Louvain parts need networkx. Use METIS parts, or run: {how_to_install('graph')}"
        ) from None
    whole = networkx.Graph()
    whole.add_nodes_from(range(len(graph)))
    whole.add_edges_from(graph.edge_index.T.tolist())
    communities = networkx.community.louvain_communities(whole, seed=seed)
    part, held = np.zeros(len(graph), dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for community in sorted(communities, key=lambda nodes: (-len(nodes), min(nodes))):
        client = int(held.argmin())
        part[list(community)] = client
        held[client] += len(community)
    return part


@lru_cache(maxsize=8)
def _read_parts(name: str) -> dict[str, Any]:
    path = files("rescind.data").joinpath("parts", f"{name}.json")
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if _digest(stored["part"]) != stored["digest"]:
        raise DataError(f"the parts of '{name}' were changed. Install the package again.")
    return stored


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _count_clients(graph: LabelledGraph, owner: Ints, clients: int | None) -> int:
    """Check that the parts fit the graph, and return the number of clients."""
    whole = owner.shape == (len(graph),) and np.issubdtype(owner.dtype, np.integer)
    if not whole or len(graph) == 0:
        raise DataError(
            f"parts must be {len(graph)} whole numbers, the client of each node of "
            f"'{graph.name}'; got {owner.dtype} of shape {owner.shape}."
        )
    low, high = int(owner.min()), int(owner.max())
    count = high + 1 if clients is None else clients
    if low < 0 or high >= count or count > len(graph):
        raise DataError(
            f"parts of '{graph.name}' are {low} to {high}; with {count} clients use 0 to "
            f"{count - 1}, and at most {len(graph)} clients."
        )
    return count


def _block_diagonal(graph: LabelledGraph, owner: Ints) -> Graph:
    nodes = len(graph)
    start, end = graph.edge_index.astype(np.int64)
    inside = owner[start] == owner[end]
    node, feature, value = _entries(graph.features)
    if not np.isfinite(value).all():
        raise DataError(
            f"a feature of node {int(node[~np.isfinite(value)][0])} of '{graph.name}' is not a "
            "number. Replace or remove it first."
        )
    return Graph(
        owner=torch.from_numpy(owner.astype(np.int64)),
        index=torch.arange(nodes),
        edge=torch.from_numpy(both_directions(start[inside], end[inside], nodes)),
        node=torch.from_numpy(node),
        feature=torch.from_numpy(feature),
        value=torch.from_numpy(value),
        label=torch.from_numpy(graph.y.astype(np.int64)),
        features=int(graph.features.shape[1]),
        classes=graph.num_classes,
    )


def _entries(features: Any) -> tuple[Ints, Ints, np.ndarray]:
    """Return the nonzero entries as (node, feature, value), sorted by node. [m] each"""
    if isinstance(features, np.ndarray):
        node, feature = np.nonzero(features)
        return node, feature, features[node, feature].astype(np.float32)
    matrix = features.tocoo()
    order = np.lexsort((matrix.col, matrix.row))
    node, feature = matrix.row[order].astype(np.int64), matrix.col[order].astype(np.int64)
    return node, feature, matrix.data[order].astype(np.float32)
