"""Read nodes and edges with original ids from tables, arrays or a graph of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from rescind.data.dataset import GraphDataset
from rescind.errors import ConfigError, DataError
from rescind.estimators.frames import Id, ids_in, named, plain_id, roles_of

NODE = {
    "node": ("node", "id", "node_id", "nodeid"),
    "label": ("label", "class", "y"),
    "client": ("client", "part", "silo", "owner"),
}
"""Column names of a table of nodes that are recognised by default, in lower case."""
EDGE = {"source": ("source", "src", "from"), "target": ("target", "dst", "to")}
ALONE = "all"
"""The client of nodes that come without one."""
Row = tuple[np.ndarray, np.ndarray]
"""The features of a node that are not 0: columns and values."""


@dataclass(frozen=True)
class Nodes:
    """A table of nodes, one row each."""

    ids: list[Id]
    labels: list[Id | None]
    """None: the class is not known."""
    clients: list[Id]
    features: Any
    """[N, F] scipy CSR matrix, float32"""

    def rows(self) -> Iterator[tuple[Id, Id | None, Id, Row]]:
        """Yield id, label, client and features of each node."""
        first, column, value = self.features.indptr, self.features.indices, self.features.data
        for n, (node, label, client) in enumerate(
            zip(self.ids, self.labels, self.clients, strict=True)
        ):
            mine = slice(first[n], first[n + 1])
            yield node, label, client, (column[mine].astype(np.int64), value[mine].copy())


def read_nodes(frame: Any, features: Any = None, columns: Mapping[str, str] | None = None) -> Nodes:
    """Read a table of nodes. Columns without another role are features, unless these are given.

    frame: pandas, polars, Arrow, a mapping of columns, or a `GraphDataset`: its training nodes
    have their label    features: a row for each node, numpy or scipy sparse
    """
    if isinstance(frame, GraphDataset):
        known = np.where(_first(frame.train_mask), frame.y, -1)
        frame, features = {"node": np.arange(len(known)), "label": known}, frame.features
    table, names = named(frame, tuple(NODE))
    roles = roles_of(names, columns or {}, NODE, ("label", "client"))
    ids = _ids(table[roles["node"]], "node")
    if features is None:
        free = [name for name in names if name not in roles.values()]
        features = np.stack([np.asarray(table[name]) for name in free], 1) if free else None
    made = Nodes(
        ids,
        _labels(table[roles["label"]]) if "label" in roles else [None] * len(ids),
        _ids(table[roles["client"]], "client") if "client" in roles else [ALONE] * len(ids),
        _numbers(features),
    )
    told = {"node": len(ids), "label": len(made.labels), "client": len(made.clients)}
    told |= {"features": made.features.shape[0]}
    if len(set(told.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in told.items())
        raise DataError(f"columns must be equally long; got {sizes}.")
    return made


def read_edges(edges: Any, columns: Mapping[str, str] | None = None) -> list[tuple[Id, Id]]:
    """Read pairs of nodes: a frame with columns source and target, tuples, or an array [E, 2]."""
    if isinstance(edges, np.ndarray):
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise DataError(f"edges must be pairs of node ids, [E, 2]; got {list(edges.shape)}.")
        ends = list(edges.T)
    else:
        table, names = named(edges, tuple(EDGE))
        roles = roles_of(names, columns or {}, EDGE)
        ends = [table[roles[role]] for role in EDGE]
    one, other = (_ids(end, "node of an edge") for end in ends)
    if len(one) != len(other):
        raise DataError(f"columns must be equally long; got {len(one)} and {len(other)} ends.")
    return list(zip(one, other, strict=True))


def read_labels(frame: Any, columns: Mapping[str, str] | None = None) -> dict[Id, Id]:
    """Read known classes: a table, tuples (node, label), or the test nodes of a `GraphDataset`."""
    if isinstance(frame, GraphDataset):
        test = np.flatnonzero(_first(frame.test_mask) & (frame.y >= 0))
        frame = {"node": test, "label": frame.y[test]}
    table, names = named(frame, ("node", "label"))
    roles = roles_of(names, columns or {}, {role: NODE[role] for role in ("node", "label")})
    ids, labels = _ids(table[roles["node"]], "node"), _labels(table[roles["label"]])
    return {n: each for n, each in zip(ids, labels, strict=True) if each is not None}


def _ids(column: Any, role: str) -> list[Id]:
    distinct, code = ids_in(column, role)
    return [distinct[n] for n in code.tolist()]


def _labels(column: Any) -> list[Id | None]:
    """Return the class of each row; None, NaN and -1 stand for none that is known."""
    column = getattr(column, "to_pylist", getattr(column, "tolist", lambda: column))()
    found: list[Id | None] = []
    for each in column:
        whole = int(each) if isinstance(each, float) and each.is_integer() else each
        unknown = whole is None or whole == -1 or (isinstance(whole, float) and isnan(whole))
        found.append(None if unknown else plain_id(whole, "label"))
    return found


def _numbers(features: Any) -> Any:
    """Return features as a sparse matrix. [N, F] float32"""
    from scipy.sparse import csr_matrix

    if features is None:
        raise ConfigError("nodes have no features. Give columns of numbers, or features=matrix.")
    try:
        matrix = csr_matrix(features, dtype=np.float32, copy=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"features must be a matrix of numbers: {error}.") from None
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise DataError("a feature is not a finite number. Replace it.")
    return matrix


def _first(mask: np.ndarray) -> np.ndarray:
    """Return the first published split. [N] bool"""
    return mask if mask.ndim == 1 else mask[:, 0]
