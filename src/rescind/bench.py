"""Speed as ratios: every figure beside yardsticks measured in the same run.

*touch* is one `index_select` and one `index_add_` of the rows a round samples, [rows, d] float32:
the least a round must move. These machines are shared and noisy, so only ratios mean something.
Needs torch and numpy only (and a dataset).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from rescind.clock import Clock
from rescind.executor import InProcess
from rescind.federation import Federation, holdings_of
from rescind.method import Method
from rescind.methods.fedavg import FedAvg
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF

REPEATS = 7


@dataclass(frozen=True)
class Figure:
    """One measured round beside its yardstick, in CPU milliseconds."""

    name: str
    clients: int
    rows: int
    """Rows sampled: two for a pair, one for a labelled sample."""
    touch_ms: float
    round_ms: float
    bound: float
    """The ratio must not exceed this."""

    @property
    def ratio(self) -> float:
        """How many times the touch a round costs."""
        return self.round_ms / self.touch_ms


def cpu_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median CPU time of one call, after a call that warms up."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return 1000 * median(times)


def touch_ms(rows: int, dim: int, items: int) -> float:
    """CPU time of one gather and one scatter of the rows a round samples."""
    table = torch.zeros(items, dim)
    at = Clock(0).integers("touch", torch.arange(rows), 0, items)

    def work() -> None:
        torch.zeros_like(table).index_add_(0, at, table.index_select(0, at))

    return cpu_ms(work)


def fedmf() -> Method:
    """FedMF as F3CRec trains it: all clients, 4 negatives, batches of 512, plain SGD."""
    return FedAvg(
        model=MF(),
        clients_per_round=None,
        loss="bce",
        reduce="mean",
        temperature=1.0,
        negatives=4,
        batch_size=512,
        rate=1.0,
        private_rate=1.0,
        rate_per_item=True,
    )


def ego_lightgcn() -> Method:
    """Ego-graph LightGCN as FedShare trains it: 256 clients, BPR with one negative."""
    return FedAvg(model=LightGCN(), clients_per_round=256)


def readable_round(name: str, fed: Federation, bound: float) -> Figure:
    """Time `client_train`, the readable form, on the clients of the first round."""
    method, vault, public = fed.method, fed.now.vault, fed.now.state.public
    clock = fed.clock.at(1)
    ids = method.server_sample(fed.now.state, fed.world, clock)
    cohort = InProcess().cohort(method, vault, ids)
    private = vault.read(ids)
    plan = method.client_plan(public, private, cohort, clock)
    rows = sum(column.numel() for column in plan.items.values())
    dim = public["item"].shape[1]
    touch = touch_ms(rows, dim, cohort.items)
    took = cpu_ms(lambda: method.client_train(public, private, cohort, clock))
    return Figure(name, len(ids), rows, touch, took, bound)


def readable(say: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The readable form on the two rounds of the design: FedMF and ego-LightGCN."""
    from rescind.data import Dataset, load

    torch.set_num_threads(1)
    blocks = load("ml-100k", variant="blocks", say=say)
    films = load("ml-1m", say=say)
    assert isinstance(blocks, Dataset)
    assert isinstance(films, Dataset)
    assert blocks.block is not None
    first = blocks.select(blocks.block == 0).compact()
    figures = []
    for name, method, data in (
        ("FedMF, ML-100K block 0, all clients", fedmf(), first),
        ("ego-LightGCN, ML-1M, 256 clients", ego_lightgcn(), films),
    ):
        fed = Federation.start(holdings_of(data, 0), method, seed=0)
        figures.append(readable_round(name, fed, bound=10.0))
    return figures
