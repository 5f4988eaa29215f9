"""A silo that missed a block: it applies the block before it takes part in a retraining."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, InMemorySource
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Withdraw
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import remote_holdings
from rescind.flower.server.storage import load_remote, save_remote
from rescind.flower.server.transport import SILENT, Transport
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.steps import HELD, MOMENT
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.mf import MF
from worlds import next_block, tiny_holdings

pytestmark = pytest.mark.flower

SEED, LATE = 3, 1
METHOD = F3CRec(model=MF(dim=4), top_n=4, negatives=2, batch_size=16)
FIRST_BLOCK, BLOCK = tiny_holdings(12, 14), next_block(15, 17)
"""The second has more clients and more items."""


def started(folder: Path) -> tuple[Federation, FlowerExecutor, InMemory]:
    """Run two rounds of the first block on two silos, which also have the next block."""
    source = InMemorySource(FIRST_BLOCK, (BLOCK,))
    nodes = {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, 2) for i in range(2)}
    grid = InMemory(nodes)
    executor = FlowerExecutor(Transport(grid, 2, deadline=0.0, pause=0.0), least=0.0)
    fed = Federation.start(executor.gather(SEED), METHOD, SEED, executor)
    return fed.run(2, watch=[executor.watch()]), executor, grid


def in_one_process() -> Federation:
    """Run two rounds of the first block and two of the next."""
    return Federation.start(FIRST_BLOCK, METHOD, SEED).run(2).apply(BLOCK).run(2)


def request_of(kind: type[Withdraw | Erase], silo: int) -> Withdraw | Erase:
    """Return a request of a client of a silo about the second block."""
    mine = BLOCK.records[(BLOCK.split == TRAIN) & (BLOCK.records.client % 2 == silo)]
    return Withdraw(int(mine.client[0])) if kind is Withdraw else Erase(mine[:1])


def assert_close_models(one: Federation, other: Federation) -> None:
    for name, value in one.now.state.public.items():
        assert_close(other.now.state.public[name], value, rtol=1e-5, atol=1e-5)


def missed(fed: Federation, executor: FlowerExecutor, grid: InMemory) -> Federation:
    """Start the next block while one silo is missing."""
    block = next(executor.arrivals(SEED))
    grid.away = {FIRST + LATE}
    fed = fed.apply(block)
    executor.drop_earlier_blocks(fed)
    assert executor.waiting(fed) == (LATE,)
    return fed


@pytest.mark.parametrize("kind", [Withdraw, Erase])
@pytest.mark.parametrize("silo", [LATE, 1 - LATE])
@pytest.mark.parametrize("killed", [False, True])
def test_a_silo_that_missed_a_block_takes_part_in_the_retraining(
    kind: type[Withdraw | Erase], silo: int, killed: bool, tmp_path: Path
) -> None:
    """The silo comes back in the first round of the block, or after it.

    killed: the server resumes from its disk at the start of the block
    """
    fed, executor, grid = started(tmp_path)
    fed = missed(fed, executor, grid)
    if killed:
        save_remote(fed, tmp_path / "server")
        fed = load_remote(tmp_path / "server", executor)
    if silo == LATE:  # its client must have been in a round
        grid.away = set()
    fed = fed.run(2, watch=[executor.watch()])
    grid.away = set()
    executor.begin_request(fed)
    event = request_of(kind, silo)
    expected, fed = Retrain().unlearn(in_one_process(), event), Retrain().unlearn(fed, event)
    assert_close_models(expected, fed)
    fed = executor.settle(fed)
    assert executor.waiting(fed) == ()
    assert_close_models(expected.run(1), fed.run(1))
    for held in held_by(grid, silo):
        if isinstance(event, Erase):
            assert not bool(held.records.among(event.records).any())
        else:
            assert not bool((held.records.client == event.client).any())
        assert held.now == 1  # the earlier block is removed


def held_by(grid: InMemory, silo: int) -> list[Holdings]:
    """Return all holdings on a silo's disk."""
    store = grid.nodes[FIRST + silo].store
    found = [store.held(int(p.stem, 16)) for p in (store.folder / HELD).glob("*.safetensors")]
    assert found
    return found


def test_a_late_block_starts_with_the_model_at_the_end_of_the_block_before(tmp_path: Path) -> None:
    """One round without the silo and one with it, compared with the same rounds in process."""
    fed, executor, grid = started(tmp_path)
    fed = missed(fed, executor, grid).run(1, watch=[executor.watch()])
    grid.away = set()
    fed = fed.run(1)
    here = Federation.start(FIRST_BLOCK, METHOD, SEED).run(2).apply(BLOCK)
    now, clock = here.now, here.clock.at(here.now.state.round + 1)
    ids = METHOD.server_sample(now.state, here.world, clock)
    mail = METHOD.server_mail(now.state, here.world, ids, clock)
    some = ids[ids % 2 != LATE]
    sums, vault = InProcess().train(METHOD, now.state.public, mail, now.vault, some, None, clock)
    state = METHOD.server_step(now.state, sums, here.world, clock)
    here = here.with_(state=state, vault=vault).run(1)
    assert_close_models(here, fed)
    held, private = (int(m[LATE]) for m in (remote_holdings(fed.now.vault).moment, moments(fed)))
    there = grid.nodes[FIRST + LATE].store.vault(held, private)
    for name, value in here.now.vault.private.items():  # also the replay scores
        assert_close(there.private[name][LATE::2], value[LATE::2], rtol=1e-5, atol=1e-5)


def moments(fed: Federation) -> Tensor:
    """Return the private moments of the silos. [silos]"""
    return fed.now.vault.private[MOMENT]


def test_a_silo_whose_reply_is_lost_after_it_caught_up_is_asked_again(tmp_path: Path) -> None:
    """A block and a withdrawal at once: the state between them is not on disk any more."""
    fed, executor, grid = started(tmp_path)
    fed = missed(fed, executor, grid).apply(Withdraw(LATE))
    grid.away, grid.changed = set(), lambda node, reply: None if node == FIRST + LATE else reply
    lost = fed.run(1, watch=[executor.watch()])
    grid.changed = None
    assert executor.waiting(lost) == (LATE,)
    fed = lost.run(1)
    assert executor.waiting(fed) == ()
    assert executor.line.refused == {SILENT: 4}  # block, keep, withdrawal, round
    assert not bool(fed.world.available[LATE])
