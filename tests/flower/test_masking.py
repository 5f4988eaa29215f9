"""Masked sums: the total is right, single sums are hidden, and missing silos are left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, silos_of
from graphs import tiny_subgraphs
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.run_state import RoundResult
from rescind.core.update import Sum
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.transport import SILENT
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import sums_of
from rescind.flower.wire.secure_aggregation import Masked, flatten_sum, unflatten_sum
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.graph_gram import GraphGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import tiny_holdings

pytestmark = pytest.mark.flower

CLIENTS, ITEMS, SEED = 12, 14, 5
METHOD = FedAvg(model=MF(dim=4))


def start(
    folder: Path,
    silos: int = 3,
    method: Method = METHOD,
    masked: Masked | None = None,
    **node: bool,
) -> tuple[Federation, FlowerExecutor, InMemory]:
    plain, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), silos, folder, **node)
    executor = replace(plain, masked=masked)
    return Federation.start(executor.gather(SEED), method, SEED, executor), executor, grid


def test_a_sum_is_the_same_after_flattening() -> None:
    counted, table = torch.tensor([3, -1], dtype=torch.int32), torch.rand(4, 2)
    total = Sum({"a": counted, "b": table}, 5.0, 2, {"b": torch.tensor([1.0, 0, 2, 0])})
    again = unflatten_sum(*flatten_sum(total))
    assert (again.weight, again.clients) == (5.0, 2)
    assert torch.equal(again.totals["a"], counted)
    assert again.totals["a"].dtype == torch.int32
    assert torch.equal(again.totals["b"], table)
    assert torch.equal(again.touched["b"], total.touched["b"])


@pytest.mark.parametrize("silos", [3, 4])
def test_masked_sums_learn_what_one_process_learns(silos: int, tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path, silos, masked=Masked(8.0), secure=True)
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(3)
    last: list[RoundResult] = []
    fed = fed.run(3, watch=[last.append])
    for name, value in here.now.state.public.items():
        assert_close(fed.now.state.public[name], value, rtol=1e-5, atol=1e-5)
    assert last[-1].sums["train"].clients == int(fed.world.available.sum())
    assert executor.line.refused == {}
    assert fed.evaluate("test") == pytest.approx(here.evaluate("test"), abs=1e-5)


def test_whole_numbers_are_masked_without_loss(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path, 3, Gram(), Masked(2.0**17))
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), Gram(), SEED).run(1)
    fed = fed.run(1)
    for name, value in here.now.state.public.items():
        assert torch.equal(fed.now.state.public[name], value), name
    for name, value in here.now.state.own.items():
        assert torch.equal(fed.now.state.own[name], value), name


def test_node_sums_are_masked_without_loss(tmp_path: Path) -> None:
    method, holdings = GraphGram(keep_parts=False), tiny_subgraphs(clients=6)
    plain, _ = silos_of(holdings, 3, tmp_path)
    executor = replace(plain, masked=Masked(2.0**30))
    fed = Federation.start(executor.gather(SEED), method, SEED, executor).run(1)
    here = Federation.start(holdings, method, SEED).run(1)
    for name, value in here.now.state.own.items():
        assert torch.equal(fed.now.state.own[name], value), name
    assert torch.equal(fed.now.state.public["weights"], here.now.state.public["weights"])


def train_replies(grid: InMemory) -> list[Letter]:
    return [reply for _, reply in grid.said if reply.facts["verb"] == "train"]


def test_a_masked_reply_does_not_contain_the_sum(tmp_path: Path) -> None:
    """The control: without masks, the reply contains the silo's sum."""
    unmasked, _, plain = start(tmp_path / "plain")
    unmasked.run(1)
    fed, _, grid = start(tmp_path / "masked", masked=Masked(8.0))
    fed.run(1)
    bare, masked = train_replies(plain), train_replies(grid)
    assert len(bare) == len(masked) == 3
    for reply in bare:
        assert float(sums_of(reply)["train"].totals["item"].abs().max()) > 0
    for reply in masked:
        assert "sums" not in reply.facts
        assert {n for n in reply.tensors if not n.startswith("said|")} == {"who", "masked"}
    again, _, other = start(tmp_path / "again", masked=Masked(8.0))
    again.run(1)
    for one, two in zip(masked, train_replies(other), strict=True):  # new masks, the same sum
        assert not torch.equal(one.tensors["masked"], two.tensors["masked"])


def test_a_silo_that_is_lost_after_the_keys_is_not_in_the_total(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path / "a", 4, masked=Masked(8.0))

    def lost(number: int, reply: Letter) -> Letter | None:
        return None if number == FIRST + 1 and reply.facts["verb"] == "train" else reply

    grid.changed = lost
    last: list[RoundResult] = []
    after = fed.run(1, watch=[last.append])
    plain, _, other = start(tmp_path / "b", 4)
    other.changed = lost
    for name, value in plain.run(1).now.state.public.items():
        assert_close(after.now.state.public[name], value, rtol=1e-5, atol=1e-5)
    assert last[-1].sums["train"].refused == {SILENT: 3}
    grid.changed = None
    after.run(1)
    assert executor.line.refused[SILENT] == 1


def test_an_entry_above_the_range_is_an_error(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path, masked=Masked(1e-6))
    with pytest.raises(DataError, match="--secure-range"):
        fed.run(1)


def test_a_silo_that_requires_masks_sends_nothing_without(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path, secure=True)
    with pytest.raises((DataError, ConsentError), match="--secure"):
        fed.run(1)


def test_two_silos_and_several_roles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 to"):
        start(tmp_path / "two", 2, masked=Masked())
    fed, _, _ = start(tmp_path / "three", 3, masked=Masked())
    with pytest.raises(ConfigError, match="roles"):
        fed.run(1, roles={1: "another"})
