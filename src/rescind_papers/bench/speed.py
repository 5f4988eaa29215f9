"""Speed as ratios to reference code measured in the same run, each with its bound.

Machines are shared and noisy, so work and references alternate, medians are compared, and CPU time
of one thread counts. Needs torch and numpy only (and a dataset).
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rescind.core import fast
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.holdings import Holdings
from rescind.core.run_state import EarlyStop
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import DataError
from rescind.experiments.streams import Stream
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.continual.finetune import FineTune
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from rescind_papers.bench import continual, scale
from rescind_papers.bench.yardsticks import Opening, alternate, naive, plain_step, touch, twin_round

if TYPE_CHECKING:
    from rescind.data import Dataset

REPEATS = 15
TWINS = 32
"""Clients that the naive twin trains. Its time is scaled to the whole cohort."""
COHORTS = (64, 256, 1024, 6040)
"""Clients of a round when cost is fitted against touched pairs. ML-1M has 6,040."""
CHUNK = 1024
"""Clients trained together there."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """One measured number and its bounds."""

    name: str
    value: float
    unit: str
    most: float
    least: float = 0.0
    beside: Mapping[str, float] = field(default_factory=dict)
    """Other measurements: references and sizes."""

    @property
    def within(self) -> bool:
        """Return whether the value is within its bounds."""
        return self.least <= self.value <= self.most

    @property
    def bound(self) -> str:
        """Return the bounds in words."""
        return f"{self.least:g} to {self.most:g}" if self.least else f"at most {self.most:g}"


def fedmf() -> RankingMethod:
    """Return FedMF as F3CRec trains it: all clients, 4 negatives, batches of 512, plain SGD."""
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


def ego_lightgcn() -> RankingMethod:
    """Return ego-graph LightGCN as FedShare trains it: 256 clients, BPR with one negative."""
    return FedAvg(model=LightGCN(), clients_per_round=256)


def rounds(
    name: str,
    opening: Opening,
    most: Mapping[str, float],
    repeats: int = REPEATS,
    twins: int = TWINS,
) -> list[Figure]:
    """Time a round in the forms of `most` ("readable", "fused"), as multiples of one touch."""
    o, rows = opening, opening.rows
    given = (o.public, o.private, o.cohort, o.clock)
    forms: dict[str, Callable[[], object]] = {
        "readable": lambda: o.method.client_train(*given),
        "fused": lambda: o.method.client_sum(*given),
    }
    yard = touch(rows, torch.zeros_like(o.public["item"]))
    one_round = continual.twin_round if isinstance(o.method, FineTune) else twin_round
    twin, scale = naive(o, twins, one_round)
    slow = scale * alternate({"twin": twin}, min(repeats, 3))["twin"]
    figures = []
    for form, bound in most.items():
        took = alternate({"touch": yard, "round": forms[form]}, repeats)
        beside = {
            "clients": len(o.cohort),
            "rows": rows,
            "touch_ms": took["touch"],
            "round_ms": took["round"],
            "naive_twin_ms": slow,
        }
        ratio = took["round"] / took["touch"]
        figures.append(Figure(f"{name}, {form}", ratio, "x touch", bound, 0.0, beside))
    return figures


def linear(
    data: Holdings, method: RankingMethod, cohorts: tuple[int, ...], form: str, repeats: int = 5
) -> Figure:
    """Fit the exponent of a round's cost in touched pairs. Small rounds are repeated.

    form: "fused" or "readable"
    """
    works: dict[str, Callable[[], object]] = {}
    pairs, times = {}, {}
    for clients in cohorts:
        sized = replace(method, clients_per_round=clients)
        fed = Federation.start(data, sized, seed=0)
        vault, clock = fed.now.vault, fed.clock.at(1)
        ids = sized.server_sample(fed.now.state, fed.world, clock)
        executor = InProcess()
        parts = [
            (fed.now.state.public, vault.read(part), executor.cohort(sized, vault, part), clock)
            for part in torch.split(ids, CHUNK)
        ]
        name = str(clients)
        pairs[name] = sum(len(part[2].train) for part in parts) * method.negatives
        times[name] = max(1, cohorts[-1] // clients)
        train = sized.client_sum if form == "fused" else sized.client_train
        works[name] = partial(_repeated, train, parts, times[name])
    took = {name: ms / times[name] for name, ms in alternate(works, repeats).items()}
    x, y = ([math.log(found[name]) for name in works] for found in (pairs, took))
    beside = {f"{kind}_{n}": v[n] for n in works for kind, v in (("pairs", pairs), ("ms", took))}
    name = f"cost against pairs, {cohorts[0]} to {cohorts[-1]:,} clients, {form}"
    return Figure(name, float(np.polyfit(x, y, 1)[0]), "exponent", 1.1, 0.9, beside)


def _repeated(train: Callable[..., object], parts: list[Any], times: int) -> None:
    for _ in range(times):
        for part in parts:
            train(*part)


def server_step(data: Holdings, method: FedShare, most: float, repeats: int = REPEATS) -> Figure:
    """Time FedShare's server step (loans 1:2:7), as a multiple of one product with the graph.

    The product is that of the users x items matrix with the item table, by torch.
    """
    fed = Federation.start(data, method, seed=0)
    groups = draw_groups(data.clients, fed.clock)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))
    state, world, clock = fed.now.state, fed.world, fed.clock.at(1)
    graph, item = graph_of(world), state.public["item"]
    side = graph.matrices[0]
    matrix = torch.sparse_coo_tensor(
        side.places, side.narrow, side.shape, is_coalesced=True, check_invariants=False
    )
    took = alternate(
        {
            "product": lambda: torch.sparse.mm(matrix, item),
            "step": lambda: method.server_refine(state, world, clock),
            "plain step": lambda: plain_step(method, state, graph, clock),
        },
        repeats,
    )
    beside = {
        "shared_pairs": len(graph.user),
        "product_ms": took["product"],
        "step_ms": took["step"],
        "plain_step_ms": took["plain step"],
    }
    ratio = took["step"] / took["product"]
    return Figure("FedShare's server step", ratio, "x product", most, 0.0, beside)


def evaluation(data: Holdings, method: RankingMethod, most: float, repeats: int = 3) -> Figure:
    """Time the full ranking of all items for all clients."""
    fed = Federation.start(data, method, seed=0)
    took = alternate({"evaluate": fed.evaluate}, repeats)["evaluate"]
    sizes = {"clients": data.clients, "items": data.items}
    return Figure("full-ranking evaluation", took / 1000, "CPU s", most, 0.0, sizes)


# -- figures that need a new process ----------------------------------------------------


def peak_memory(source: str, arguments: Mapping[str, Any], compiled: bool) -> float:
    """Return the peak memory of a round of all clients above the data, in MB (Linux only)."""
    from rescind.data import Dataset, load

    torch.set_num_threads(1)
    data = load(source, **arguments)
    assert isinstance(data, Dataset)
    executor = InProcess(fused=compiled)
    fed = Federation.start(data, ego_lightgcn(), seed=0, executor=executor)
    fed.run(1)  # warm up: loads and compiles
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = _status("VmHWM")
    fed.run(1, replace(fed.method, clients_per_round=None))
    return max(0.0, _status("VmHWM") - before) / 1000  # Linux counts to a few pages


def _status(name: str) -> float:
    """Return a size in kB of this process, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def first_call(kernel: str) -> float:
    """Return the CPU seconds of the first compiled round, numba's import included."""
    from rescind.data.sources.synthetic import synthetic

    method = {"mf": fedmf, "ego": ego_lightgcn}[kernel]()
    o = Opening.of(synthetic(users=50, items=200, interactions=2000).on_devices(0), method)
    begin = time.process_time()
    method.client_sum(o.public, o.private, o.cohort, o.clock)
    return time.process_time() - begin


def fedshare_rounds(rounds: int, every: int) -> float:
    """Return the CPU seconds of rounds of FedShare on ML-1M, evaluations included, once warm."""
    import rescind as rs

    torch.set_num_threads(1)
    fed = rs.simulate_lending(rs.Federation.start(rs.load("ml-1m"), FedShare(), seed=0))
    fed.run(1, until=EarlyStop(every=1))
    begin = time.process_time()
    fed.run(rounds, until=EarlyStop(every=every, patience=None))
    return time.process_time() - begin


def in_child(function: str, *arguments: object, **environment: str) -> float:
    """Call a function of this module in a new process and return its number."""
    code = (
        "import json, sys, rescind_papers.bench.speed as b; "
        f"print(b.{function}(*json.loads(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{function} failed in a new process:\n{done.stderr}")
    return float(done.stdout)


def memory(source: str, arguments: Mapping[str, Any], most: float) -> Iterator[Figure]:
    """Measure the peak memory of a round of all clients, compiled and readable."""
    if not Path("/proc/self/clear_refs").exists():
        return
    for form in ("fused", "readable"):
        taken = in_child("peak_memory", source, dict(arguments), form == "fused")
        yield Figure(f"peak memory of a round of everybody, {form}", taken, "MB", most)


def first_calls(most: float) -> Iterator[Figure]:
    """Time a kernel's first call, with an empty and with a warm cache on disk."""
    for kernel in ("mf", "ego"):
        with tempfile.TemporaryDirectory(prefix="rescind-") as scratch:
            for cache in ("empty", "warm"):
                taken = in_child("first_call", kernel, NUMBA_CACHE_DIR=scratch)
                yield Figure(f"first call of '{kernel}', {cache} cache", taken, "CPU s", most)


def everything(quick: bool = False, say: Say = lambda _: None) -> Iterator[Figure]:
    """Yield all figures. `quick` leaves out those that take more than a few seconds."""
    torch.set_num_threads(1)
    forms = ("readable", "fused") if fast.compiled() else ("readable",)
    if len(forms) == 1:
        say("numba is not installed, so there is no compiled form to time.")
    for name, source, method, small in (
        ("FedMF, ML-100K block 0", "ml-100k", fedmf(), 1.2),
        ("ego-LightGCN, ML-1M", "ml-1m", ego_lightgcn(), 0.8),
    ):
        if (data := _holdings(source, say)) is None:
            continue
        bounds = {"readable": 10.0, "fused": small}
        yield from rounds(name, Opening.of(data, method), {form: bounds[form] for form in forms})
        if source == "ml-1m":
            yield server_step(data, FedShare(), 8.0)
            yield evaluation(data, method, 0.5)
            if not quick:
                yield from (linear(data, method, COHORTS, form, 3) for form in forms)
                yield from memory("ml-1m", {}, 1500.0)
    yield from streams(quick)
    if not quick:
        yield from growth([5_000, 80_000])
    if not quick and len(forms) > 1:
        yield from first_calls(3.0)


def growth(people: list[int]) -> Iterator[Figure]:
    """Fit the cost of single changes against the size of the federation."""
    scale.measured([people[0] // 5], 1)  # compile first
    figures = scale.measured(people)
    for name in figures[0]:
        took = [figure[name] for figure in figures]
        beside = {f"ms_{size}": 1000 * t for size, t in zip(people, took, strict=True)}
        most, value = scale.bound(name), scale.exponent(took, people)
        yield Figure(f"{name}, growth with people", value, "exponent", most, beside=beside)


def streams(quick: bool) -> Iterator[Figure]:
    """Time continual learners on ML-100K: rounds as multiples of a touch, and a whole run."""
    if (data := _dataset("ml-100k", lambda _: None)) is None:
        return
    stream = Stream.of(data)
    if fast.compiled():
        for name, opening, most in continual.openings(stream):
            yield from rounds(name, opening, most)
    if not quick:
        took, ran = continual.whole_run(stream)
        # How many rounds a run has depends on its seed; 17.4 ms are 4.5 s for the usual 259.
        name = "F3CRec with FedMF, round and validation, all blocks"
        yield Figure(name, 1000 * took / ran["rounds"], "CPU ms", 17.4, 0.0, ran)


def _holdings(source: str, say: Say) -> Holdings | None:
    if (data := _dataset(source, say)) is None:
        return None
    return (data if data.block is None else data.select(data.block == 0).compact()).on_devices(0)


def _dataset(source: str, say: Say) -> Dataset | None:
    """Return a dataset; None, with a message, if it is missing."""
    from rescind.data import Dataset, load

    variant = "blocks" if source == "ml-100k" else None
    try:
        data = load(source, say=say, variant=variant)
    except DataError:
        say(f"{source} is missing, its figures are left out; run: rescind data get {source}")
        return None
    assert isinstance(data, Dataset)
    return data
