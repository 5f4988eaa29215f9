"""A graph in pieces: nodes that arrive with their edges, requests that name some, an oracle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.records import (
    Arrive,
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Join,
    Withdraw,
)
from rescind.data import GraphDataset
from rescind.data.arrays import Ints, Mask
from rescind.data.partition import published_parts
from rescind.errors import ConsentError
from rescind.life.entry import Arrival, Asked, Entry, Kind
from rescind.life.ledger import TRAIN, Pair, pairs

UNKNOWN = -1
"""The label of a node that is held out, or whose label was erased."""


@dataclass(frozen=True)
class NodeArrival(Arrival):
    """Nodes of a block, sorted: `item` is the node, `user` the silo that holds it."""

    label: Ints
    """[n] the class of a node to train on, else `UNKNOWN`."""
    edge: Ints
    """[2, m] pairs of nodes, each once, the lower first. An end may have arrived before."""
    features: Any
    """[n, d] sparse rows."""

    def without(self, asked: NodeAsked) -> NodeArrival:
        """Return what is left after a request; with a node go its edges."""
        gone = np.isin(self.user, asked.leavers)
        label = self.label
        if asked.kind == "erase":
            gone |= np.isin(self.item, asked.item)
        if asked.kind == "labels":
            label = np.where(np.isin(self.item, asked.item), UNKNOWN, label)
        edge = self.edge
        if asked.kind == "edges":
            edge = edge[:, ~np.isin(keys(edge), keys(asked.edge))]
        return replace(self, label=label, edge=edge).keep(~gone)

    def keep(self, chosen: Mask) -> NodeArrival:
        """Return some of the nodes, and the edges between them."""
        columns = {
            name: getattr(self, name)[chosen]
            for name in ("user", "item", "time", "lent", "label", "features")
        }
        inside = np.isin(self.edge, columns["item"]).all(0)
        return replace(self, **columns, edge=self.edge[:, inside])


@dataclass(frozen=True)
class NodeAsked(Asked):
    """A request to forget nodes, labels, edges or silos."""

    edge: Ints
    """[2, m] the edges it names; none unless the kind is "edges"."""


class NodeEntry(Entry):
    """A method that classifies nodes. `users` of the setting are silos, `items` are nodes."""

    @abstractmethod
    def classify(self, nodes: NodeArrival) -> NDArray[Any]:
        """Return the logits of nodes, from features and edges; labels are hidden. [n, classes]"""

    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        raise TypeError("a method for nodes is asked to classify, not to score items.")


def keys(edge: Ints) -> Ints:
    """Return each pair of nodes as one number. [m]"""
    return (edge[0].astype(np.int64) << 31) + edge[1]


def joined_nodes(arrivals: Sequence[NodeArrival]) -> NodeArrival:
    """Return all nodes as one arrival, sorted; of a node that arrives twice, the first counts."""
    from scipy.sparse import vstack

    item = np.concatenate([a.item for a in arrivals])
    _, first = np.unique(item, return_index=True)
    columns = {
        name: np.concatenate([getattr(a, name) for a in arrivals])[first]
        for name in ("user", "item", "time", "lent", "label")
    }
    edge = np.concatenate([a.edge for a in arrivals], axis=1)
    _, once = np.unique(keys(edge), return_index=True)
    features = vstack([a.features for a in arrivals]).tocsr()[first]
    last = max(a.block for a in arrivals)
    return NodeArrival(last, **columns, edge=edge[:, once], features=features)


class NodeLedger:
    """Plain dictionaries, like the ledger of items. It shares no code with the federations."""

    def __init__(self, graph: GraphDataset) -> None:
        from scipy.sparse import csr_matrix

        self.graph, self.home = graph, published_parts(graph)
        self.features = csr_matrix(graph.features)
        low, high = np.unique(np.sort(graph.edge_index, axis=0), axis=1)
        real = (low != high) & (self.home[low] == self.home[high])
        self.edges: list[Pair] = list(zip(low[real].tolist(), high[real].tolist(), strict=True))
        self.held: dict[int, tuple[int, int]] = {}
        """By node: (split, block)."""
        self.unlabelled: set[int] = set()
        self.cut: set[Pair] = set()
        """Edges that were erased."""
        self.members: set[int] = set(range(int(self.home.max()) + 1))
        self.left: dict[int, int] = {}
        self.ever: set[int] = set()
        self.forgotten: dict[Pair, int] = {}
        self.block = -1

    # -- events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Write down one event; raise `ConsentError` if it cannot happen."""
        match event:
            case Arrive():
                self._arrive(event)
            case EraseEdges(records):
                self.cut |= set(zip(records.item.tolist(), records.time.tolist(), strict=True))
            case EraseLabels(records):
                for silo, node in pairs(records):
                    self._must_train(silo, node)
                    self.unlabelled.add(node)
                    self.forgotten[silo, node] = self.block
            case Erase(records):
                for silo, node in pairs(records):
                    self._must_train(silo, node)
                    self._drop(node)
            case Withdraw(silo):
                if silo not in self.members:
                    raise ConsentError(f"silo {silo} is not a member, so it cannot withdraw.")
                for node in [n for n in self.held if self.home[n] == silo]:
                    self._drop(node)
                self.members.discard(silo)
                self.left[silo] = self.block
            case Join(silo):
                self.members.add(silo)
                self.left.pop(silo, None)
            case _:
                raise ConsentError(f"{type(event).__name__} is no event of a story of nodes.")

    def _arrive(self, event: Arrive) -> None:
        self.block += 1
        split = event.split.tolist()
        for (silo, node), kind in zip(pairs(event.records), split, strict=True):
            if silo not in self.members or silo != self.home[node]:
                raise ConsentError(f"node {node} cannot arrive at silo {silo}.")
            self.held[node] = (kind, self.block)
            self.ever.add(node)
            self.unlabelled.discard(node)
            self.forgotten.pop((silo, node), None)  # given again

    def _must_train(self, silo: int, node: int) -> None:
        if self.home[node] != silo or node not in self.trained():
            raise ConsentError(f"silo {silo} has no training node {node}.")

    def _drop(self, node: int) -> None:
        if node in self.trained():
            self.forgotten[int(self.home[node]), node] = self.block
        del self.held[node]

    # -- what is true now ------------------------------------------------------------------------

    def trained(self) -> set[int]:
        """Return the nodes whose label is learnt from."""
        return {n for n, (split, _) in self.held.items() if split == TRAIN} - self.unlabelled

    def kept_edges(self) -> list[Pair]:
        """Return the edges between nodes that are held."""
        return [
            e for e in self.edges if e[0] in self.held and e[1] in self.held and e not in self.cut
        ]

    def blocks(self) -> list[NodeArrival]:
        """Return what remains, block by block: the life in which the rest was never there."""
        when = {
            edge: max(self.held[edge[0]][1], self.held[edge[1]][1]) for edge in self.kept_edges()
        }
        return [
            self._piece(
                block,
                sorted(n for n, (_, at) in self.held.items() if at == block),
                [edge for edge, at in when.items() if at == block],
            )
            for block in range(self.block + 1)
        ]

    def now(self) -> NodeArrival:
        """Return all nodes that are held."""
        return self._piece(self.block, sorted(self.held), self.kept_edges())

    def ever_there(self) -> NodeArrival:
        """Return all nodes that ever arrived, with all edges between them, for audits."""
        edges = [e for e in self.edges if e[0] in self.ever and e[1] in self.ever]
        return self._piece(self.block, sorted(self.ever), edges)

    def _piece(self, block: int, nodes: list[int], edges: list[Pair]) -> NodeArrival:
        item, trained = np.array(nodes, dtype=np.int64), self.trained()
        label = [int(self.graph.y[n]) if n in trained else UNKNOWN for n in nodes]
        none = np.zeros(len(item), dtype=np.int64)
        return NodeArrival(
            block, self.home[item], item, none, none.astype(np.bool_),
            np.array(label, dtype=np.int64), _columns(edges), self.features[item],
        )  # fmt: skip

    def asked(self, events: Iterable[Event]) -> NodeAsked:
        """Return a request to forget as methods get it, before the ledger applies it."""
        named: list[Pair] = []
        edges: list[Pair] = []
        leavers: list[int] = []
        kind: Kind = "erase"
        for event in events:
            match event:
                case EraseEdges(records):
                    kind = "edges"
                    edges += zip(records.item.tolist(), records.time.tolist(), strict=True)
                case Erase(records):
                    kind = "labels" if isinstance(event, EraseLabels) else "erase"
                    named += pairs(records)
                case Withdraw(silo):
                    kind = "withdraw"
                    leavers.append(silo)
                    named += [(silo, n) for n in self.trained() if self.home[n] == silo]
                case _:
                    raise ConsentError(f"{type(event).__name__} is not a request to forget.")
        ends = {node for edge in edges for node in edge} & self.trained()
        named += [(int(self.home[node]), node) for node in ends]
        user, item = np.array(sorted(named), dtype=np.int64).reshape(-1, 2).T.copy()
        return NodeAsked(kind, user, item, np.array(leavers, dtype=np.int64), _columns(edges))

    def gone(self, block: int | None = None) -> list[Pair]:
        """Return the nodes whose labels were forgotten in a block (None: in any), sorted."""
        return sorted(p for p, at in self.forgotten.items() if block is None or at == block)


def _columns(edges: Iterable[Pair]) -> Ints:
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T.copy()
