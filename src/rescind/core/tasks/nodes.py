"""Node classification in subgraphs: a record is a labelled node, its loss is cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Graph, Lot
from rescind.core.model import Model
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.tasks import Metric, Question
from rescind.errors import ConfigError, DataError

BINS = 2**14
"""Histogram bins of scores for ROC-AUC: counts can be added over clients, ranks cannot."""


class NodeModel(Model, Protocol):
    """A model that classifies nodes."""

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """Compute the logits of each client's nodes. own: [C, ...]    -> [N, classes]

        keep: factors on the hidden layer, for dropout
        """
        ...


def graph_of(cohort: Cohort) -> Graph:
    """Return the cohort's subgraphs; raise `DataError` if there are none."""
    if cohort.graph is None:
        raise DataError("these clients have no graph. Use rescind.data.partition.subgraphs.")
    return cohort.graph


def plan(settings: Any, cohort: Cohort, clock: Clock) -> Plan:
    """Return all training nodes, or batches of them; "node" is the position in the graph."""
    train, bits = cohort.train, None
    if settings.batch_size is not None:
        bits = clock.bits("order", cohort.ids[train.owner], train.item)
    node = graph_of(cohort).find(train.item)
    return Plan.of(train.owner, len(cohort), settings.batch_size, bits, {}, {"node": node})


def loss(_settings: Any, model: NodeModel, work: Work, batch: Batch, cohort: Cohort) -> Tensor:
    """Compute the mean cross-entropy of each client's nodes, without dropout. [C]"""
    each = entropy(model, work.dense, batch, cohort)
    return jagged.segment_mean(each, batch.owner, batch.clients)


def entropy(
    model: NodeModel, own: Params, batch: Batch, cohort: Cohort, keep: Tensor | float = 1.0
) -> Tensor:
    """Compute the cross-entropy of every sample. own: [C, ...], or [1, ...] if shared    [n]"""
    graph, node = graph_of(cohort), batch.values["node"]
    logits = model.logits(own, graph, keep)
    return functional.cross_entropy(logits[node], graph.label[node], reduction="none")


def scores(model: NodeModel, public: Params, _own: Params, cohort: Cohort) -> Tensor:
    """Compute the logits of all nodes of a cohort; devices keep no weights. [N, classes]"""
    return model.logits(same_for_all(public), graph_of(cohort))


def same_for_all(public: Params) -> dict[str, Tensor]:
    """Add a leading dimension of 1: the same weights for all clients. [1, ...]"""
    return {name: value.unsqueeze(0) for name, value in public.items()}


def answer(scores: Tensor, cohort: Cohort, owner: Tensor, item: Tensor, ask: Question) -> Tensor:
    """Return the loss of each node's true class, or its log-odds. [n]"""
    graph = graph_of(cohort)
    at = graph.find(item)
    here = at < len(graph.index)  # past the end: the node was removed or never existed
    at = torch.where(here, at, 0)
    if len(graph.index):
        here &= (graph.index[at] == item) & (graph.owner[at] == owner) & (graph.label[at] >= 0)
    if not bool(here.all()):
        client, node = int(cohort.ids[owner[~here][0]]), int(item[~here][0])
        raise DataError(f"client {client} holds no labelled node {node}. Use records it holds.")
    log_p = torch.log_softmax(scores.double(), 1)[at, graph.label[at]]
    if ask == "loss":
        return -log_p
    return log_p - torch.log((-torch.expm1(log_p)).clamp(min=1e-300))


@dataclass(frozen=True)
class Classes:
    """Accuracy on held-out nodes; with two classes, ROC-AUC too.

    ROC-AUC pools the nodes of all clients: scores are counted in `BINS` bins, equal bins are ties.
    """

    split: str = "test"
    mask: tuple[str, ...] = ()
    block: int | None = None

    def __post_init__(self) -> None:
        if self.split not in ("valid", "test"):
            raise ConfigError(f"Classes.split must be 'valid' or 'test', got '{self.split}'.")

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Count the correct nodes, and how often each score occurs in either class."""
        graph = graph_of(cohort)
        if cohort.held is None:
            raise ConfigError("Classes needs a cohort with held-out nodes.")
        node = graph.find(cohort.held.item)
        logits, label = scores[node], graph.label[node]
        out: dict[str, Tensor] = {"right": (logits.argmax(1) == label).sum().double()}
        if graph.classes == 2:
            odds = torch.sigmoid((logits[:, 1] - logits[:, 0]).double())
            bins = (odds * BINS).long().clamp(0, BINS - 1)
            for name, chosen in (("ones", label == 1), ("zeros", label == 0)):
                out[name] = torch.bincount(bins[chosen], minlength=BINS).double()
        return out, len(node)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """Compute accuracy and ROC-AUC from the totals."""
        right = float(totals.get("right", torch.zeros(())))
        out = {"accuracy": right / weight if weight else float("nan")}
        if "ones" in totals:
            ones, zeros = totals["ones"], totals["zeros"]
            below = torch.cumsum(zeros, 0) - zeros / 2
            pairs = float(ones.sum() * zeros.sum())
            out["ROC-AUC"] = float((ones * below).sum()) / pairs if pairs else float("nan")
        return out


def metric(split: str, _k: tuple[int, ...]) -> Metric:
    """Return the accuracy metric; it has no list lengths."""
    return Classes(split=split)
