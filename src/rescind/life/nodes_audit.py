"""What is asked of methods for nodes: what they get right, and what is left of the forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescind.core.clock import Clock
from rescind.data.arrays import Ints
from rescind.life.audit import Floats, key_of, ranks
from rescind.life.entry import Entry
from rescind.life.ledger import TEST, Pair
from rescind.life.nodes import NodeArrival, NodeEntry, NodeLedger

ACCURACY = "accuracy"


def node_quality(entry: Entry, ledger: NodeLedger, _clock: Clock) -> dict[str, dict[str, float]]:
    """Return the accuracy on the test nodes of the newest block and of the others."""
    assert isinstance(entry, NodeEntry)
    nodes = ledger.now()
    right = entry.classify(nodes).argmax(1) == ledger.graph.y[nodes.item]
    block = np.array([ledger.held[n][1] for n in nodes.item.tolist()])
    test = np.array([ledger.held[n][0] == TEST for n in nodes.item.tolist()])
    masks = {"new": test & (block == ledger.block), "old": test & (block < ledger.block)}
    return {
        when: {ACCURACY: round(float(right[mask].mean()), 6)}
        for when, mask in masks.items()
        if mask.any()
    }


@dataclass(frozen=True)
class NodeProbe:
    """Forgotten nodes among all that ever arrived, each with the class that it had."""

    nodes: NodeArrival
    place: Ints
    """[n] where the forgotten nodes are in `nodes`."""
    label: Ints
    users: Ints
    person: Ints
    """[n] each node stands for itself: there are few silos to resample."""

    @property
    def item(self) -> Ints:
        return self.place

    @classmethod
    def of(cls, pairs: Sequence[Pair], ledger: NodeLedger, _clock: Clock) -> NodeProbe | None:
        """Return the probe of some forgotten nodes; None if there are none."""
        nodes = ledger.ever_there()
        asked = np.array(sorted(node for _, node in pairs), dtype=np.int64)
        if not len(asked):
            return None
        each = np.arange(len(asked))
        place = np.searchsorted(nodes.item, asked)
        return cls(nodes, place, ledger.graph.y[asked].astype(np.int64), each, each)

    @property
    def key(self) -> bytes:
        """What the answer of a life depends on."""
        return key_of(self.nodes.item, self.nodes.edge, self.place, self.label)

    def ranks(self, entry: Entry) -> Floats:
        """Return the share of nodes to which the class of a forgotten node is given less. [n]"""
        assert isinstance(entry, NodeEntry)
        logits = entry.classify(self.nodes).astype(np.float64)
        most = logits.max(1, keepdims=True)
        chances = logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))
        return ranks(chances.T, self.label, self.place)
