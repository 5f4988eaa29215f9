"""A graph convolutional network on the subgraphs of many clients at once."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind import jagged
from rescind.clock import Clock
from rescind.cohort import Graph
from rescind.models.lightgcn import uniform
from rescind.params import Params
from rescind.tasks.nodes import NodeModel
from rescind.world import Sizes


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
        hidden = torch.relu(near + own["one/bias"][who]) * keep
        # Node by node, so that a client's last bits do not depend on how many nodes others have.
        out = torch.bmm(hidden.unsqueeze(1), own["two/weight"][who]).squeeze(1)
        return products.near(out) + own["two/bias"][who]


class Times(torch.autograd.Function):
    """A sparse matrix times a dense one on the CPU, through scipy: half the time of torch's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, matrix: Any, turned: Any) -> Tensor:
        """matrix [n, m], value [m, d] -> [n, d]"""
        ctx.turned = turned
        return torch.from_numpy(matrix @ value.detach().numpy())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The transposed matrix times what comes back."""
        return torch.from_numpy(ctx.turned @ grads[0].contiguous().numpy()), None, None


def multiplied(value: Tensor, matrix: Any, turned: Any) -> Tensor:
    """matrix @ value with its gradient; turned: the transposed matrix."""
    out: Tensor = Times.apply(value, matrix, turned)  # type: ignore[no-untyped-call]
    return out


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
        if weight.device.type == "cpu":
            return multiplied(weight, *self._matrix("inputs", weight.dtype))
        graph = self._graph()
        rows = weight[self._column(graph)] * graph.value.to(weight.dtype).unsqueeze(1)
        return jagged.segment_sum(rows, graph.node, len(graph.owner))

    def near(self, value: Tensor) -> Tensor:
        """A value. [N, d] -> [N, d]"""
        if value.device.type == "cpu":
            return multiplied(value, *self._matrix("near", value.dtype))
        come, go, weight = adjacency(self._graph(), value.dtype)
        return jagged.segment_sum(value[come] * weight.unsqueeze(1), go, len(value))

    def _graph(self) -> Graph:
        graph: Graph | None = self.graph()
        assert graph is not None
        return graph

    def _column(self, graph: Graph) -> Tensor:
        if self.alike:
            return graph.feature
        return graph.owner[graph.node] * graph.features + graph.feature

    def _matrix(self, which: str, dtype: torch.dtype) -> tuple[Any, Any]:
        """A matrix and its transpose, for scipy."""
        if (which, dtype) not in self.made:
            from scipy import sparse

            graph = self._graph()
            nodes = len(graph.owner)
            come, go, weight = adjacency(graph, dtype)
            if which == "near":
                entries = (weight.numpy(), (go.numpy(), come.numpy()))
                near = sparse.csr_matrix(entries, shape=(nodes, nodes))
                self.made[which, dtype] = (near, near)  # symmetric
            else:
                value = graph.value.to(dtype).numpy()
                entries = (value, (graph.node.numpy(), self._column(graph).numpy()))
                inputs = sparse.csr_matrix(entries, shape=(nodes, self.clients * graph.features))
                self.made[which, dtype] = (inputs, inputs.T.tocsr())
        return self.made[which, dtype]


KEPT = 4  # cohorts: two roles, and the same again where all weights are alike
_LAST: list[Products] = []


def adjacency(graph: Graph, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """D^-1/2 (adjacency + I) D^-1/2 as (from [e], to [e], weight [e]); alone, a node is itself."""
    nodes = torch.arange(len(graph.owner), device=graph.owner.device)
    come, go = (torch.cat([end, nodes]) for end in graph.edge)
    degree = jagged.counts(go, len(nodes)).to(dtype)
    return come, go, torch.rsqrt(degree[come] * degree[go])
