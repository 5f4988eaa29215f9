"""`rs.GraphGram`: classes of nodes from one sum over clients. Forgets by subtraction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Cohort, Graph, Lot
from rescind.core.saved import Ids, Schema, Values, fitting, ids_as_bytes, must, reading
from rescind.core.tasks.nodes import Classes
from rescind.core.update import Sum
from rescind.data.dataset import GraphDataset
from rescind.errors import ConfigError, DataError
from rescind.estimators.frames import Id, ids_that_read, in_order
from rescind.estimators.graph_frames import Nodes, Row, read_edges, read_labels, read_nodes
from rescind.estimators.graph_ledger import Change, GraphLedger, Part
from rescind.estimators.ledger import ids_of
from rescind.estimators.settings import Settings
from rescind.estimators.state import State, Stateful
from rescind.methods.additive import graph_gram
from rescind.methods.additive._graph_sums import part_of, weights_of
from rescind.methods.additive._solving import half
from rescind.models.hops import Hops, must_be_small

SAVED: Schema = {
    "nodes": Ids(),
    "classes": Ids(),
    "clients": Ids(),
    "client": Values(torch.int64, ("nodes",), 0, "clients"),
    "label": Values(torch.int64, ("nodes",), -1, "classes"),
    "edge": Values(torch.int64, ("edges", 2), 0, "nodes"),
    "first": Values(torch.int64, ("rows",), 0),
    "column": Values(torch.int64, ("values",), 0),
    "value": Values(torch.float32, ("values",)),
    "width": Values(torch.int64, (1,), 0, 2**20),
}
NOTHING: Row = (np.zeros(0, np.int64), np.zeros(0, np.float32))
"""The features of a node that has none."""


@dataclass(kw_only=True, eq=False, repr=False)
class GraphGram(Settings, Stateful[GraphLedger]):
    """Classify nodes from their features and their neighbours'; no federation.

    The model is that of `rs.methods.GraphGram`, the method of a federation, which says how it
    counts; here all parts are in one place. A client is whoever contributes a part of the graph;
    edges between clients do not count. Without a column of clients the whole graph is one part.
    Forgetting counts the parts concerned again and no other one, so it is fast with many clients.

        m = rs.GraphGram().fit(nodes, edges)     # columns node, label, client; the rest: features
        m.predict(["paper 7"])                   # nodes without a label may be asked for, too
        m.forget(nodes=["paper 3"], edges=[("paper 1", "paper 2")], labels=["paper 9"])
    """

    ridge: float = 2.0
    """As in `rs.methods.GraphGram`; so is the longest row."""
    hops: int = 3
    """As in `rs.models.Hops`; so is `random`."""
    random: int | None = None
    max_width: int = 10_000

    def __post_init__(self) -> None:
        self._state = State(GraphLedger())

    def _method(self) -> graph_gram.GraphGram:
        """Return the method of a federation with these settings, or raise if they are wrong."""
        known = self._checked()
        model = Hops(known.pop("hops"), known.pop("random"))
        return graph_gram.GraphGram(model=model, **known)

    # -- learning and forgetting -------------------------------------------------------------------

    def fit(
        self,
        nodes: Any,
        edges: Any = (),
        *,
        features: Any = None,
        columns: Mapping[str, str] | None = None,
    ) -> Self:
        """Learn a graph, instead of all earlier ones.

        nodes: a table (pandas, polars, Arrow, a mapping of columns) with columns node, label
        (missing or -1: unknown) and client, the last two if you have them; or a graph of
        `rs.load(...)`, whose published training nodes are learnt
        edges: pairs of nodes, [E, 2]: a table with columns source and target, tuples, an array.
        A direction or a copy adds nothing
        features: a row for each node, numpy or scipy sparse. Default: the other columns of `nodes`
        columns: which column is node, label and client, if their names do not say so
        """
        read, fitted = self._read(nodes, edges, features, columns), copy(self)
        fitted.__post_init__()
        self._state = fitted._change(fitted._ledger.with_(*read))._state
        return self

    def add(
        self,
        nodes: Any = None,
        edges: Any = (),
        *,
        features: Any = None,
        columns: Mapping[str, str] | None = None,
    ) -> Self:
        """Learn more nodes and edges: as if all had been there from the start, bit for bit.

        An edge may join a new node and an old one. A node that is there cannot come again.
        """
        return self._change(self._ledger.with_(*self._read(nodes, edges, features, columns)))

    def forget(
        self,
        clients: Iterable[Id] = (),
        nodes: Iterable[Id] = (),
        edges: Any = (),
        labels: Iterable[Id] = (),
        *,
        ledger: Path | str | bool = False,
        data: str = "estimator",
    ) -> Any:
        """Forget clients, nodes, edges and labels: as if they had never been there, bit for bit.

        nodes: they go with their edges and labels    edges: pairs as in `fit`, either direction
        labels: the nodes whose label goes; they stay, as nodes without a label
        ledger: a home (True: that of RESCIND_HOME). The clients leave `data` by a request that it
        keeps, and their signed receipt is returned; without one, the estimator itself
        Raises `DataError` and changes nothing if one of them is not there.
        """
        if ledger:
            from rescind.requests.estimators import forget_with_receipt

            return forget_with_receipt(self, clients, ledger, data, self._file)
        people, things = ids_of(clients, "clients"), ids_of(nodes, "nodes", "edges")
        pairs, known = read_edges(edges), ids_of(labels, "labels")
        if not people and not things and not pairs and not known:
            raise ConfigError("nothing to forget. Name clients, nodes, edges or labels.")
        return self._change(self._ledger.without(people, things, pairs, known))

    def _read(
        self, nodes: Any, edges: Any, features: Any, columns: Mapping[str, str] | None
    ) -> tuple[Nodes | None, list[tuple[Id, Id]]]:
        self._method()
        if isinstance(nodes, GraphDataset):
            edges = nodes.edge_index.T
        read = None if nodes is None else read_nodes(nodes, features, columns)
        if read is not None:
            self._must_fit(read.features)
        return read, read_edges(edges)

    def _must_fit(self, features: Any) -> None:
        method = self._method()
        method.must_fit(features.shape[1])
        if method.model.drawn(features.shape[1]):
            must_be_small(features.data)

    def _change(self, change: Change) -> Self:
        """Replace what clients have, and their parts in the sum."""
        book, state, model = self._ledger, self._state, self._method().model
        known = (book.classes, len(state.total))
        counted = state.change(change)
        classes = book.classes
        same = (counted, *known) == (model, classes, self._size())
        if not same or 2 * len(change.before) > len(book.parts):  # two parts of most, or one of all
            self._recount()
            return self
        for parts, sign in ((change.before, -1), (change.after, 1)):
            for part in parts.values():
                state.total += sign * self._count(part, classes)
        state.counted_by = model
        return self

    def _size(self) -> int:
        """Return the length of the sum; 0 without nodes."""
        book = self._ledger
        width = self._method().model.width(book.width) if book.parts else 0
        return half(width + len(book.classes))

    def _recount(self) -> None:
        book, state, model = self._ledger, self._state, self._method().model
        state.counted_by, state.made = None, {}
        state.total = torch.zeros(self._size(), dtype=torch.int64)
        for part in book.parts.values():
            state.total += self._count(part, book.classes)
        state.counted_by = model

    def _count(self, part: Part, classes: list[Id]) -> Tensor | int:
        """Return what a part adds to the sum; nothing if no class is known."""
        if not part.label:
            return 0
        graph = part.graph(self._ledger.width, classes)
        return part_of(self._method().model, graph, (graph.label >= 0).nonzero().squeeze(1))

    # -- what is made from the sum ---------------------------------------------------------------

    def _from_sum(self) -> dict[str, Any]:
        """Return what was made from the sum; nothing if settings have changed since."""
        settings, book, state = self._method(), self._ledger, self._state
        if state.counted_by != settings.model:
            self._recount()
        if state.made.get("settings") != settings:
            state.made = {"settings": settings, "classes": book.classes}
        return state.made

    def _weights(self) -> Tensor:
        """Solve for the weights. [d, K] float32"""
        made = self._from_sum()
        if not made["classes"]:
            raise DataError("no node has a label. Add some.")
        if "weights" not in made:
            ridge = made["settings"].ridge
            solved = weights_of(self._state.total, len(made["classes"]), ridge).float()
            made["weights"] = solved.contiguous()
        found: Tensor = made["weights"]
        return found

    def _scores(self, client: Id) -> tuple[Graph, Tensor]:
        """Return the graph of a client, and the scores of its nodes. [N, K]"""
        weights, made = self._weights().unsqueeze(0), self._from_sum()
        graph = self._ledger.parts[client].graph(self._ledger.width, made["classes"])
        return graph, made["settings"].model.logits({"weights": weights}, graph)

    def digest(self) -> str:
        """Return the SHA-256 of the sum and its classes, whatever came and went in which order.

        Who has the remaining graph gets the same digest from a new `fit`.
        """
        made = self._from_sum()
        return params.digest(
            {"classes": ids_as_bytes(made["classes"]), type(self).__name__: self._state.total}
        )

    def holding(self, client: str) -> list[Id] | None:
        """Return the nodes of a client whose id reads so; None if there is none."""
        parts = self._ledger.parts
        known = next((one for one in ids_that_read(client) if one in parts), None)
        return None if known is None else parts[known].order

    def drop(self, clients: Iterable[str], pairs: Collection[tuple[str, str]] | None) -> None:
        """Forget clients whose ids read so; pairs: only these of their nodes"""
        book = self._ledger
        if pairs is None:
            self.forget([c for text in clients for c in ids_that_read(text) if c in book.parts])
            return
        nodes = [n for _, text in pairs for n in ids_that_read(text) if n in book.owner]
        self.forget(nodes=nodes)

    @property
    def clients(self) -> list[Id]:
        """Return the original ids of all clients, in order."""
        return in_order(self._ledger.parts)

    @property
    def nodes(self) -> list[Id]:
        """Return the original ids of all nodes, in order."""
        return in_order(self._ledger.owner)

    @property
    def classes(self) -> list[Id]:
        """Return all classes that some node is known to have, in order."""
        return self._ledger.classes

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._ledger.owner)

    # -- using it ----------------------------------------------------------------------------------

    def predict(self, nodes: Iterable[Id]) -> list[Id]:
        """Return the class of each node, as its own features and its neighbours' say.

        To classify new nodes, add them without a label.
        """
        asked, classes = ids_of(nodes, "nodes"), self._from_sum()["classes"]
        best = dict[Id, Id]()
        for client, mine in self._by_client(asked).items():
            _, scores = self._scores(client)
            chosen = scores[torch.from_numpy(mine[1])].argmax(1).tolist()
            best.update(zip(mine[0], (classes[n] for n in chosen), strict=True))
        return [best[node] for node in asked]

    def evaluate(
        self, labels: Any, *, columns: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Compare predictions with known classes; return accuracy and, with two classes, ROC-AUC.

        labels: a table with columns node and label, tuples, or a graph of `rs.load(...)`, whose
        published test nodes are asked for. A class that nobody has learnt counts as missed
        """
        known, metric = read_labels(labels, columns), Classes()
        number = {label: n for n, label in enumerate(self._from_sum()["classes"])}
        if not known:
            raise DataError("there are no known classes. Give nodes with labels.")
        total = Sum({}, 0.0, 0)
        for client, (ids, place) in self._by_client(list(known)).items():
            graph, scores = self._scores(client)
            asked = torch.from_numpy(place)
            truth = graph.label.clone()
            truth[asked] = torch.tensor([number.get(known[node], -1) for node in ids])
            held = Lot(torch.zeros_like(asked), asked, 1)
            mine = torch.zeros(1, dtype=torch.int64)
            cohort = Cohort(
                mine, len(truth), held, held, held=held, graph=replace(graph, label=truth)
            )
            totals, count = metric.totals(scores, cohort, held)
            total = total + Sum(totals, float(count), count)
        return metric.finish(total.totals, total.weight)

    def _by_client(self, nodes: list[Id]) -> dict[Id, tuple[list[Id], np.ndarray]]:
        """Return nodes by client, with their places in the client's graph; raise if not known."""
        owned = dict[Id, list[Id]]()
        for node in nodes:
            owned.setdefault(self._ledger.client(node, then=""), []).append(node)
        out = {}
        for client, mine in owned.items():
            place = {node: n for n, node in enumerate(self._ledger.parts[client].order)}
            out[client] = mine, np.array([place[node] for node in mine], np.int64)
        return out

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write settings and graph to one file, which only its owner may read. No pickle.

        Sums and weights are functions of these and are not stored. The file is that of a new `fit`
        on what remains.
        """
        params.save(Path(path), *self._packed())
        self._file = str(path)

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        nodes, classes, clients = self.nodes, self.classes, self.clients
        parts = [self._ledger.parts[self._ledger.owner[node]] for node in nodes]
        each = list(zip(parts, nodes, strict=True))
        place = {node: n for n, node in enumerate(nodes)}
        kinds = {label: n for n, label in enumerate(classes)}
        silos = {client: n for n, client in enumerate(clients)}
        column, value = zip(NOTHING, *(part.features[node] for part, node in each), strict=True)
        label = [kinds[part.label[node]] if node in part.label else -1 for part, node in each]
        edge = [(place[node], place[other]) for part, node in each
                for other in part.near[node] if place[node] < place[other]]  # fmt: skip
        return {
            "nodes": ids_as_bytes(nodes),
            "classes": ids_as_bytes(classes),
            "clients": ids_as_bytes(clients),
            "client": torch.tensor([silos[self._ledger.owner[n]] for n in nodes]).long(),
            "label": torch.tensor(label).long(),
            "edge": torch.tensor(sorted(edge)).long().reshape(-1, 2),
            "first": torch.tensor([len(columns) for columns in column]).cumsum(0),
            "column": torch.from_numpy(np.concatenate(column)),
            "value": torch.from_numpy(np.concatenate(value)),
            "width": torch.tensor([self._ledger.width]),
        }, self._notes()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved estimator, and count its graph again."""
        with reading(path):
            made, tensors, _ = cls._stored(Path(path))
            held = fitting(tensors, SAVED)
            nodes, classes, clients = (held[name] for name in ("nodes", "classes", "clients"))
            table = Nodes(
                nodes,
                [classes[n] if n >= 0 else None for n in held["label"].tolist()],
                [clients[n] for n in held["client"].tolist()],
                _features(held),
            )
            made._must_fit(table.features)
            edges = [(nodes[one], nodes[other]) for one, other in held["edge"].tolist()]
            return made._change(made._ledger.with_(table if nodes else None, edges))


def _features(held: Mapping[str, Any]) -> Any:
    """Return the features of a file as a sparse matrix. [N, F]"""
    from scipy.sparse import csr_matrix

    first, width = held["first"].numpy(), int(held["width"])
    must(len(first) == len(held["nodes"]) + 1 and first[0] == 0, "rows do not begin at 0")
    must(bool((np.diff(first) >= 0).all()) and first[-1] == len(held["value"]), "rows are cut")
    must(max(held["column"].tolist(), default=-1) < width, "a column is too large")
    sparse = tuple(held[name].numpy() for name in ("value", "column", "first"))
    return csr_matrix(sparse, shape=(len(held["nodes"]), width))
