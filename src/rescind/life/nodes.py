"""A graph in pieces: nodes that arrive with their edges, and requests that name some of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints, Mask
from rescind.life.entry import Arrival, Asked, Entry

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
