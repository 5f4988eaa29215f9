"""A graph on devices: who holds which nodes, and which of them train, validate and test.

Each client holds one part of the graph; edges between clients are dropped, since no device knows
both ends. Parts cut by METIS come with the package; any others are an array of part numbers.
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
from rescind.data.arrays import Ints, LabelledGraph
from rescind.errors import ConfigError, DataError

METIS = ("cora", "citeseer", "pubmed", "tolokers")
"""Graphs whose parts come with the package; `papers/scripts/make_parts.py` made them."""
FOLDER = Path(__file__).parent / "parts"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

RATIO = (20, 40, 40)
RATIOS = {"tolokers": (50, 25, 25)}
"""Per cent of train, valid and test nodes, by graph (fedgcv.md 2.1); `RATIO` for the others."""


def subgraphs(
    graph: LabelledGraph,
    part: Ints | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    ratio: tuple[int, int, int] | None = None,
) -> Holdings:
    """A graph on devices, split inside each client and class with a seed (fedgcv.md section 3).

    Nodes without a label pass messages on but are nobody's record. Self-loops and repeated edges
    are dropped, and every edge goes both ways.

    part: [N] the client of each node; None takes the METIS parts that come with the package
    clients: how many there are, where the last parts are empty
    """
    owner = np.asarray(published_parts(graph) if part is None else part)
    many = _checked(graph, owner, clients)
    ratio = RATIOS.get(graph.name, RATIO) if ratio is None else ratio
    labelled = np.flatnonzero(graph.y >= 0)
    split = node_split(owner[labelled], graph.y[labelled], labelled, seed, ratio)
    return Holdings.of(
        Records.of(torch.from_numpy(owner[labelled].astype(np.int64)), torch.from_numpy(labelled)),
        torch.from_numpy(split),
        many,
        len(graph),
        task="nodes",
        graph=_side_by_side(graph, owner),
    )


def node_split(
    owner: Ints, label: Ints, node: Ints, seed: int, ratio: tuple[int, int, int]
) -> np.ndarray:
    """Label nodes 0 train, 1 valid, 2 test: of the n of a client and class, in an order drawn from
    the seed, the first floor(a n) train, up to floor((a + b) n) validate, the rest test. [n] int8

    A node's draw depends on the seed and its own number alone.
    """
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) != 100:
        raise ConfigError(
            f"ratio is {tuple(ratio)}; give per cents of train, valid and test nodes that add up "
            f"to 100, for example {RATIO}."
        )
    draw = Clock(seed).bits("node split", torch.from_numpy(node)).numpy()
    order = np.lexsort((draw, label, owner))
    cell = owner[order] * (int(label.max(initial=0)) + 1) + label[order]
    start = np.flatnonzero(np.concatenate(([True], cell[1:] != cell[:-1]))) if len(cell) else cell
    size = np.diff(np.append(start, len(cell)))
    rank, many = np.arange(len(cell)) - np.repeat(start, size), np.repeat(size, size)
    first, second = many * ratio[0] // 100, many * (ratio[0] + ratio[1]) // 100
    split = np.empty(len(cell), dtype=np.int8)
    split[order] = np.where(rank < first, TRAIN, np.where(rank < second, VALID, TEST))
    return split


def published_parts(graph: LabelledGraph) -> Ints:
    """The METIS parts that come with the package, for the very graph they were made of. [N]"""
    if graph.name not in METIS:
        raise DataError(
            f"nobody has cut the graph '{graph.name}' into clients yet (parts come with the "
            f"package for {', '.join(METIS)}). Say who holds which node: "
            f"subgraphs(graph, part), or subgraphs(graph, louvain(graph, clients=10))."
        )
    stored = _read_parts(graph.name)
    if stored["graph"] != graph.digest:
        raise DataError(
            f"the parts of '{graph.name}' were made of another version of the graph "
            f"({stored['graph'][:20]}..., this one is {graph.digest[:20]}...). Get the graph "
            f"again, or give parts of your own: subgraphs(graph, part)."
        )
    return np.array([DIGITS.index(digit) for digit in stored["part"]], dtype=np.int64)


def louvain(graph: LabelledGraph, clients: int, seed: int = 0) -> Ints:
    """Communities (Blondel et al. 2008) dealt out to so many clients, largest first. [N]

    Each goes to whoever holds fewest nodes so far. Needs networkx.
    """
    if clients < 1:
        raise ConfigError(f"a graph is dealt out to 1 client or more; got {clients}.")
    try:
        import networkx
    except ImportError:
        raise ConfigError(
            "Louvain parts need networkx: pip install 'rescind[graph]', or use METIS parts."
        ) from None
    whole = networkx.Graph()
    whole.add_nodes_from(range(len(graph)))
    whole.add_edges_from(graph.edge_index.T.tolist())
    found = networkx.community.louvain_communities(whole, seed=seed)
    part, held = np.zeros(len(graph), dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for community in sorted(found, key=lambda nodes: (-len(nodes), min(nodes))):
        to = int(held.argmin())
        part[list(community)] = to
        held[to] += len(community)
    return part


def write_parts(path: Path, graph: LabelledGraph, part: Ints, by: str) -> str:
    """Keep parts, one digit per node, with the digest of the graph and of themselves."""
    text = "".join(DIGITS[number] for number in part.tolist())
    stored = {"graph": graph.digest, "by": by, "digest": _digest(text), "part": text}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return f"{path.name}: {len(text)} nodes, {stored['digest'][:20]}..."


@lru_cache(maxsize=8)
def _read_parts(name: str) -> dict[str, Any]:
    place = files("rescind.data").joinpath("parts", f"{name}.json")
    stored: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    if _digest(stored["part"]) != stored["digest"]:
        raise DataError(
            f"the parts of '{name}' do not match their digest: the installed package was changed. "
            f"Install it again."
        )
    return stored


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _checked(graph: LabelledGraph, owner: Ints, clients: int | None) -> int:
    """How many clients there are, if the parts fit the graph."""
    if owner.shape != (len(graph),) or not np.issubdtype(owner.dtype, np.integer):
        raise DataError(
            f"parts must be {len(graph)} whole numbers, the client of each node of "
            f"'{graph.name}'; got {owner.dtype} of shape {owner.shape}."
        )
    if len(graph) == 0:
        raise DataError(f"the graph '{graph.name}' has no nodes, so nobody can hold any.")
    low, high = int(owner.min()), int(owner.max())
    many = high + 1 if clients is None else clients
    if low < 0 or high >= many:
        raise DataError(f"parts go from {low} to {high}; with {many} clients use 0 to {many - 1}.")
    if many > len(graph):
        raise DataError(
            f"'{graph.name}' has {len(graph)} nodes, fewer than its {many} clients. "
            f"Use at most {len(graph)} clients."
        )
    return many


def _side_by_side(graph: LabelledGraph, owner: Ints) -> Graph:
    """All parts as one block-diagonal graph."""
    nodes = len(graph)
    start, end = graph.edge_index.astype(np.int64)
    inside = (owner[start] == owner[end]) & (start != end)
    start, end = start[inside], end[inside]
    key = np.unique(np.concatenate((start * nodes + end, end * nodes + start)))
    node, feature, value = _entries(graph.features)
    if not np.isfinite(value).all():
        raise DataError(
            f"a feature of node {int(node[~np.isfinite(value)][0])} of '{graph.name}' is not a "
            f"number. Replace or drop it first."
        )
    return Graph(
        owner=torch.from_numpy(owner.astype(np.int64)),
        index=torch.arange(nodes),
        edge=torch.from_numpy(np.stack((key // nodes, key % nodes))),
        node=torch.from_numpy(node),
        feature=torch.from_numpy(feature),
        value=torch.from_numpy(value),
        label=torch.from_numpy(graph.y.astype(np.int64)),
        features=int(graph.features.shape[1]),
        classes=graph.num_classes,
    )


def _entries(features: Any) -> tuple[Ints, Ints, np.ndarray]:
    """The entries that are not zero as (node, feature, value), sorted by node. [m] each"""
    if isinstance(features, np.ndarray):
        node, feature = np.nonzero(features)
        return node, feature, features[node, feature].astype(np.float32)
    matrix = features.tocoo()
    order = np.lexsort((matrix.col, matrix.row))
    node, feature = matrix.row[order].astype(np.int64), matrix.col[order].astype(np.int64)
    return node, feature, matrix.data[order].astype(np.float32)
