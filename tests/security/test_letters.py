"""Silos that lie and letters that are broken: bounded, refused, reported; nothing ever ends."""

from __future__ import annotations

import copy
import random  # noqa: TID251 - seeded mutations, not a result
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, InMemorySource, silos_of
from rescind.core.federation import Federation
from rescind.core.records import Erase, Withdraw
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.server.combine import combined
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.serde import read, written
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import lendable, tiny_holdings

pytestmark = pytest.mark.flower

CLIENTS, ITEMS, SILOS, SEED, LIAR = 12, 14, 3, 5, 1
METHOD = FedAvg(model=MF(dim=4))


def start(folder: Path, **fields: Any) -> tuple[Federation, FlowerExecutor, InMemory]:
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, folder)
    executor = replace(executor, **fields)
    return Federation.start(executor.gather(SEED), METHOD, SEED, executor), executor, grid


def lying(change: Callable[[Letter], Letter]) -> Callable[[int, Letter], Letter | None]:
    """Return a fault: one silo changes its updates."""

    def fault(node: int, reply: Letter) -> Letter:
        return change(reply) if node == FIRST + LIAR and reply.facts["verb"] == "train" else reply

    return fault


def with_sum(reply: Letter, clients: int, weight: float, value: float) -> Letter:
    """Return a reply whose sum states a number of clients, a weight, and a table of one value."""
    facts = copy.deepcopy(reply.facts)
    facts["sums"]["train"]["clients"] = clients
    tensors = dict(reply.tensors)
    tensors["sum0|weight"] = torch.tensor(weight, dtype=torch.float64)
    tensors["sum0|totals|item"] = torch.full_like(tensors["sum0|totals|item"], value)
    tensors["sum0|touched|item"] = torch.full_like(tensors["sum0|touched|item"], weight)
    if clients > CLIENTS:
        tensors["sum0|who"] = torch.zeros(0, dtype=torch.int64)
    return Letter(facts, tensors)


def moved(fed: Federation, grid: InMemory, change: Callable[[Letter], Letter]) -> float:
    """Return how far one round with a liar moves the table, as its largest entry."""
    grid.changed = lying(change)
    after = fed.run(1)
    return float(after.now.state.public["item"].abs().max())


def test_a_silo_cannot_state_more_clients_or_weight_than_it_was_asked_for(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    million = moved(fed, grid, lambda r: with_sum(r, 1_000_000, 1e9, 1e9 * 7.0))
    assert million < 1  # it was 7: the table was the liar's
    assert executor.line.refused.total() == 1
    heavy = moved(fed, grid, lambda r: with_sum(r, 4, 4e6, 4e6 * 7.0))
    assert heavy < 1
    assert executor.line.refused["weight not allowed"] == 1


def test_the_norm_per_member_is_bounded(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    assert moved(fed, grid, lambda r: with_sum(r, 4, 4.0, 4 * 1e5)) < 1
    assert executor.line.refused["norm above 1000"] == 1
    open_, _, other = start(tmp_path / "open", limit=1e6)  # the control
    assert moved(open_, other, lambda r: with_sum(r, 4, 4.0, 4 * 1e5)) > 1e4


def test_trimmed_means_leave_out_a_liar_within_the_bounds(tmp_path: Path) -> None:
    plain, _, grid = start(tmp_path / "plain")
    assert moved(plain, grid, lambda r: with_sum(r, 4, 4.0, 4 * 20.0)) > 5
    robust, _, grid = start(tmp_path / "robust", trim=0.34)
    assert moved(robust, grid, lambda r: with_sum(r, 4, 4.0, 4 * 20.0)) < 1


def test_trimmed_means_by_hand() -> None:
    # Means of the silos: 1, 2, 90 for row 0; only one silo has row 1. Without the ends: 2 and 5.
    rows = [([[2.0], [0.0]], [2.0, 0.0]), ([[2.0], [5.0]], [1.0, 1.0]), ([[90.0], [0.0]], [1.0, 0])]
    sums = [
        {"train": Sum({"t": torch.tensor(total)}, 2.0, 2, {"t": torch.tensor(weight)})}
        for total, weight in rows
    ]
    trimmed = combined(sums, 0.34)["train"]
    assert (trimmed.totals["t"].squeeze(1) / trimmed.touched["t"]).tolist() == [2.0, 5.0]
    plain = combined(sums)["train"]
    assert (plain.totals["t"].squeeze(1) / plain.touched["t"]).tolist() == [94 / 4, 5.0]
    with pytest.raises(ConfigError, match=r"below 0\.5"):
        FlowerExecutor(silos_of(tiny_holdings(4, 4), 2, Path("x"))[0].line, trim=0.5)


# -- seeded mutations ------------------------------------------------------------------------------

STRANGE: list[Any] = [
    None, True, -1, 0, 1, 2**63, 2**200, 1e300, -1e300, float("nan"), float("inf"), "", "x", "0",
    "x" * 100_000, [], [[]], [1, 2], {}, {"name": 3}, {"name": "FedAvg", "model": 1}, [None] * 3,
    {"": {}}, [[0, "train"], [0]],
]  # fmt: skip


def strange_tensors(rng: random.Random, value: Tensor) -> Tensor:
    """Return a tensor of another kind, shape or content."""
    n = rng.choice([0, 1, 3, 1000])
    return rng.choice(
        [
            lambda: value.float() * float("nan"),
            lambda: value.double() * 1e300,
            lambda: value.double() + 0.5,
            lambda: -value - 1 if value.dtype != torch.bool else value,
            lambda: value.reshape(-1)[:-1],
            lambda: value.unsqueeze(0),
            lambda: torch.cat([value.reshape(-1)] * 2),
            lambda: value.to(torch.complex64),
            value.bool,
            lambda: value.to(torch.uint8),
            lambda: torch.zeros((0, n)),
            lambda: torch.full((n,), 2**62),
            lambda: torch.full((n,), -(2**63)),
            lambda: torch.tensor(rng.randint(-(10**9), 10**9)),
            lambda: torch.randn(n, 2, 2),
        ]
    )()


def places(facts: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values in a table."""
    found = [path] if path else []
    inside = enumerate(facts) if isinstance(facts, list) else ()
    for key, value in facts.items() if isinstance(facts, dict) else inside:
        found += places(value, (*path, key))
    return found


def mutated(rng: random.Random, letter: Letter, kept: tuple[str, ...] = ()) -> Letter:
    """Return a letter with one to three changes. kept: facts that stay, so that it is looked at"""
    facts, tensors = copy.deepcopy(letter.facts), dict(letter.tensors)
    for _ in range(rng.randint(1, 3)):
        if tensors and rng.random() < 0.5:
            name = rng.choice(sorted(tensors))
            how = rng.random()
            if how < 0.2:
                tensors.pop(name)
            elif how < 0.3:
                tensors[f"{name}|x"] = tensors.pop(name)
            else:
                tensors[name] = strange_tensors(rng, tensors[name])
            continue
        open_ = [path for path in places(facts) if path[0] not in kept]
        if not open_:
            continue
        *way, last = rng.choice(open_)
        at = facts
        for key in way:
            at = at[key]
        if rng.random() < 0.3 and isinstance(at, dict):
            at.pop(last)
        else:
            at[last] = copy.deepcopy(rng.choice(STRANGE))
    return Letter(facts, tensors)


ECHO = ("run", "round", "epoch", "verb", "of", "silo", "silos")


def whole_story(folder: Path, rng: random.Random, method: Any, chance: float) -> FlowerExecutor:
    """Train, measure, erase and go on while one silo's replies are changed at random."""
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, folder)
    fed = Federation.start(executor.gather(SEED), method, SEED, executor)

    def fault(node: int, reply: Letter) -> Letter:
        chosen = node == FIRST + LIAR and rng.random() < chance
        return mutated(rng, reply, ECHO if rng.random() < 0.9 else ()) if chosen else reply

    grid.changed = fault
    fed = fed.run(1)
    fed.evaluate("test")
    erased = Erase(lendable(tiny_holdings(CLIENTS, ITEMS), LIAR)[:1])
    fed = executor.settle(fed.retrained(erased))
    fed = executor.settle(fed.apply(Withdraw(0)).run(1))
    fed.evaluate("test")
    for value in fed.now.state.public.values():
        assert bool(torch.isfinite(value.double()).all())
    return executor


def fuzz_replies(folder: Path, stories: range) -> int:
    """Return how many changed replies were refused. Nothing may be raised."""
    refused = 0
    for number in stories:
        rng = random.Random(number)
        method = Gram() if number % 4 == 3 else METHOD
        refused += whole_story(folder / str(number), rng, method, 0.7).line.refused.total()
    return refused


def test_no_reply_ends_the_server(tmp_path: Path) -> None:
    assert fuzz_replies(tmp_path, range(3)) > 5


@pytest.mark.slow
def test_no_reply_ends_the_server_in_many_stories(tmp_path: Path) -> None:
    assert fuzz_replies(tmp_path, range(3, 150)) > 450


@pytest.mark.parametrize("number", range(20))
def test_a_bad_reply_at_the_start_is_a_clear_error(number: int, tmp_path: Path) -> None:
    """A federation cannot start without one of its silos; it says which is missing."""
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, tmp_path)
    rng = random.Random(number)
    grid.changed = lambda node, r: mutated(rng, r, ECHO) if node == FIRST + LIAR else r
    with suppress(DataError):  # nothing else, and a harmless change starts
        executor.gather(SEED, wait=0.0)


def letters_of(folder: Path) -> list[Letter]:
    """Return every request of a story, as the server sends it to one silo."""
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, folder, questions=True)
    node, asked = grid.nodes[FIRST + LIAR], list[Letter]()

    class Listening:
        def answer(self, request: Letter) -> Letter:
            asked.append(request)
            return node.answer(request)

    grid.nodes[FIRST + LIAR] = Listening()  # type: ignore[assignment]
    fed = Federation.start(executor.gather(SEED), METHOD, SEED, executor).run(1)
    fed = fed.apply(executor.lend(fed, (1, 1, 1), 0.5))
    fed.evaluate("test")
    fed.query(lendable(tiny_holdings(CLIENTS, ITEMS), LIAR)[:2])
    fed = executor.settle(fed.retrained(Erase(lendable(tiny_holdings(CLIENTS, ITEMS), LIAR)[:1])))
    assert {str(letter.facts["verb"]) for letter in asked} >= {
        "hold", "open", "train", "measure", "apply", "lend", "query", "keep"
    }  # fmt: skip
    return asked


def fuzz_letters(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Return (letters, answers with an error). The silo answers each, and works at the end."""
    asked, rng, errors = letters_of(folder / "story"), random.Random(seed), 0
    node = Node(Store(folder / "x"), InMemorySource(tiny_holdings(CLIENTS, ITEMS)), LIAR, SILOS)
    for letter in asked[:3]:
        assert "error" not in node.answer(letter).facts
    for number in range(count):
        data = written(mutated(rng, rng.choice(asked), ("verb",)).to_records())
        if number % 5 == 0:  # bytes, too
            spot = rng.randrange(len(data))
            data = data[:spot] + rng.randbytes(rng.randint(0, 40)) + data[spot + 7 :]
        reply = Letter.from_records(read(node.answer_bytes(data)))
        assert (reply.facts["silo"], reply.facts["silos"]) == (LIAR, SILOS)
        errors += "error" in reply.facts
    hold = Letter.from_records(read(node.answer_bytes(written(asked[0].to_records()))))
    assert "error" not in hold.facts
    return count, errors


def test_no_letter_ends_a_silo(tmp_path: Path) -> None:
    count, errors = fuzz_letters(tmp_path, 150, 1)
    assert errors > count / 2


@pytest.mark.slow
def test_no_letter_ends_a_silo_in_many_letters(tmp_path: Path) -> None:
    count, errors = fuzz_letters(tmp_path, 1500, 2)
    assert errors > count / 2


def test_a_silo_answers_bytes_that_are_no_letter(tmp_path: Path) -> None:
    node = Node(Store(tmp_path), InMemorySource(tiny_holdings(4, 4)))
    for data in (b"", b"\x00" * 9, b"\xff" * 100):
        reply = Letter.from_records(read(node.answer_bytes(data)))
        assert reply.facts["error"] == "DataError"
