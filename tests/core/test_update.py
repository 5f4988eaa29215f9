"""Updates and sums: what clients send, held against loops in plain Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescind.core.gate import gate
from rescind.core.state import Log, Memory
from rescind.core.update import Rows, Sum, Update
from worlds import randoms

CLIENTS, ROWS, DIM = 4, 6, 2


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def update() -> Update:
    """Client 0 sends rows 1 and 4, client 2 rows 4 and 0, client 3 row 4; 1 sends no row."""
    rows = Rows(ints([0, 0, 2, 2, 3]), ints([1, 4, 4, 0, 4]), randoms(5, DIM), ROWS)
    return Update(CLIENTS, {"item": rows, "dense": randoms(CLIENTS, 3, 2, seed=1)})


def of_client(update: Update, client: int) -> dict[str, list]:
    """One client's update as full nested lists, zeros where it sent nothing."""
    rows, dense = update.entries["item"], update.entries["dense"]
    table = [[0.0] * DIM for _ in range(ROWS)]
    for owner, index, value in zip(rows.owner, rows.index, rows.value, strict=True):
        if int(owner) == client:
            table[int(index)] = [
                a + float(b) for a, b in zip(table[int(index)], value, strict=True)
            ]
    return {"item": table, "dense": dense[client].tolist()}


def flat(value) -> list[float]:
    return [value] if isinstance(value, float) else [x for part in value for x in flat(part)]


@pytest.mark.parametrize("weight", [[1, 1, 1, 1], [1, 2, 0.5, 0], [3, 3, 3, 3]])
def test_a_fold_is_the_weighted_sum_over_clients(update, weight):
    total = update.fold(torch.tensor(weight, dtype=torch.float64))
    for name in ("item", "dense"):
        each = [flat(of_client(update, c)[name]) for c in range(CLIENTS)]
        expected = [sum(w * e[j] for w, e in zip(weight, each, strict=True))
                    for j in range(len(each[0]))]  # fmt: skip
        assert total.totals[name].flatten().tolist() == pytest.approx(expected, abs=1e-12)
        mean = [x / sum(weight) for x in expected]
        assert total.mean()[name].flatten().tolist() == pytest.approx(mean, abs=1e-12)
    assert total.weight == sum(weight)
    assert total.clients == sum(w != 0 for w in weight)
    # Row 0: client 2. Row 1: client 0. Row 4: clients 0, 2, 3.
    touched = [weight[2], weight[0], 0, 0, weight[0] + weight[2] + weight[3], 0]
    assert total.touched["item"].tolist() == touched
    assert total.parts == ()


def test_norms_are_those_of_each_clients_whole_update(update):
    for client, norm in enumerate(update.norms().tolist()):
        mine = of_client(update, client)
        squares = sum(x * x for x in flat(mine["item"]) + flat(mine["dense"]))
        assert norm == pytest.approx(squares**0.5, abs=1e-12)


def test_scaling_multiplies_each_client_by_its_own_factor(update):
    factor = [2.0, 0.0, -1.0, 0.5]
    scaled = update.scale(torch.tensor(factor, dtype=torch.float64))
    for client in range(CLIENTS):
        for name, value in of_client(update, client).items():
            expected = [factor[client] * x for x in flat(value)]
            assert flat(of_client(scaled, client)[name]) == pytest.approx(expected)


def test_a_refused_client_leaves_nothing_not_even_a_nan(update):
    broken = update.entries["item"].value.clone()
    broken[0] = torch.nan
    update.entries["dense"][1] = torch.inf
    bad = Update(CLIENTS, {**update.entries, "item": replace(update.entries["item"], value=broken)})
    left, kept, reasons = gate(bad, 1e6)
    assert kept.tolist() == [False, False, True, True]
    assert reasons == {"not finite": 2}
    total = left.fold(kept.double())
    for name in ("item", "dense"):
        expected = [
            a + b for a, b in zip(*(flat(of_client(update, c)[name]) for c in (2, 3)), strict=True)
        ]
        assert total.totals[name].flatten().tolist() == pytest.approx(expected)


def test_an_update_of_absurd_norm_is_refused_by_name():
    update = Update(3, {"dense": torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 0.0]])})
    left, kept, reasons = gate(update, 4.9)
    assert kept.tolist() == [False, True, False]
    assert reasons == {"not finite": 1, "norm above 4.9": 1}
    assert left.entries["dense"].tolist() == [[0.0, 0.0], pytest.approx([0.3, 0.4]), [0.0, 0.0]]
    assert gate(update, 5.1)[1].tolist() == [True, True, False]
    assert gate(update.only(kept), 4.9)[2] == {}


def test_bytes_up_are_the_touched_rows_with_their_numbers(update):
    # 5 rows of 2 float64 and a row number of 4 bytes each; 4 clients x 6 float64.
    assert update.nbytes == 5 * 2 * 8 + 5 * 4 + 4 * 6 * 8
    assert update.fold(torch.ones(CLIENTS)).up == update.nbytes


numbers = st.integers(-(2**40), 2**40)


@st.composite
def sums(draw) -> Sum:
    names = draw(st.lists(st.sampled_from(["a", "b"]), unique=True))
    reasons = draw(st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 3)))
    return Sum(
        totals={n: ints([draw(numbers), draw(numbers)]) for n in names},
        weight=float(draw(st.integers(0, 100))),
        clients=draw(st.integers(0, 9)),
        touched={n: ints([draw(numbers)]) for n in names},
        refused=reasons,
        up=draw(st.integers(0, 99)),
        down=draw(st.integers(0, 99)),
    )


def facts(total: Sum) -> tuple:
    return (
        {n: v.tolist() for n, v in total.totals.items()},
        {n: v.tolist() for n, v in total.touched.items()},
        *(total.weight, total.clients, dict(total.refused), total.up, total.down),
    )


@settings(max_examples=25)
@given(sums(), sums(), sums())
def test_sums_can_be_added_in_any_order_and_grouping(one, two, three):
    assert facts((one + two) + three) == facts(one + (two + three)) == facts((three + one) + two)
    assert facts(one + Sum({}, 0.0, 0)) == facts(one)


def test_a_fold_in_parts_is_the_fold_of_all(update):
    whole = update.fold(torch.ones(CLIENTS, dtype=torch.float64))
    for split in range(16):
        kept = torch.tensor([bool(split >> c & 1) for c in range(CLIENTS)])
        both = update.only(kept).fold(kept.double()) + update.only(~kept).fold((~kept).double())
        assert both.clients == whole.clients
        for name in ("item", "dense"):
            assert float((both.totals[name] - whole.totals[name]).abs().max()) < 1e-12
        assert both.touched["item"].tolist() == whole.touched["item"].tolist()


def test_the_mean_of_whole_numbers_is_not_rounded_to_float32():
    assert float(Sum({"n": ints([2**24 + 1])}, 1.0, 1).mean()["n"]) == 2**24 + 1


def test_a_memory_keeps_the_last_ones_of_a_name():
    memory = Memory()
    for round_ in range(1, 6):
        memory = memory.keep("table", round_, {"x": torch.full((2,), float(round_))}, last=3)
    memory = memory.keep("other", 2, {"x": torch.zeros(1)})
    assert [s.round for s in memory.named("table")] == [3, 4, 5]
    assert memory.nbytes == 3 * 8 + 4
    assert [(s.name, s.round) for s in memory] == [("table", n) for n in (3, 4, 5)] + [("other", 2)]
    assert memory.keep("table", 6, {}, last=0).named("table") == ()


def test_a_log_is_kept_by_client_and_read_by_place():
    rows = Rows(ints([0, 1, 1]), ints([5, 6, 7]), torch.tensor([[1.0], [2.0], [3.0]]), 9)
    log = Log().add(3, ints([40, 20]), {"item": rows})
    log = log.add(4, ints([10]), {"item": rows[ints([0])], "other": rows[ints([0])]})
    mine = log.of(ints([30, 20]))
    assert mine.at(3).owner.tolist() == [1, 1]
    assert mine.at(3).index.tolist() == [6, 7]
    assert len(mine.at(4)) == 0
    assert log.at(5) is None
    gone = log.without(ints([20, 10]))
    assert gone.at(3).owner.tolist() == [40]
    assert len(gone.at(4)) == 0
    assert log.at(4, "other").index.tolist() == [5]
    assert log.at(3, "other") is None
    assert log.rounds == (3, 4)
    # 5 rows of a float32 and a row number of 4 bytes.
    assert log.nbytes == 5 * 8
    assert gone.nbytes == 8
