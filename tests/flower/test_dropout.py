"""A third of the silos is missing in every round, and the model is nearly as good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flower.grids import FIRST, silos_of
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.run_state import RoundResult
from rescind.data import load
from rescind.methods.baselines.fedavg import FedAvg

pytestmark = [pytest.mark.flower, pytest.mark.data]

SILOS, MISSING, ROUNDS, SEED = 10, 3, 100, 0


def away(round_: int) -> set[int]:
    """Draw the nodes that do not reply in a round."""
    bits = Clock(SEED).at(round_).bits("away", torch.arange(SILOS))
    return {FIRST + int(silo) for silo in torch.argsort(bits)[:MISSING]}


def test_a_third_missing_costs_less_than_two_percent(tmp_path: Path) -> None:
    holdings = load("ml-100k").on_devices(SEED)
    method = replace(FedAvg(), clients_per_round=None)
    full = Federation.start(holdings, method, SEED).run(ROUNDS)
    executor, grid = silos_of(holdings, SILOS, tmp_path)
    fed = Federation.start(executor.gather(SEED), method, SEED, executor)
    counted: list[int] = []

    def next_round(result: RoundResult) -> None:
        counted.append(result.sums["train"].clients)
        grid.away = away(result.now.state.round + 1)

    grid.away = away(1)
    fed = fed.run(ROUNDS, watch=[next_round, executor.watch()])
    grid.away = set()
    clients = int(fed.world.available.sum())
    assert max(counted) < 0.75 * clients
    assert min(counted) > 0.65 * clients
    there, here = fed.evaluate("test")["HR@20"], full.evaluate("test")["HR@20"]
    assert there == pytest.approx(here, rel=0.02)
