"""Graph convolutional network on the subgraphs of many clients at once."""

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

KEPT = 8  # cohorts: two roles and three measured groups, with shared or separate weights
_LAST: list[GraphMatrices] = []


@dataclass(frozen=True)
class GCN(NodeModel):
    """Two layers with ReLU: A relu(A X W_1 + b_1) W_2 + b_2 (Kipf and Welling, ICLR 2017).

    A = D^-1/2 (adjacency + I) D^-1/2. The weights of C clients are one matrix [C * features,
    hidden]: each client's features have their own columns.
    """

    task: ClassVar[str] = "nodes"
    tables: ClassVar[tuple[str, ...]] = ()

    hidden: int = 64
    """Width of the hidden layer (fedgcv.md section 3)."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return Glorot weights and zero biases: one/weight [F, H], two/weight [H, K], biases."""
        widths = {"one": (sizes.features, self.hidden), "two": (self.hidden, sizes.classes)}
        out: dict[str, Tensor] = {}
        for name, (inputs, outputs) in widths.items():
            bound = math.sqrt(6 / max(inputs + outputs, 1))
            out[f"{name}/weight"] = uniform(name, torch.arange(inputs), outputs, bound, clock)
            out[f"{name}/bias"] = torch.zeros(outputs)
        return out

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {}

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """Compute logits [N, K]. own: [C, ...], [1, ...] if all are equal    keep: [N, H] or 1"""
        first = own["one/weight"]
        matrices = GraphMatrices.of(graph, len(first))
        near = matrices.near(matrices.inputs(first.reshape(-1, first.shape[-1])))
        if len(first) == 1:
            hidden = torch.relu(near + own["one/bias"]) * keep
            return matrices.near(hidden @ own["two/weight"][0]) + own["two/bias"]
        owner = graph.owner
        hidden = torch.relu(near + own["one/bias"].index_select(0, owner)) * keep
        out = by_owner(hidden, own["two/weight"], owner)
        return matrices.near(out) + own["two/bias"].index_select(0, owner)


class SparseProduct(torch.autograd.Function):
    """A sparse matrix [n, m] times a dense [m, d]: on a CPU by scipy, twice as fast as torch."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, matrix: Any, transposed: Any) -> Tensor:
        ctx.transposed = transposed
        return _product(matrix, value.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _product(ctx.transposed, grads[0].contiguous()), None, None


def _product(matrix: Any, value: Tensor) -> Tensor:
    if isinstance(matrix, Tensor):
        return matrix @ value
    return torch.from_numpy(matrix @ value.numpy())


def by_owner(rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
    """Multiply each row by its owner's matrix. rows: [N, a]    matrices: [C, a, b]    -> [N, b]

    Node by node, so that a client's last bits do not depend on other clients' nodes. On a CPU
    the rows are a block-diagonal sparse matrix: gathering [N, a, b] took two thirds of an epoch.
    """
    if rows.device.type != "cpu":
        return torch.bmm(rows.unsqueeze(1), matrices[owner]).squeeze(1)
    out: Tensor = OwnerProduct.apply(rows, matrices, owner)  # type: ignore[no-untyped-call]
    return out


class OwnerProduct(torch.autograd.Function):
    """The product of `by_owner`, with rows [N, a] as a sparse matrix [N, C * a]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
        ctx.save_for_backward(rows, matrices, owner)
        return OwnerProduct.times(rows, matrices, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, matrices, owner = ctx.saved_tensors
        outer = OwnerProduct.of(rows, owner, len(matrices)).T @ grads[0].contiguous().numpy()
        back = OwnerProduct.times(grads[0], matrices.transpose(1, 2), owner)
        return back, torch.from_numpy(outer).view(matrices.shape), None

    @staticmethod
    def times(rows: Tensor, matrices: Tensor, owner: Tensor) -> Tensor:
        stacked = matrices.detach().reshape(-1, matrices.shape[2]).numpy()
        return torch.from_numpy(OwnerProduct.of(rows, owner, len(matrices)) @ stacked)

    @staticmethod
    def of(rows: Tensor, owner: Tensor, clients: int) -> Any:
        """Return the sparse matrix with each row in the columns of its owner. [N, C * a]"""
        from scipy import sparse

        count, width = rows.shape
        column = owner.unsqueeze(1) * width + torch.arange(width)
        ends = torch.arange(0, count * width + 1, width)
        parts = (rows.detach().reshape(-1), column.reshape(-1), ends)
        return sparse.csr_matrix(tuple(v.numpy() for v in parts), shape=(count, clients * width))


@dataclass
class GraphMatrices:
    """The matrices of one cohort's graph by dtype, made when first used."""

    graph: Any
    """A weak reference, so that the matrices are freed with the graph."""
    clients: int
    """Number of clients with their own weights; 1 if all weights are equal."""
    cache: dict[Any, tuple[Any, Any]]

    @classmethod
    def of(cls, graph: Graph, clients: int) -> GraphMatrices:
        """Return the matrices of a graph, cached because a round needs them several times."""
        for known in _LAST:
            if known.graph() is graph and known.clients == clients:
                return known
        found = cls(weakref.ref(graph), clients, {})
        _LAST[:] = [found, *[k for k in _LAST if k.graph() is not None]][:KEPT]
        return found

    def inputs(self, weight: Tensor) -> Tensor:
        """Compute X W, with features in the columns of their client. [C * F, H] -> [N, H]"""
        return self._times("inputs", weight)

    def near(self, value: Tensor) -> Tensor:
        """Compute A times a value. [N, d] -> [N, d]"""
        return self._times("near", value)

    def _times(self, which: str, value: Tensor) -> Tensor:
        matrices = self._matrix(which, value.dtype)
        out: Tensor = SparseProduct.apply(value, *matrices)  # type: ignore[no-untyped-call]
        return out

    def _matrix(self, which: str, dtype: torch.dtype) -> tuple[Any, Any]:
        if (which, dtype) not in self.cache:
            graph: Graph = self.graph()
            nodes, width = len(graph.owner), self.clients * graph.features
            if which == "near":
                source, target, weight = adjacency(graph, dtype)
                near = compressed(target, source, weight, (nodes, nodes))
                self.cache[which, dtype] = (near, near)  # symmetric
            else:
                node, column, value = graph.node, graph.feature, graph.value.to(dtype)
                if self.clients != 1:
                    column = graph.owner[node] * graph.features + column
                inputs = compressed(node, column, value, (nodes, width))
                transposed = compressed(column, node, value, (width, nodes))
                self.cache[which, dtype] = (inputs, transposed)
        return self.cache[which, dtype]


def compressed(row: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Any:
    """Build a CSR matrix, of scipy on a CPU, else of torch; duplicate entries are added."""
    if value.device.type != "cpu":
        return by_rows(row, column, value, shape)
    from scipy import sparse

    return sparse.csr_matrix((value.numpy(), (row.numpy(), column.numpy())), shape=shape)


def by_rows(row: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        indices = torch.stack([row, column])
        return torch.sparse_coo_tensor(indices, value, shape).coalesce().to_sparse_csr()


def adjacency(graph: Graph, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Compute D^-1/2 (adjacency + I) D^-1/2 as (source [e], target [e], weight [e])."""
    nodes = torch.arange(len(graph.owner), device=graph.owner.device)
    source, target = (torch.cat([end, nodes]) for end in graph.edge)
    degree = jagged.counts(target, len(nodes)).to(dtype)
    return source, target, torch.rsqrt(degree[source] * degree[target])
