"""Methods for nodes that take part: federations of silos that hold parts of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.cohort import Graph
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.method import Method, Unlearner
from rescind.core.records import Erase, EraseEdges, EraseLabels, Event, Records, Withdraw
from rescind.core.settings import to_table
from rescind.data.arrays import both_directions
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.life.entry import Arrival, Asked, Entry, Setting
from rescind.life.federated import Federated, Shifting
from rescind.life.nodes import UNKNOWN, NodeArrival, NodeAsked, NodeEntry, joined_nodes
from rescind.life.rows import Build, Row

ROUNDS = 20
"""Rounds of a model that is trained from the start in each block; a sum needs one."""


class Silos(Federated, NodeEntry):
    """In each block silos train a new model on all they hold; a request is answered by `how`."""

    def __init__(
        self,
        setting: Setting,
        seed: int,
        learner: Method,
        rounds: int,
        how: Unlearner | None = None,
    ) -> None:
        super().__init__(setting, seed, learner, rounds)
        self.how = how
        self.held: NodeArrival | None = None

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "unlearner": to_table(self.how) if self.how else "own"}

    def arrive(self, arrival: Arrival) -> None:
        assert isinstance(arrival, NodeArrival)
        self.relive([arrival] if self.held is None else [self.held, arrival])

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        self.held = joined_nodes([a for a in arrivals if isinstance(a, NodeArrival)])
        fed = Federation.start(holdings_of(self.held, self.setting), self.learner, self.seed)
        self.fed = replace(fed, watch=(self.counting(),)).run(self.rounds)

    def forget(self, asked: Asked) -> None:
        assert isinstance(asked, NodeAsked)
        assert self.held is not None, "no block has arrived yet"
        fed = self.now
        for event in events_of(asked, self.held):
            fed = unlearn_and_purge(fed, fed.request(event), self.how).fed
        self.fed, self.held = fed, self.held.without(asked)

    def classify(self, nodes: NodeArrival) -> NDArray[Any]:
        held = holdings_of(replace(nodes, label=np.full(len(nodes), UNKNOWN)), self.setting)
        ids = torch.arange(self.setting.users)
        private = self.now.now.vault.read(ids)
        public = self.now.now.state.public
        return self.learner.client_scores(public, private, held.cohort(ids)).double().numpy()


class ExactSilos(Silos):
    """Sums that subtract, and the platform's own retraining."""

    exact = True


class NoOpSilos(Silos):
    """A control: it says that it forgot, and does nothing at all."""

    def forget(self, asked: Asked) -> None:
        pass


class ShiftedSilos(Shifting, NoOpSilos):
    """A control: it does nothing but subtract a constant from all logits."""

    def classify(self, nodes: NodeArrival) -> NDArray[Any]:
        return super().classify(nodes) - self.by


# -- from arrays to the core ---------------------------------------------------------------------


def holdings_of(nodes: NodeArrival, setting: Setting) -> Holdings:
    """Return silos that hold these nodes; those with a label are records to train on."""
    train = nodes.label != UNKNOWN
    records = Records.of(torch.from_numpy(nodes.user[train]), torch.from_numpy(nodes.item[train]))
    split = torch.zeros(len(records), dtype=torch.int8)
    graph = graph_of(nodes, setting)
    return Holdings.of(records, split, setting.users, setting.items, task="nodes", graph=graph)


def graph_of(nodes: NodeArrival, setting: Setting) -> Graph:
    """Return the nodes as the graph of the core: positions, and edges in both directions."""
    start, end = np.searchsorted(nodes.item, nodes.edge)
    rows = nodes.features.tocsr().sorted_indices().tocoo()
    return Graph(
        owner=torch.from_numpy(nodes.user),
        index=torch.from_numpy(nodes.item),
        edge=torch.from_numpy(both_directions(start, end, max(1, len(nodes)))),
        node=torch.from_numpy(rows.row.astype(np.int64)),
        feature=torch.from_numpy(rows.col.astype(np.int64)),
        value=torch.from_numpy(rows.data.astype(np.float32)),
        label=torch.from_numpy(nodes.label),
        features=int(nodes.features.shape[1]),
        classes=setting.classes,
    )


def events_of(asked: NodeAsked, held: NodeArrival) -> list[Event]:
    """Return the events of a request."""
    if asked.kind == "withdraw":
        return [Withdraw(silo) for silo in asked.leavers.tolist()]
    if asked.kind == "edges":
        low, high = asked.edge
        owner = held.user[np.searchsorted(held.item, low)]
        return [EraseEdges(Records.of(*(torch.from_numpy(c) for c in (owner, low, high))))]
    records = Records.of(torch.from_numpy(asked.user), torch.from_numpy(asked.item))
    return [EraseLabels(records) if asked.kind == "labels" else Erase(records)]


# -- rows ----------------------------------------------------------------------------------------


def _graph_gram(setting: Setting, seed: int) -> Entry:
    from rescind.methods.additive.graph_gram import GraphGram

    return ExactSilos(setting, seed, GraphGram(), 1)


def _trained(kind: Callable[..., Entry]) -> Build:
    def build(setting: Setting, seed: int) -> Entry:
        from rescind.methods.graphs.fedavg import GraphFedSGD

        return kind(setting, seed, GraphFedSGD(), ROUNDS)

    return build


def _fedgcv(setting: Setting, seed: int) -> Entry:
    from rescind.methods.graphs.fedavg import GraphFedSGD
    from rescind.methods.graphs.fedgcv import FedGCV

    return Silos(setting, seed, GraphFedSGD(), ROUNDS, FedGCV())


NODE_ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("GraphGram", _graph_gram, "a sum over silos; subtracts"),
        Row("FedGCV", _fedgcv, "learns anew; its unlearner for silos, else trains again"),
        Row("GraphFedSGD + retraining", _trained(ExactSilos), "learns anew; trains again"),
        Row("no-op", _trained(NoOpSilos), "GraphFedSGD; does nothing: must fail"),
        Row("score shift", _trained(ShiftedSilos), "GraphFedSGD; shifts logits: must fail"),
    )
}
