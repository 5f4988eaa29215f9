"""A linear classifier of nodes by what is near them, on whole-number rows."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.params import Params
from rescind.core.tasks.nodes import NodeModel
from rescind.core.world import Sizes
from rescind.errors import ConfigError, DataError
from rescind.models.gcn import adjacency, compressed

UNIT = 1024
"""Entries of a row are whole multiples of 1 / 1024, so their products add up without rounding."""
FEW = 100
"""Fewer columns than this are measured values, not words: they get random features."""
LARGEST = 1000.0
"""Largest measured value. Those of Tolokers are at most 1."""
KEPT = 4
_LAST: list[tuple[Any, Hops, Tensor]] = []


@dataclass(frozen=True)
class Hops(NodeModel):
    """Weights on the features of a node and of its neighbourhoods (sums.md section 1).

    S = D^-1/2 (A + I) D^-1/2 of the client's own edges; X_k = S^k X, k = 0 .. hops. The row of a
    node is h = [unit(sum_k unit(sqrt(X_k))), 1] for words, X scaled to rows of sum 1, and
    h = [relu([X_0, .., X_hops, log(1 + degree) / 5] V + b), 1] for measured values, with V and b
    drawn once for everybody. Each row is a function of one client's data. Logits: h W.
    """

    task: ClassVar[str] = "nodes"
    tables: ClassVar[tuple[str, ...]] = ()

    hops: int = 3
    """Steps along edges: best mean of 2, 3, 4 on validation (recipes/fedgcv/graph_gram_tune)."""
    random: int | None = None
    """Random features instead of words; 0 for none. None: 1,000 if there are few columns."""

    def __post_init__(self) -> None:
        if not 0 <= self.hops <= 20 or (self.random is not None and self.random < 0):
            raise ConfigError("Hops.hops must be from 0 to 20 and Hops.random at least 0.")

    def drawn(self, features: int) -> int:
        """Return the number of random features; 0: the columns themselves."""
        return (1000 if features < FEW else 0) if self.random is None else self.random

    def width(self, features: int) -> int:
        """Return the length of a row: features and a constant."""
        return (self.drawn(features) or features) + 1

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"weights": torch.zeros(self.width(sizes.features), sizes.classes)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {}

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """Compute h W of every node. own: [1, d, K], the same for all clients    -> [N, K]"""
        weights = own["weights"][0]
        return (self.rows(graph).to(weights) / UNIT) @ weights

    def rows(self, graph: Graph) -> Tensor:
        """Return the row of every node in units of 1 / 1024, cached. [N, d] whole float64"""
        for known, model, rows in _LAST:
            if known() is graph and model == self:
                return rows
        device = graph.owner.device
        rows = torch.from_numpy(self._rows(graph.to("cpu"))).to(device)
        # Rows go with their graph: nothing of an erased node waits here.
        _LAST[:] = [(weakref.ref(graph, _drop), self, rows), *_LAST][:KEPT]
        return rows

    def _rows(self, graph: Graph) -> np.ndarray:
        nodes = len(graph.owner)
        source, target, weight = adjacency(graph, torch.float64)
        near = compressed(target, source, weight, (nodes, nodes))
        shape = (nodes, graph.features)
        first = compressed(graph.node, graph.feature, graph.value.double(), shape)
        if drawn := self.drawn(graph.features):
            made = _random(self._side_by_side(near, first.toarray()), drawn)
        else:
            made = self._summed(near, first)
        return np.hstack([made, np.full((nodes, 1), float(UNIT))])

    def _summed(self, near: Any, value: Any) -> np.ndarray:
        """Add the hops of words. Square roots keep a frequent word from drowning the others."""
        value = _scaled(value, 1)
        total: Any = 0 * value
        for hop in range(self.hops + 1):
            value = near @ value if hop else value
            total = total + _scaled(value.sign().multiply(abs(value).sqrt()), 2)
        made: np.ndarray = np.rint(UNIT * _scaled(total, 2).toarray())
        return made

    def _side_by_side(self, near: Any, value: np.ndarray) -> np.ndarray:
        must_be_small(value)
        hops = [value]
        for _ in range(self.hops):
            hops.append(near @ hops[-1])
        degree = np.diff(near.indptr)[:, None]  # with the node itself
        return np.rint(UNIT * np.hstack([*hops, np.log(degree) / 5]))


def _drop(gone: Any) -> None:
    _LAST[:] = [last for last in _LAST if last[0] is not gone]


def must_be_small(value: np.ndarray) -> None:
    if value.size and np.abs(value).max() > LARGEST:
        raise DataError(
            f"features reach {np.abs(value).max():g}, and random features need values of about 1. "
            f"Divide the columns."
        )


def _scaled(rows: Any, power: int) -> Any:
    """Divide sparse rows by their norm, sum |x| or length; rows of zeros stay."""
    rows = rows.tocsr()
    count, each = rows.shape[0], np.diff(rows.indptr)
    owner = np.repeat(np.arange(count), each)
    norm = np.bincount(owner, np.abs(rows.data) ** power, count) ** (1 / power)
    rows.data = rows.data / np.maximum(norm, 1e-12)[owner]
    return rows


def _random(columns: np.ndarray, drawn: int) -> np.ndarray:
    """Return random ReLU features. All factors are whole, so no order of addition matters."""
    matrix, shift = _drawn(columns.shape[1], drawn)
    return np.rint(np.maximum(columns @ matrix + shift, 0) / UNIT)


@lru_cache(maxsize=4)
def _drawn(columns: int, drawn: int) -> tuple[np.ndarray, np.ndarray]:
    """Return V and b, the same in every run: normal / sqrt(columns), and uniform in +-1/3."""
    clock, column = Clock(0), torch.arange(drawn)
    matrix = clock.normal("random features", torch.arange(columns).unsqueeze(1), column)
    shift = (clock.uniform("random shifts", column) * 2 - 1) / 3
    whole = torch.round(UNIT * matrix / columns**0.5), torch.round(UNIT**2 * shift)
    return whole[0].numpy(), whole[1].numpy()
