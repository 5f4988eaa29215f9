"""Attack the sums of GraphGram: what a part, or a secure sum of all parts, says of single nodes.

Three attacks. *Peeling*: a column that only one node has (sum of squares = square of the sum) shows
that node's whole row and label; subtract it and look again. *Words and edges* are then guessed from
the rows found. *Known nodes*: the attacker has the row of a node and asks whether it was trained on
(its leverage) and with which label (the least squares fit).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rescind.core.cohort import Graph
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.tasks.nodes import graph_of
from rescind.errors import ConfigError
from rescind.methods.additive._pairs import mirrored
from rescind.methods.additive.graph_gram import GraphGram
from rescind.models.hops import UNIT

SLIGHT = 1e-3
"""Ridge of the attacker's fit, so that it exists."""


def graph_leaks(fed: Federation) -> list[dict[str, Any]]:
    """Attack one client's part (mean over clients) and the sum of all, as lines of a table."""
    method = fed.method
    if not isinstance(method, GraphGram):
        raise ConfigError(f"this needs a run of GraphGram; got {type(method).__name__}.")
    members = fed.world.available.nonzero().squeeze(1)
    views = [members[place : place + 1] for place in range(len(members))]
    alone = [_attacked(fed, view) for view in views]
    mean = {n: _mean([line[n] for line in alone]) for n in alone[0]}
    whole = {"view": f"the sum of {len(members)} clients", **_attacked(fed, members)}
    return [{"view": "one client's part", **mean}, whole]


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _attacked(fed: Federation, ids: torch.Tensor) -> dict[str, float | None]:
    """Attack the sum over some clients. None: there was nothing to measure"""
    method, held = fed.method, fed.now.vault.holdings
    assert isinstance(method, GraphGram)
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    graph, total = graph_of(cohort), method.client_parts(cohort).long().sum(0)
    rows = method.model.rows(graph).numpy()
    label = graph.label.numpy()
    train = graph.find(cohort.train.item).numpy()
    mine = torch.isin(held.records.client, ids) & (held.split != TRAIN)
    other = graph.find(torch.unique(held.records.item[mine])).numpy()
    found = list(peeled(mirrored(total).numpy(), rows.shape[1]))
    both = np.hstack([rows, UNIT * np.eye(graph.classes)[label]])
    place = {tuple(both[node].astype(np.int64)): node for node in train}
    nodes = [place[tuple(row)] for row in found if tuple(row) in place]
    words = _words(graph) if not method.model.drawn(graph.features) else None
    joined = {*map(tuple, graph.edge.T.tolist())}
    return {
        "nodes": float(len(train)),
        "rows read": len(set(nodes)) / len(train),
        "labels read": len(set(nodes)) / len(train),
        "words": _mean([_precision(rows[n, :-1], words[n]) for n in nodes]) if words else None,
        "edges": _edge_auc(rows, nodes, joined),
        **_known(total, rows, label, train, other),
    }


def peeled(total: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Yield rows [H, Y] that stand alone in a column. total: [d + K, d + K]; the constant is last

    The entries q of a column are not negative, so sum q^2 = (sum q)^2 > 0 means: one node has it.
    """
    left = np.rint(total).astype(np.int64)
    while True:
        once = left[width - 1] // UNIT
        single = np.flatnonzero((once > 0) & (once * once == left.diagonal()))
        single = single[single < width - 1]
        if not len(single):
            return
        column = single[0]
        row = left[:, column] // once[column]
        left -= np.outer(row, row)
        yield row


def _words(graph: Graph) -> list[np.ndarray]:
    order = torch.argsort(graph.node, stable=True)
    count = torch.bincount(graph.node, minlength=len(graph.owner))
    return [part.numpy() for part in torch.split(graph.feature[order], count.tolist())]


def _precision(row: np.ndarray, words: np.ndarray) -> float | None:
    """Return the share of a node's words among as many largest entries of its row."""
    if not len(words) or len(row) <= words.max():
        return None
    guess = np.argsort(-row, kind="stable")[: len(words)]
    return float(np.isin(guess, words).mean())


def _edge_auc(rows: np.ndarray, nodes: list[int], joined: set[tuple[int, ...]]) -> float | None:
    """Return how well likeness of rows that were read tells who is joined: AUC over pairs."""
    at = np.array(sorted(set(nodes)), dtype=np.int64)
    if len(at) < 3:
        return None
    unit = rows[at, :-1] / np.maximum(np.linalg.norm(rows[at, :-1], axis=1, keepdims=True), 1e-9)
    upper = np.triu_indices(len(at), 1)
    near = [pair in joined for pair in zip(*(at[end].tolist() for end in upper), strict=True)]
    return _auc((unit @ unit.T)[upper], np.array(near))


def _known(
    total: torch.Tensor,
    rows: np.ndarray,
    label: np.ndarray,
    train: np.ndarray,
    other: np.ndarray,
) -> dict[str, float | None]:
    both = mirrored(total).numpy() / UNIT**2
    width = rows.shape[1]
    fit = np.linalg.inv(both[:width, :width] + SLIGHT * np.eye(width))
    weights = fit @ both[:width, width:]
    everyone = np.concatenate([train, other])
    mine = rows[everyone] / UNIT
    leverage = np.einsum("nd,nd->n", mine @ fit, mine)
    trained = np.arange(len(everyone)) < len(train)
    right = (mine @ weights).argmax(1) == label[everyone]
    return {
        "member AUC": _auc(-leverage, trained),
        "label of a known node": float(right[trained].mean()),
        "label of a held-out node": float(right[~trained].mean()),
    }


def _auc(score: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the area under the ROC curve; ties count half."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count - 1) / 2
    rank, ones = middle[place], int(truth.sum())
    zeros = len(truth) - ones
    if not ones or not zeros:
        return None
    return float((rank[truth].sum() - ones * (ones + 1) / 2) / (ones * zeros))
