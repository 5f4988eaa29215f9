"""Classifying nodes of subgraphs: a record is a labelled node, its loss is cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

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
"""Steps in which scores are counted for ROC-AUC: counts can be added over clients, ranks cannot."""


class NodeModel(Model, Protocol):
    """A model that classifies nodes."""

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """What each client's weights say of its nodes. own: [C, ...]    -> [N, classes]

        keep: factors on the hidden layer, for dropout
        """
        ...


class Settings(Protocol):
    """The fields of a method that this task reads."""

    @property
    def batch_size(self) -> int | None: ...


def graph_of(cohort: Cohort) -> Graph:
    """The cohort's subgraphs, which a task on nodes cannot do without."""
    if cohort.graph is None:
        raise DataError(
            "these clients hold no graph, so there are no nodes to classify. Make holdings with "
            "rescind.data.partition.subgraphs."
        )
    return cohort.graph


def plan(settings: Settings, cohort: Cohort, clock: Clock) -> Plan:
    """All training nodes of a client, or batches of them; "node" is the place in the graph."""
    train, bits = cohort.train, None
    if settings.batch_size is not None:
        bits = clock.bits("order", cohort.ids[train.owner], train.item)
    node = graph_of(cohort).find(train.item)
    return Plan.of(train.owner, len(cohort), settings.batch_size, bits, {}, {"node": node})


def loss(
    settings: Settings,  # noqa: ARG001  the tasks share one signature
    model: NodeModel,
    work: Work,
    batch: Batch,
    cohort: Cohort,
) -> Tensor:
    """The mean cross-entropy of each client's nodes, without dropout. [C]"""
    each = entropy(model, work.dense, batch, cohort)
    return jagged.segment_mean(each, batch.owner, batch.clients)


def entropy(
    model: NodeModel, own: Params, batch: Batch, cohort: Cohort, keep: Tensor | float = 1.0
) -> Tensor:
    """Cross-entropy of every sample of a batch. own: [C, ...], or [1, ...] for all alike    [n]"""
    graph, node = graph_of(cohort), batch.values["node"]
    logits = model.logits(own, graph, keep)
    return functional.cross_entropy(logits[node], graph.label[node], reduction="none")


def scores(
    model: NodeModel,
    public: Params,
    own: Mapping[str, Tensor],  # noqa: ARG001  no weights stay on devices
    cohort: Cohort,
) -> Tensor:
    """Logits of all nodes of a cohort under the broadcast weights. [N, classes]"""
    return model.logits(all_alike(public), graph_of(cohort))


def all_alike(public: Params) -> dict[str, Tensor]:
    """The same weights for everybody, once. [1, ...]"""
    return {name: value.unsqueeze(0) for name, value in public.items()}


def answer(scores: Tensor, cohort: Cohort, owner: Tensor, item: Tensor, ask: Question) -> Tensor:
    """What is said of single nodes: the loss of the true class, or the log-odds of it. [n]"""
    graph = graph_of(cohort)
    at = graph.find(item)
    here = at < len(graph.index)  # past the end: a node that left, or none at all
    at = torch.where(here, at, 0)
    if len(graph.index):
        here &= (graph.index[at] == item) & (graph.owner[at] == owner) & (graph.label[at] >= 0)
    if not bool(here.all()):
        missing = int(item[~here][0])
        raise DataError(
            f"client {int(cohort.ids[owner[~here][0]])} holds no labelled node {missing}, so "
            f"nothing can be asked of it. Ask about records it holds."
        )
    log_p = torch.log_softmax(scores.double(), 1)[at, graph.label[at]]
    if ask == "loss":
        return -log_p
    return log_p - torch.log((-torch.expm1(log_p)).clamp(min=1e-300))


@dataclass(frozen=True)
class Classes:
    """The share of held-out nodes whose class is right; of two classes, ROC-AUC too.

    ROC-AUC pools the nodes of all clients: counts of scores in `BINS` steps, equal steps are ties.
    """

    split: str = "test"
    mask: tuple[str, ...] = ()
    block: int | None = None

    def __post_init__(self) -> None:
        if self.split not in ("valid", "test"):
            raise ConfigError(f"nodes are measured on 'valid' or 'test', not '{self.split}'.")

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """How many are right; how often each score occurs in either class."""
        graph = graph_of(cohort)
        if cohort.held is None:
            raise ConfigError("classes are measured on a cohort with held-out nodes.")
        node = graph.find(cohort.held.item)
        said, label = scores[node], graph.label[node]
        out: dict[str, Tensor] = {"right": (said.argmax(1) == label).sum().double()}
        if graph.classes == 2:
            odds = torch.sigmoid((said[:, 1] - said[:, 0]).double())
            step = (odds * BINS).long().clamp(0, BINS - 1)
            for name, mine in (("ones", label == 1), ("zeros", label == 0)):
                out[name] = torch.bincount(step[mine], minlength=BINS).double()
        return out, len(node)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """The share, and the area under the curve."""
        right = float(totals.get("right", torch.zeros(())))
        out = {"accuracy": right / weight if weight else float("nan")}
        if "ones" in totals:
            ones, zeros = totals["ones"], totals["zeros"]
            below = torch.cumsum(zeros, 0) - zeros / 2
            pairs = float(ones.sum() * zeros.sum())
            out["ROC-AUC"] = float((ones * below).sum()) / pairs if pairs else float("nan")
        return out


def metric(split: str, k: tuple[int, ...]) -> Metric:  # noqa: ARG001
    """Accuracy; lengths of lists mean nothing here."""
    return Classes(split=split)
