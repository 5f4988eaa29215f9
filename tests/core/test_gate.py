"""The gate: bad updates are refused by reason and counted, good ones go on bit for bit."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.gate import HEAVIEST, chosen, gate, gate_sum
from rescind.core.guards import Clip
from rescind.core.method import Method
from rescind.core.state import ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import Cell, DataSettings, RunSettings
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import tiny_holdings

ROWS, DIM, LIMIT, FLOAT = 8, 3, 1e6, torch.float64
PUBLIC = {
    "item": torch.zeros(ROWS, DIM, dtype=FLOAT),
    "dense": torch.zeros(2, dtype=FLOAT),
    "reference/item": torch.zeros(ROWS, DIM, dtype=FLOAT),
}


def ints(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def rows(index, owner=None, value=None) -> Rows:
    """Rows of ones, of client 0 by default."""
    owner = ints([0] * len(index)) if owner is None else ints(owner)
    value = torch.ones(len(index), DIM, dtype=FLOAT) if value is None else value
    return Rows(owner, ints(index), value, ROWS)


# -- ten thousand updates -------------------------------------------------------------------------

# What may be wrong with one of several clients, and the reason that is counted.
SPOILT = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1.1e6, "overflow": 1e200}
WEIGHTS = {"w -1": -1.0, "w nan": math.nan, "w inf": math.inf, "w huge": 1e7}
OF_ONE = {
    **dict.fromkeys(["healthy", "denormal", "empty"]),
    **dict.fromkeys(["nan", "inf", "-inf"], "not finite"),
    **dict.fromkeys(["huge", "overflow"], "norm above 1e+06"),
    **dict.fromkeys(["beyond the table", "before the table"], "row out of range"),
    "twice": "row sent twice",
    **dict.fromkeys(WEIGHTS, "weight not allowed"),
}


class Fuzz:
    """Clients drawn from the clock, and what must come of them in exact arithmetic."""

    def __init__(self, seed: int, count: int) -> None:
        clock, ids = Clock(seed), torch.arange(count).unsqueeze(1)
        self.kind = clock.integers("kind", ids, 0, len(OF_ONE)).squeeze(1).tolist()
        self.counts = clock.integers("many", ids, 0, 4).squeeze(1).tolist()
        self.order = torch.argsort(clock.bits("rows", ids, torch.arange(ROWS)), dim=1).tolist()
        # Multiples of 1/1024 below 2: sums of ten thousand are exact in float64.
        drawn = clock.integers("values", ids, torch.arange(5 * DIM), 4096).double()
        self.values = ((drawn - 2048) / 1024).tolist()
        self.weights = clock.integers("weight", ids, 0, 3).squeeze(1).tolist()
        self.item, self.dense = [[0.0] * DIM for _ in range(ROWS)], [0.0, 0.0]
        self.weight, self.refused = 0.0, Counter()

    def client(self, c: int) -> tuple[list[int], list[list[float]], list[float], float]:
        """One client's (row numbers, row values, dense values, weight); counted as it should be."""
        kind = list(OF_ONE)[self.kind[c]]
        index, drawn = self.order[c][: self.counts[c] + 1], self.values[c]
        value = [drawn[DIM * j : DIM * (j + 1)] for j in range(len(index))]
        dense, weight, spot = drawn[-2:], WEIGHTS.get(kind, self.weights[c]), c % len(index)
        if kind == "empty":
            index, value = [], []
        elif kind == "denormal":
            value, dense = [[0.0] * DIM for _ in index], [5e-324, 0.0]
        elif kind in SPOILT and c % 2:
            value[spot][c % DIM] = SPOILT[kind]
        elif kind in SPOILT:
            dense[c % 4 // 2] = SPOILT[kind]
        elif kind == "beyond the table":
            index[spot] = ROWS + c % 5
        elif kind == "before the table":
            index[spot] = -1 - c % 3
        elif kind == "twice":
            index, value = [*index, index[0]], [*value, value[0]]
        self.expect(OF_ONE[kind], index, value, dense, weight)
        return index, value, dense, weight

    def expect(self, reason, index, value, dense, weight) -> None:
        if reason is not None:
            self.refused[reason] += 1
            return
        self.weight += weight
        self.dense = [a + weight * b for a, b in zip(self.dense, dense, strict=True)]
        for row, each in zip(index, value, strict=True):
            self.item[row] = [a + weight * b for a, b in zip(self.item[row], each, strict=True)]

    def batch(self, first: int, count: int) -> tuple[Update, Tensor]:
        """Join several clients into one update, with their weights."""
        drawn = [self.client(first + place) for place in range(count)]
        owner = [place for place, (index, *_) in enumerate(drawn) for _ in index]
        index = [row for index, *_ in drawn for row in index]
        values = torch.tensor([x for _, v, *_ in drawn for row in v for x in row], dtype=FLOAT)
        item = Rows(ints(owner), ints(index), values.view(-1, DIM), ROWS)
        dense = torch.tensor([dense for _, _, dense, _ in drawn], dtype=FLOAT)
        weight = torch.tensor([w for *_, w in drawn], dtype=FLOAT)
        return Update(count, {"item": item, "dense": dense}), weight


@pytest.mark.parametrize(("count", "size"), [(250, 1), (9750, 250)])
def test_ten_thousand_fuzzed_updates_are_summed_exactly_or_refused_and_counted(count, size):
    fuzz, total, clients = Fuzz(count, count), Sum({}, 0.0, 0), 0
    method, state = FedAvg(model=MF(dim=DIM)), ServerState(PUBLIC)
    for first in range(0, count, size):
        update, weight = fuzz.batch(first, size)
        left, kept, refused = gate(update, LIMIT, PUBLIC, weight)
        assert sum(refused.values()) == int((~kept).sum())
        folded = chosen(left, kept).fold(weight[kept])
        total, clients = total + replace(folded, refused=refused), clients + int(kept.sum())
        state = method.server_step(state, {"train": folded}, None, Clock(0))
        assert all(bool(torch.isfinite(v).all()) for v in state.public.values())
    assert dict(total.refused) == dict(fuzz.refused)
    assert sum(fuzz.refused.values()) + clients == count
    assert len(fuzz.refused) == 5
    assert total.weight == fuzz.weight
    assert total.totals["item"].tolist() == fuzz.item
    assert total.totals["dense"].tolist() == fuzz.dense


def value(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.ones(shape, dtype=dtype)


# What may be wrong with a whole entry, as one client would send it.
OF_ALL = {
    "unknown name": [
        {"items": rows([1])},
        {"reference/item": rows([1])},
        {"dense": value(1, 2), "": value(1, 2)},
    ],
    "wrong shape": [
        {"item": rows([1], value=value(1, DIM + 1))},
        {"item": rows([1], value=value(1))},
        {"item": rows([1, 2], value=value(1, DIM))},
        {"item": rows([1], owner=[1])},
        {"item": rows([1], owner=[-1])},
        {"item": rows([1], owner=[0, 0])},
        {"item": replace(rows([1]), size=ROWS + 1)},
        {"item": Rows(ints([[0]]), ints([[1]]), value(1, DIM), ROWS)},
        {"item": rows([1], value=torch.tensor(1.0))},
        {"item": value(1, ROWS, DIM + 1)},
        {"dense": value(1, 3)},
        {"dense": value(2, 2)},
        {"dense": value(2)},
        {"dense": torch.tensor(1.0)},
        {"dense": rows([1])},
    ],
    "wrong kind of number": [
        {"item": rows([1], value=value(1, DIM, dtype=torch.int64))},
        {"item": rows([1], value=value(1, DIM, dtype=torch.complex64))},
        {"item": rows([1], value=value(1, DIM, dtype=torch.bool))},
        {"item": Rows(ints([0]), torch.tensor([1.0]), value(1, DIM), ROWS)},
        {"item": Rows(torch.tensor([0.0]), ints([1]), value(1, DIM), ROWS)},
        {"dense": value(1, 2, dtype=torch.int32)},
        {"dense": value(1, 2, dtype=torch.complex128)},
    ],
}
SENT = [(reason, entries) for reason, sent in OF_ALL.items() for entries in sent]


@pytest.mark.parametrize(("reason", "entries"), SENT)
def test_an_entry_that_does_not_fit_what_was_broadcast_is_refused(reason, entries):
    left, kept, refused = gate(Update(1, entries), LIMIT, PUBLIC, torch.ones(1))
    assert (kept.tolist(), refused) == ([False], {reason: 1})
    healthy = Update(1, {"item": rows([2]), "dense": value(1, 2)}).fold(torch.ones(1))
    both = healthy + chosen(left, kept).fold(torch.ones(0))
    assert torch.equal(both.totals["item"], healthy.totals["item"])
    assert torch.equal(both.totals["dense"], healthy.totals["dense"])
    assert (both.weight, both.clients) == (1.0, 1)


def test_an_entry_of_wrong_shape_refuses_only_those_who_sent_it():
    wide = rows([1, 2], owner=[0, 2], value=value(2, DIM + 1))
    update = Update(3, {"item": wide, "dense": value(3, 2)})
    left, kept, refused = gate(update, LIMIT, PUBLIC)
    assert kept.tolist() == [False, True, False]
    assert refused == {"wrong shape": 2}
    assert left.entries.keys() == {"dense"}


def test_a_row_out_of_range_is_not_taken_for_a_neighbours():
    # Row 8 of client 0 in a table of 8 has the same place as row 0 of client 1.
    update = Update(2, {"item": rows([8, 0], owner=[0, 1])})
    _, kept, refused = gate(update, LIMIT, PUBLIC)
    assert kept.tolist() == [False, True]
    assert refused == {"row out of range": 1}


def test_a_client_with_many_flaws_is_counted_once():
    broken = value(2, DIM) * math.nan
    update = Update(1, {"item": rows([9, 9], value=broken), "x": value(1, 2)})
    assert gate(update, LIMIT, PUBLIC, -torch.ones(1))[2] == {"row out of range": 1}


def test_another_precision_is_read_in_that_of_the_broadcast():
    public = {"dense": torch.zeros(2, dtype=torch.float16)}
    update = Update(2, {"dense": torch.tensor([[1.0, 2.0], [1e5, 0.0]])})
    left, kept, refused = gate(update, LIMIT, public)
    assert left.entries["dense"].dtype == torch.float16
    # 1e5 is beyond float16's 65504, so it would be an infinity in the model.
    assert (kept.tolist(), refused) == ([True, False], {"not finite": 1})


def test_nothing_sent_is_no_flaw():
    for entries in ({}, {"item": rows([])}, {"dense": value(1, 2) * 0}):
        assert gate(Update(1, entries), LIMIT, PUBLIC, torch.ones(1))[2] == {}
    assert gate(Update(0, {"dense": value(0, 2)}), LIMIT, PUBLIC, torch.ones(0))[2] == {}


def test_one_number_per_client_or_row_is_gated_too():
    public = {"bias": torch.zeros(()), "each": torch.zeros(4)}
    each = Rows(ints([0, 1]), ints([1, 2]), torch.tensor([1.0, math.nan]), 4)
    update = Update(3, {"bias": torch.tensor([1.0, 2.0, math.inf]), "each": each})
    left, kept, refused = gate(update, LIMIT, public)
    assert (kept.tolist(), refused) == ([True, False, False], {"not finite": 2})
    assert chosen(left, kept).fold(torch.ones(1)).totals["bias"] == 1.0


# -- in a round -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    """Averaging in which some devices send something else than they trained."""

    model: MF = MF(dim=3)
    clients_per_round: int | None = None
    broken: tuple[int, ...] = ()
    how: str = "nan"

    def client_train(self, public, private, cohort, clock):
        update, after = super().client_train(public, private, cohort, clock)
        bad = torch.isin(cohort.ids, ints(self.broken))
        if self.how == "name" and bool(bad.any()):
            return Update(len(cohort), {**update.entries, "other": update.entries["item"]}), after
        factor = torch.where(bad, {"nan": math.nan, "huge": 1e9}.get(self.how, 1.0), 1.0)
        user = torch.where(bad.unsqueeze(1), math.nan, after["user"])
        return update.scale(factor), after.with_(user=user)

    def client_weight(self, cohort):
        bad = torch.isin(cohort.ids, ints(self.broken))
        return torch.where(bad & (self.how == "weight"), -1.0, super().client_weight(cohort))


@dataclass(frozen=True, kw_only=True)
class FaultyAlone(Faulty):
    """The same where the server sees single updates."""

    individual: ClassVar[bool] = True


def one_round(method: Method, executor: InProcess, ids: list[int]):
    fed = Federation.start(tiny_holdings(9, 14), method, 3, executor)
    clock, public, vault = fed.clock.at(1), fed.now.state.public, fed.now.vault
    sums, after = executor.train(method, public, None, vault, ints(ids), None, clock)
    return sums["train"], after.private["user"], vault.private["user"]


REASONS = {"nan": "not finite", "huge": "norm above 1e+06", "weight": "weight not allowed"}
EXECUTORS = [InProcess(), InProcess(fused=False), InProcess(chunk=3), OneByOne()]


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("executor", [*EXECUTORS, InProcess(guards=(Clip(0.1),))])
@pytest.mark.parametrize("kind", [Faulty, FaultyAlone])
def test_a_round_goes_on_as_if_the_refused_had_never_been_there(kind, executor, how):
    method = kind(broken=(1, 2, 6), how=how)
    got, private, before = one_round(method, executor, list(range(8)))
    # In chunks of 3 the others stand in the same chunks: 0 | 3 4 5 | 7.
    parts = [[0], [3, 4, 5], [7]] if executor.chunk == 3 else [[0, 3, 4, 5, 7]]
    wanted, others = None, before.clone()
    for ids in parts:
        part, after, _ = one_round(kind(), executor, ids)
        wanted = part if wanted is None else wanted + part
        others[ids] = after[ids]
    assert got.refused == {REASONS[how]: 3}
    assert params.digest(got.totals) == params.digest(wanted.totals)
    assert params.digest(got.touched) == params.digest(wanted.touched)
    assert (got.weight, got.clients) == (wanted.weight, wanted.clients) == (5.0, 5)
    assert got.who.tolist() == [0, 3, 4, 5, 7]
    assert [ids.tolist() for ids, _ in got.parts] == [ids.tolist() for ids, _ in wanted.parts]
    assert torch.equal(private, others)


def test_a_name_that_no_server_step_reads_is_refused():
    got, *_ = one_round(Faulty(broken=(1,), how="name"), OneByOne(), [0, 1, 2])
    assert got.refused == {"unknown name": 1}
    assert got.totals.keys() == {"item"}


def test_a_cohort_in_which_everybody_is_refused_changes_nothing():
    method = Faulty(broken=tuple(range(9)))
    fed = Federation.start(tiny_holdings(9, 14), method, 3)
    after = fed.run(2)
    assert params.digest(after.now.state.public) == params.digest(fed.now.state.public)
    assert params.digest(after.now.vault.private) == params.digest(fed.now.vault.private)


@dataclass(frozen=True, kw_only=True)
class Fused(Faulty):
    """A fused form, recognisable by a sum that is twice as large."""

    def client_sum(self, public, private, cohort, clock):
        total, after = super().client_sum(public, private, cohort, clock)
        return replace(total, totals=params.times(total.totals, 2.0)), after


def test_only_a_cohort_whose_fused_sum_is_unsound_is_made_again():
    # Chunks of three: 0 1 2 | 3 4 5. Client 4 is broken, so only the first chunk stays fused.
    got, *_ = one_round(Fused(broken=(4,)), InProcess(chunk=3), list(range(6)))
    first, *_ = one_round(Faulty(), InProcess(chunk=3), [0, 1, 2])
    second, *_ = one_round(Faulty(), InProcess(chunk=3), [3, 5])
    wanted = params.add(second.totals, first.totals, 2.0)
    assert float((got.totals["item"] - wanted["item"]).abs().max()) < 1e-6
    assert got.refused == {"not finite": 1}


def test_refused_updates_are_counted_in_run_json(tmp_path: Path):
    data = DataSettings(name="synthetic", users=20, items=16, interactions=150)
    run = RunSettings(rounds=3, evaluate_every=1)
    cell = Cell("faulty", data, None, Faulty(broken=(3, 5)), run)
    run_cell(cell, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["refused"] == {"not finite": 6}


# -- sums from elsewhere --------------------------------------------------------------------------


def healthy() -> Sum:
    update = Update(2, {"item": rows([1, 1, 4], owner=[0, 1, 1]), "dense": value(2, 2)})
    return replace(update.fold(torch.ones(2)), who=ints([7, 9]), up=10)


def test_a_healthy_sum_passes_the_gate_as_it_is():
    total = healthy()
    assert gate_sum(total, PUBLIC, LIMIT) is total
    assert gate_sum(Sum({}, 0.0, 0), PUBLIC, LIMIT).refused == {}
    named = replace(total, totals={**total.totals, "mine": torch.ones(3)})
    assert gate_sum(named, PUBLIC, LIMIT, also=["mine"]) is named


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"totals": {"items": value(ROWS, DIM)}}, "unknown name"),
        ({"totals": {"reference/item": value(ROWS, DIM)}}, "unknown name"),
        ({"totals": {"item": value(ROWS + 1, DIM)}}, "wrong shape"),
        ({"totals": {"item": value(ROWS, DIM, dtype=torch.int64)}}, "wrong kind of number"),
        ({"totals": {"item": value(ROWS, DIM, dtype=torch.complex64)}}, "wrong kind of number"),
        ({"totals": {"item": value(ROWS, DIM) * math.nan}}, "not finite"),
        ({"totals": {"item": value(ROWS, DIM) * math.inf}}, "not finite"),
        ({"totals": {"item": value(ROWS, DIM) * 1e7}}, "norm above 1e+06"),
        ({"touched": {"item": value(ROWS + 1)}}, "wrong shape"),
        ({"touched": {"other": value(ROWS)}}, "wrong shape"),
        ({"touched": {"item": value(ROWS) * 3}}, "weight not allowed"),
        ({"touched": {"item": -value(ROWS)}}, "weight not allowed"),
        ({"weight": -1.0, "touched": {}}, "weight not allowed"),
        ({"weight": math.nan, "touched": {}}, "weight not allowed"),
        ({"weight": math.inf}, "weight not allowed"),
        ({"weight": 3 * HEAVIEST}, "weight not allowed"),
        ({"who": ints([7])}, "wrong shape"),
        ({"who": ints([7, 7])}, "row sent twice"),
    ],
)
def test_a_sum_that_cannot_be_one_counts_its_clients_as_refused(change, reason):
    refused = gate_sum(replace(healthy(), **change), PUBLIC, LIMIT)
    assert refused.refused == {reason: 2}
    assert params.digest((healthy() + refused).totals) == params.digest(healthy().totals)
    assert (refused.weight, refused.clients, len(refused.who)) == (0.0, 0, 0)


@pytest.mark.parametrize("clients", [-3, 0, 10**12])
def test_a_sum_that_lies_about_its_clients_is_refused_once(clients):
    assert sum(gate_sum(replace(healthy(), clients=clients), PUBLIC, LIMIT).refused.values()) == 1
