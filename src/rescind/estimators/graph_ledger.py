"""Who has which nodes, edges and labels: what an estimator of graphs needs to take them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from rescind.core.cohort import Graph
from rescind.errors import DataError
from rescind.estimators.frames import Id, in_order
from rescind.estimators.graph_frames import Nodes, Row
from rescind.estimators.ledger import UNCHANGED, must_be_known
from rescind.methods.additive._graph_sums import graph_from


@dataclass
class Part:
    """The graph of one client. Nothing in it speaks of another client's nodes."""

    features: dict[Id, Row] = field(default_factory=dict)
    near: dict[Id, set[Id]] = field(default_factory=dict)
    """The neighbours of each node."""
    label: dict[Id, Id] = field(default_factory=dict)
    _made: dict[Any, Graph] = field(default_factory=dict)

    def copy(self) -> Part:
        near = {node: set(others) for node, others in self.near.items()}
        return Part(dict(self.features), near, dict(self.label))

    def drop(self, node: Id) -> None:
        """Remove a node with its edges and its label."""
        del self.features[node]
        self.label.pop(node, None)
        for other in self.near.pop(node):
            self.near[other].discard(node)

    @property
    def order(self) -> list[Id]:
        """Return the nodes in the order of their ids: sums of fractions depend on it."""
        return in_order(self.features)

    def graph(self, width: int, classes: list[Id]) -> Graph:
        """Return the graph in the order of the ids, so that it is the same for any history."""
        if (width, *classes) not in self._made:
            self._made = {(width, *classes): self._graph(width, classes)}
        return self._made[width, *classes]

    def _graph(self, width: int, classes: list[Id]) -> Graph:
        order = self.order
        place = {node: n for n, node in enumerate(order)}
        table = np.zeros((len(order), width), np.float32)
        for n, (columns, values) in enumerate(self.features[node] for node in order):
            table[n, columns] = values
        ends = [(n, place[other]) for one, n in place.items() for other in self.near[one]]
        number = {label: n for n, label in enumerate(classes)}
        known = [number[self.label[node]] if node in self.label else -1 for node in order]
        edges = torch.from_numpy(np.array(ends, np.int64).reshape(-1, 2).T)
        return graph_from(torch.from_numpy(table), edges, torch.tensor(known), len(classes))


class Change(NamedTuple):
    """What is there after a change. These are final values: making it twice is making it once."""

    before: Mapping[Id, Part]
    """What its clients have until now, those who are known."""
    after: Mapping[Id, Part]
    """What its clients have from now on; no nodes: the client is gone."""
    width: int


@dataclass
class GraphLedger:
    """The parts of all clients, and the client of each node."""

    width: int = 0
    """Number of features."""
    parts: dict[Id, Part] = field(default_factory=dict)
    owner: dict[Id, Id] = field(default_factory=dict)

    @property
    def classes(self) -> list[Id]:
        return in_order({label for part in self.parts.values() for label in part.label.values()})

    # -- what would change -----------------------------------------------------------------------

    def with_(self, nodes: Nodes | None, edges: Iterable[tuple[Id, Id]]) -> Change:
        """Return the parts with more nodes and edges; edges between clients are left out."""
        changed, owner = _Copies(self.parts), dict[Id, Id]()
        width = nodes.features.shape[1] if nodes else self.width
        if self.parts and width != self.width:
            raise DataError(
                f"nodes have {width} features, those before had {self.width}.{UNCHANGED}"
            )
        for node, label, client, row in nodes.rows() if nodes else ():
            if node in self.owner or node in owner:
                raise DataError(f"node {node!r} is there already. Forget it first.{UNCHANGED}")
            owner[node], part = client, changed[client]
            part.features[node], part.near[node] = row, set()
            if label is not None:
                part.label[node] = label
        known = {**self.owner, **owner}
        for one, other in edges:
            for end in (one, other):
                must_be_known(end, known, "node")
            if known[one] == known[other] and one != other:
                near = changed[known[one]].near
                near[one].add(other)
                near[other].add(one)
        return self._changed(changed, width)

    def without(
        self,
        clients: Iterable[Id],
        nodes: Iterable[Id],
        edges: Iterable[tuple[Id, Id]],
        labels: Iterable[Id],
    ) -> Change:
        """Return the parts without these; raise if something is not there."""
        changed = _Copies(self.parts)
        for node in dict.fromkeys(labels):
            if changed[self.client(node)].label.pop(node, None) is None:
                raise DataError(f"node {node!r} has no label.{UNCHANGED}")
        for one, other in {frozenset(ends): ends for ends in edges}.values():
            near = changed[self.client(one)].near
            if other not in near[one]:
                raise DataError(f"there is no edge between {one!r} and {other!r}.{UNCHANGED}")
            near[one].discard(other)
            near[other].discard(one)
        for node in dict.fromkeys(nodes):
            changed[self.client(node)].drop(node)
        for client in clients:
            must_be_known(client, self.parts, "client")
            changed[client] = Part()
        return self._changed(changed, self.width)

    def client(self, node: Id, then: str = UNCHANGED) -> Id:
        """Return the client of a node, or raise. then: as in `must_be_known`"""
        must_be_known(node, self.owner, "node", then)
        return self.owner[node]

    # -- changing --------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Make a change; whoever interrupts it makes it again."""
        for client, part in change.after.items():
            for node in change.before[client].features if client in change.before else ():
                self.owner.pop(node, None)
            if part.features:
                self.parts[client] = part
                self.owner.update(dict.fromkeys(part.features, client))
            else:  # who has no nodes left is gone
                self.parts.pop(client, None)
        self.width = change.width if self.parts else 0

    def _changed(self, after: Mapping[Id, Part], width: int) -> Change:
        before = {client: self.parts[client] for client in after if client in self.parts}
        return Change(before, dict(after), width)


class _Copies(dict[Id, Part]):
    """Copies of the parts that are read, so that an error changes nothing."""

    def __init__(self, parts: Mapping[Id, Part]) -> None:
        super().__init__()
        self.parts = parts

    def __missing__(self, client: Id) -> Part:
        self[client] = self.parts[client].copy() if client in self.parts else Part()
        return self[client]
