"""The same seed and method give the same model in process and over silos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.grids import silos_of
from graphs import tiny_subgraphs
from rescind import methods
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.records import (
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Records,
    Share,
    Unshare,
    Withdraw,
)
from rescind.data import load
from rescind.data.sequences import next_item
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.silo.node import Node
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.graph_gram import GraphGram
from rescind.methods.additive.seq_gram import SeqGram
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.graphs.fedgcv import FedGCV
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.sharing.fedshare_unlearn import ASKED, FedShareUnlearn
from worlds import next_block, tiny_holdings

pytestmark = pytest.mark.flower

WORLDS = {
    "ranking": lambda: tiny_holdings(clients=9, items=14),
    "nodes": lambda: tiny_subgraphs(clients=9),
}
SEED = 3
EVERY = [
    pytest.param(cls, task, id=f"{name}-{task}")
    for name, cls in methods.all_methods().items()
    for task in cls.tasks
]


def begin(cls: type[Method], task: str) -> Federation:
    """Start a small federation in process, in which some clients lend."""
    fed = Federation.start(WORLDS[task](), replace(cls(), clients_per_round=6), SEED)
    groups = draw_groups(fed.world.sizes.clients, fed.clock, (1, 1, 1))
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def begin_over(
    cls: type[Method], task: str, silos: int, folder: Path
) -> tuple[Federation, FlowerExecutor]:
    """Start the same federation over silos."""
    executor, _ = silos_of(WORLDS[task](), silos, folder, single_updates=True, questions=True)
    method = replace(cls(), clients_per_round=6)
    fed = Federation.start(executor.gather(SEED), method, SEED, executor)
    return fed.apply(executor.lend(fed, (1, 1, 1), 0.5)), executor


def assert_same(here: Federation, there: Federation, close: float | None = None) -> None:
    """Check that all server values are equal, exactly or within `close`."""
    ours, theirs = here.now.state, there.now.state
    assert ours.round == theirs.round
    for mine, other in ((ours.public, theirs.public), (ours.own, theirs.own)):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            if close is None or not value.is_floating_point():
                assert torch.equal(value, other[name]), name
            else:
                assert_close(other[name], value, rtol=close, atol=close, equal_nan=True)
    assert torch.equal(here.world.shared.pairs(), there.world.shared.pairs())
    assert torch.equal(here.world.available, there.world.available)
    assert torch.equal(here.world.announced.keeps, there.world.announced.keeps)
    assert torch.equal(here.world.members, there.world.members)


@pytest.mark.parametrize(("cls", "task"), EVERY)
def test_one_silo_is_the_same_bit_for_bit(cls: type[Method], task: str, tmp_path: Path) -> None:
    here = begin(cls, task).run(3)
    there, _ = begin_over(cls, task, 1, tmp_path)
    there = there.run(3)
    assert_same(here, there)
    assert here.evaluate("test") == there.evaluate("test")


@pytest.mark.parametrize("silos", [2, 4])
@pytest.mark.parametrize(
    ("cls", "task"), [(FedShare, "ranking"), (F3CRec, "ranking"), (FedGCV, "nodes")]
)
def test_more_silos_add_up_in_another_order(
    cls: type[Method], task: str, silos: int, tmp_path: Path
) -> None:
    there, _ = begin_over(cls, task, silos, tmp_path)
    assert_same(begin(cls, task).run(5), there.run(5), close=1e-5)


@pytest.mark.parametrize("silos", [2, 4])
def test_whole_numbers_add_up_exactly(silos: int, tmp_path: Path) -> None:
    there, _ = begin_over(Gram, "ranking", silos, tmp_path)
    assert_same(begin(Gram, "ranking").run(1), there.run(1))


def erased(holdings: Holdings) -> Event:
    """Return an event in which two clients erase their first training record."""
    train = holdings.records[holdings.split == 0]
    first = torch.stack([(train.client == c).nonzero()[0, 0] for c in (0, 1)])
    return Erase(train[first])


@pytest.mark.parametrize("silos", [1, 2])
def test_the_additive_learner_forgets_exactly(silos: int, tmp_path: Path) -> None:
    here, (there, executor) = begin(Gram, "ranking"), begin_over(Gram, "ranking", silos, tmp_path)
    here, there = here.run(1), there.run(1)
    back = Unshare(here.world.shared[here.world.shared.client == here.world.shared.client[-1]])
    for event in (erased(WORLDS["ranking"]()), back, Withdraw(2)):
        here, there = here.method.unlearn(here, event), there.method.unlearn(there, event)
        there = executor.settle(there)
        assert_same(here, there)


@pytest.mark.parametrize("silos", [1, 3])
def test_graphs_are_added_up_in_one_round_and_forget_exactly(silos: int, tmp_path: Path) -> None:
    holdings = tiny_subgraphs(clients=9)
    executor, _ = silos_of(holdings, silos, tmp_path, single_updates=True)
    here = Federation.start(holdings, GraphGram(), SEED).run(1)
    there = Federation.start(executor.gather(SEED), GraphGram(), SEED, executor).run(1)
    assert_same(here, there)
    graph = holdings.graph
    assert graph is not None
    ends = graph.index[graph.edge[:, 0]].tolist()
    edge = EraseEdges.of(int(graph.owner[graph.edge[0, 0]]), [(ends[0], ends[1])])
    train = holdings.records[holdings.split == 0]
    label, node = EraseLabels(train[train.client == 4][:1]), Erase(train[train.client == 5][:2])
    for event in (edge, label, node, Withdraw(2)):
        here, there = here.method.unlearn(here, event), there.method.unlearn(there, event)
        there = executor.settle(there)
        assert_same(here, there)
    later = replace(executor, run="another run")  # the silos' files still have all of it
    again = Federation.start(later.gather(SEED), GraphGram(), SEED, later).run(1)
    total = Federation.start(here.now.vault.holdings, GraphGram(), SEED).run(1).now.state.own
    assert torch.equal(again.now.state.own["gram/nodes"], total["gram/nodes"])


@pytest.mark.parametrize("silos", [1, 3])
def test_sequences_are_added_up_in_one_round_and_forget_exactly(silos: int, tmp_path: Path) -> None:
    holdings = next_item(load("synthetic", users=20, items=20, interactions=200)).on_devices(SEED)
    executor, _ = silos_of(holdings, silos, tmp_path, single_updates=True, questions=True)
    method = SeqGram.sequences()
    here = Federation.start(holdings, method, SEED).run(1)
    there = Federation.start(executor.gather(SEED), method, SEED, executor).run(1)
    assert_same(here, there)
    assert here.evaluate("test", 5) == pytest.approx(there.evaluate("test", 5))
    train = holdings.records[holdings.split == 0]
    mine = train[train.client == 4]
    inside = Erase(mine[torch.argsort(mine.time)[1:2]])  # neither the first nor the last
    for event in (inside, erased(holdings), Withdraw(2)):
        before = here
        here, there = here.method.unlearn(here, event), there.method.unlearn(there, event)
        there = executor.settle(there)
        assert_same(here, there)
        assert not torch.equal(*(fed.now.state.own["gram/0000"] for fed in (before, here)))
    never = here.restart().run(1).now.state.own["gram/0000"]
    assert torch.equal(there.now.state.own["gram/0000"], never)


@pytest.mark.parametrize("silos", [1, 2])
def test_the_additive_learner_forgets_what_it_counted_in_an_earlier_block(
    silos: int, tmp_path: Path
) -> None:
    here, (there, _) = begin(Gram, "ranking"), begin_over(Gram, "ranking", silos, tmp_path)
    here, there = here.run(1), there.run(1)
    block = next_block(clients=9, items=14)
    here, there = here.method.follow(here, block), there.method.follow(there, block)
    held = here.now.vault.holdings.records
    again = held[held.among(WORLDS["ranking"]().records)]  # counted before, and held again
    event = Erase(again[again.client == again.client[0]])
    here, there = here.method.unlearn(here, event), there.method.unlearn(there, event)
    assert_same(here, there)


@pytest.mark.parametrize("silos", [1, 2])
def test_fedshare_forgets_records_that_are_taken_back(silos: int, tmp_path: Path) -> None:
    unlearner = FedShareUnlearn(rounds=3)
    here, (there, _) = begin(FedShare, "ranking"), begin_over(FedShare, "ranking", silos, tmp_path)
    here, there = here.run(4), there.run(4)
    lender = int(here.world.shared.client[0])
    back = Unshare(here.world.shared[here.world.shared.client == lender])
    here, there = unlearner.unlearn(here, back), unlearner.unlearn(there, back)
    assert_same(here, there, None if silos == 1 else 1e-5)


@pytest.mark.parametrize("silos", [1, 2])
def test_clients_of_silos_report_their_damping(silos: int, tmp_path: Path) -> None:
    unlearner = FedShareUnlearn(rounds=4, damping="measured")
    here, (there, _) = begin(FedShare, "ranking"), begin_over(FedShare, "ranking", silos, tmp_path)
    keeps = replace(here.method, keep_sums=True)
    here, there = (fed.fork(method=keeps).run(4) for fed in (here, there))
    lender = int(here.world.shared.client[0])
    back = Unshare(here.world.shared[here.world.shared.client == lender])
    here, there = unlearner.unlearn(here, back), unlearner.unlearn(there, back)
    assert_same(here, there, None if silos == 1 else 1e-5)
    assert here.now.state.round == 4 + 4 - ASKED


@pytest.mark.parametrize("silos", [1, 2])
def test_a_client_leaves_a_graph(silos: int, tmp_path: Path) -> None:
    method = FedGCV(forget_rounds=3, repair_rounds=2)
    here, (there, _) = begin(FedGCV, "nodes"), begin_over(FedGCV, "nodes", silos, tmp_path)
    here, there = here.run(4), there.run(4)
    here, there = method.unlearn(here, Withdraw(4)), method.unlearn(there, Withdraw(4))
    assert_same(here, there, None if silos == 1 else 1e-5)
    assert not bool(there.world.members[4])


@pytest.mark.parametrize("silos", [1, 2])
def test_blocks_come_one_after_another(silos: int, tmp_path: Path) -> None:
    here, (there, _) = begin(F3CRec, "ranking"), begin_over(F3CRec, "ranking", silos, tmp_path)
    here, there = here.run(3), there.run(3)
    block = next_block(clients=11, items=17)  # with new clients and new items
    here, there = here.apply(block).run(3), there.apply(block).run(3)
    assert_same(here, there, None if silos == 1 else 1e-5)


@pytest.mark.parametrize("silos", [1, 2])
def test_training_again_without_the_records_is_exact(silos: int, tmp_path: Path) -> None:
    here, (there, executor) = (
        begin(FedShare, "ranking"), begin_over(FedShare, "ranking", silos, tmp_path)
    )  # fmt: skip
    here, there = here.run(3), there.run(3)
    event = erased(WORLDS["ranking"]())
    here, there = here.retrained(event), there.retrained(event)
    assert_same(here, there, None if silos == 1 else 1e-5)
    there = executor.settle(there)
    assert_same(here.retrained(Withdraw(3)), there.retrained(Withdraw(3)), 1e-5)


def test_recommendations_are_equal_to_one_process(tmp_path: Path) -> None:
    here, (there, _) = begin(FedShare, "ranking"), begin_over(FedShare, "ranking", 2, tmp_path)
    here, there = here.run(2), there.run(2)
    records = Records.of([5] * 14, list(range(14)))
    assert_close(there.query(records), here.query(records), rtol=1e-5, atol=1e-5)


def test_only_sums_leave_a_silo(tmp_path: Path) -> None:
    """No reply to train or measure contains private tables or single updates."""
    executor, grid = silos_of(WORLDS["ranking"](), 2, tmp_path)
    fed = Federation.start(executor.gather(SEED), FedShare(), SEED, executor)
    fed = fed.apply(Share(executor.lend(fed, (1, 1, 1), 0.5).records)).run(2)
    fed.evaluate("test")
    private = {"user"}
    sent = [reply for _, reply in grid.said if reply.facts["verb"] in ("train", "measure")]
    assert sent
    for reply in sent:
        assert not reply.facts.get("sums", {}).get("train", {}).get("parts")
        for name in reply.tensors:
            assert name.split("|")[-1] not in private, name
    assert all(isinstance(node, Node) for node in grid.nodes.values())
