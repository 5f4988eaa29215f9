"""A graph convolutional network on the subgraphs of many clients at once."""

from __future__ import annotations

import math
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.params import Params
from rescind.core.tasks.nodes import NodeModel
from rescind.core.world import Sizes
from rescind.models.lightgcn import uniform


@dataclass(frozen=True)
class GCN(NodeModel):
    """Two layers with ReLU: A relu(A X W_1 + b_1) W_2 + b_2 (Kipf and Welling, ICLR 2017).

    A = D^-1/2 (adjacency + I) D^-1/2. The weights of C clients are one matrix [C * features,
    hidden]: a client's nodes have their features in columns of their own.
    """

    task: ClassVar[str] = "nodes"
    tables: ClassVar[tuple[str, ...]] = ()

    hidden: int = 64
    """Width of the hidden layer (fedgcv.md section 3)."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Glorot weights and zero biases: one/weight [F, H], two/weight [H, K], biases."""
        widths = {"one": (sizes.features, self.hidden), "two": (self.hidden, sizes.classes)}
        out: dict[str, Tensor] = {}
        for name, (come, go) in widths.items():
            bound = math.sqrt(6 / max(come + go, 1))
            out[f"{name}/weight"] = uniform(name, torch.arange(come), go, bound, clock)
            out[f"{name}/bias"] = torch.zeros(go)
        return out

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Nothing stays on the device but what its optimiser remembers."""
        return {}

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """own: [C, ...], or [1, ...] where all weights are alike    keep: [N, H] or 1    [N, K]"""
        first = own["one/weight"]
        products = Products.of(graph, len(first))
        near = products.near(products.inputs(first.reshape(-1, first.shape[-1])))
        if products.alike:
            hidden = torch.relu(near + own["one/bias"]) * keep
            return products.near(hidden @ own["two/weight"][0]) + own["two/bias"]
        who = graph.owner
        hidden = torch.relu(near + own["one/bias"].index_select(0, who)) * keep
        out = by_owner(hidden, own["two/weight"], who)
        return products.near(out) + own["two/bias"].index_select(0, who)


class Times(torch.autograd.Function):
    """A sparse matrix times a dense one: on a CPU through scipy, half the time of torch's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, matrix: Any, turned: Any) -> Tensor:
        """matrix [n, m], value [m, d] -> [n, d]"""
        ctx.turned = turned
        return _product(matrix, value.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The transposed matrix times what comes back."""
        return _product(ctx.turned, grads[0].contiguous()), None, None


def _product(matrix: Any, value: Tensor) -> Tensor:
    """A matrix of torch's or scipy's times a dense one."""
    if isinstance(matrix, Tensor):
        return matrix @ value
    return torch.from_numpy(matrix @ value.numpy())


def multiplied(value: Tensor, matrix: Any, turned: Any) -> Tensor:
    """matrix @ value with its gradient; turned: the transposed matrix."""
    out: Tensor = Times.apply(value, matrix, turned)  # type: ignore[no-untyped-call]
    return out


def by_owner(rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
    """Each row times the matrix of its owner. rows: [N, a]    matrices: [C, a, b]    -> [N, b]

    Node by node, so that a client's last bits do not depend on how many nodes others have. On a CPU
    the rows are a block-diagonal sparse matrix: gathering [N, a, b] took two thirds of an epoch.
    """
    if rows.device.type != "cpu":
        return torch.bmm(rows.unsqueeze(1), matrices[owner]).squeeze(1)
    out: Tensor = Blocks.apply(rows, matrices, owner)  # type: ignore[no-untyped-call]
    return out


class Blocks(torch.autograd.Function):
    """Rows [N, a] as a matrix [N, C * a] that has every row in the columns of its owner."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
        """[N, a], [C, a, b] -> [N, b]"""
        ctx.save_for_backward(rows, matrices, owner)
        return Blocks.times(rows, matrices, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """To a row its owner's matrix, turned; to a matrix the outer products of its rows."""
        rows, matrices, owner = ctx.saved_tensors
        turned = Blocks.of(rows, owner, len(matrices)).T @ grads[0].contiguous().numpy()
        back = Blocks.times(grads[0], matrices.transpose(1, 2), owner)
        return back, torch.from_numpy(turned).view(matrices.shape), None

    @staticmethod
    def times(rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
        """The product itself."""
        stacked = matrices.detach().reshape(-1, matrices.shape[2]).numpy()
        return torch.from_numpy(Blocks.of(rows, owner, len(matrices)) @ stacked)

    @staticmethod
    def of(rows: Tensor, owner: Tensor, clients: int) -> Any:
        """The sparse matrix. [N, C * a]"""
        from scipy import sparse

        many, wide = rows.shape
        column = owner.unsqueeze(1) * wide + torch.arange(wide)
        ends = torch.arange(0, many * wide + 1, wide)
        parts = (rows.detach().reshape(-1), column.reshape(-1), ends)
        return sparse.csr_matrix(tuple(v.numpy() for v in parts), shape=(many, clients * wide))


@dataclass
class Products:
    """The matrices of one cohort's graph, by the kind of number; made when first used."""

    graph: Any
    """A weak reference: matrices go when the graph does."""
    clients: int
    """How many clients have weights of their own; 1: all weights are alike."""
    made: dict[Any, tuple[Any, Any]]

    @property
    def alike(self) -> bool:
        """Whether one copy of the weights serves all nodes."""
        return self.clients == 1

    @classmethod
    def of(cls, graph: Graph, clients: int) -> Products:
        """Those of the graph used last are kept: a round asks for them several times."""
        for known in _LAST:
            if known.graph() is graph and known.clients == clients:
                return known
        found = cls(weakref.ref(graph), clients, {})
        _LAST[:] = [found, *[k for k in _LAST if k.graph() is not None]][:KEPT]
        return found

    def inputs(self, weight: Tensor) -> Tensor:
        """X W, features in columns of their client. [C * F, H] -> [N, H]"""
        return multiplied(weight, *self._matrix("inputs", weight.dtype))

    def near(self, value: Tensor) -> Tensor:
        """A value. [N, d] -> [N, d]"""
        return multiplied(value, *self._matrix("near", value.dtype))

    def _graph(self) -> Graph:
        graph: Graph | None = self.graph()
        assert graph is not None
        return graph

    def _column(self, graph: Graph) -> Tensor:
        if self.alike:
            return graph.feature
        return graph.owner[graph.node] * graph.features + graph.feature

    def _matrix(self, which: str, dtype: torch.dtype) -> tuple[Any, Any]:
        """A matrix and its transpose, made once."""
        if (which, dtype) not in self.made:
            graph = self._graph()
            nodes = len(graph.owner)
            if which == "near":
                come, go, weight = adjacency(graph, dtype)
                near = compressed(go, come, weight, (nodes, nodes))
                self.made[which, dtype] = (near, near)  # symmetric
            else:
                value, column = graph.value.to(dtype), self._column(graph)
                wide = self.clients * graph.features
                self.made[which, dtype] = (
                    compressed(graph.node, column, value, (nodes, wide)),
                    compressed(column, graph.node, value, (wide, nodes)),
                )
        return self.made[which, dtype]


def compressed(row: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Any:
    """A matrix by rows: scipy's on a CPU, torch's elsewhere; repeated places are added."""
    if value.device.type != "cpu":
        return by_rows(row, column, value, shape)
    from scipy import sparse

    return sparse.csr_matrix((value.numpy(), (row.numpy(), column.numpy())), shape=shape)


def by_rows(row: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """The same matrix as torch has it, on any device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        places = torch.stack([row, column])
        return torch.sparse_coo_tensor(places, value, shape).coalesce().to_sparse_csr()


KEPT = 8  # cohorts: two roles and three groups that are measured, alike or each its own
_LAST: list[Products] = []


def adjacency(graph: Graph, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """D^-1/2 (adjacency + I) D^-1/2 as (from [e], to [e], weight [e]); alone, a node is itself."""
    nodes = torch.arange(len(graph.owner), device=graph.owner.device)
    come, go = (torch.cat([end, nodes]) for end in graph.edge)
    degree = jagged.counts(go, len(nodes)).to(dtype)
    return come, go, torch.rsqrt(degree[come] * degree[go])
