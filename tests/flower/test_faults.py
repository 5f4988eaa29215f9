"""Missing, late, stale or broken silos: the round continues with the others, and is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, InMemorySource, silos_of
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.gate import INFINITE, SHAPE
from rescind.core.records import Erase, Join, Records, Unshare, Withdraw
from rescind.core.run_state import EarlyStop, RoundResult
from rescind.errors import BoundaryError, ConsentError, DataError
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import remote_holdings
from rescind.flower.server.transport import LATE, REPLAYED, ROUND, SILENT, STALE, UNKNOWN
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD, MOMENT, PRIVATE
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.fedaccum import FedAccum
from rescind.models.mf import MF
from worlds import lendable, tiny_holdings

pytestmark = pytest.mark.flower

CLIENTS, ITEMS, SILOS, SEED = 12, 14, 3, 5
METHOD = FedAvg(model=MF(dim=4))


def start(folder: Path, **fields: object) -> tuple[Federation, FlowerExecutor, InMemory]:
    """Start a federation of twelve clients on three silos."""
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, folder, **fields)
    return Federation.start(executor.gather(SEED), METHOD, SEED, executor), executor, grid


def survivors(fed: Federation, gone: int, rounds: int = 1) -> Federation:
    """Run the same federation in process without the clients of one silo."""
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED)
    assert here.now.state.round == fed.now.state.round
    for _ in range(rounds):
        clock, now = here.clock.at(here.now.state.round + 1), here.now
        ids = METHOD.server_sample(now.state, here.world, clock)
        ids = ids[ids % SILOS != gone]
        public = now.state.public
        sums, vault = InProcess().train(METHOD, public, None, now.vault, ids, None, clock)
        state = METHOD.server_step(now.state, sums, here.world, clock)
        here = here.with_(state=state, vault=vault)
    return here


def run_rounds(fed: Federation, rounds: int = 1) -> tuple[Federation, dict[str, int]]:
    """Run some rounds. Return the federation and the refused counts of the last one."""
    last: list[RoundResult] = []
    fed = fed.run(rounds, watch=[last.append])
    return fed, dict(next(iter(last[-1].sums.values())).refused)


def assert_close_models(here: Federation, there: Federation) -> None:
    for name, value in here.now.state.public.items():
        assert_close(there.now.state.public[name], value, rtol=1e-5, atol=1e-5)


def test_a_silo_that_does_not_reply_is_not_in_the_sum(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    grid.away = {FIRST + 1}
    expected = survivors(fed, gone=1, rounds=2)
    fed, refused = run_rounds(fed, 2)
    assert_close_models(expected, fed)
    asked = METHOD.server_sample(fed.now.state, fed.world, fed.clock)
    assert refused == {SILENT: int((asked % SILOS == 1).sum())}
    assert executor.line.refused[SILENT] == 2


def test_a_node_that_left_the_grid_does_not_hold_up_the_round(tmp_path: Path) -> None:
    fed, _, grid = start(tmp_path, deadline=60.0)
    gone = grid.nodes.pop(FIRST + 1)
    expected = survivors(fed, gone=1)
    fed = fed.run(1)  # within the deadline: it is not waited for
    assert_close_models(expected, fed)
    grid.nodes[FIRST + 7] = gone  # it comes back as another node
    fed, refused = run_rounds(fed)
    assert refused == {}


def test_a_round_with_too_few_silos_is_abandoned(tmp_path: Path) -> None:
    fed, _, grid = start(tmp_path)
    grid.away = {FIRST, FIRST + 1}
    before = fed
    fed, refused = run_rounds(fed)
    assert refused[SILENT] > 0
    for name, value in before.now.state.public.items():
        assert torch.equal(fed.now.state.public[name], value)
    assert torch.equal(fed.now.vault.private[MOMENT], before.now.vault.private[MOMENT])


def test_a_late_reply_is_refused_and_the_silo_stays_where_it_was(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    grid.slow = {FIRST + 2}
    expected = survivors(fed, gone=2)
    fed, refused = run_rounds(fed)
    assert refused.keys() == {SILENT}
    grid.slow = set()
    grid.release()
    assert_close_models(expected, fed)
    after = fed.run(1)
    assert executor.line.refused[LATE] == 1
    alone, _, _ = start(tmp_path / "again")
    grid2 = alone.executor.line.grid  # type: ignore[attr-defined]
    grid2.away = {FIRST + 2}
    alone = alone.run(1)
    grid2.away = set()
    assert_close_models(alone.run(1), after)  # the late reply has no effect


def test_a_reply_that_comes_twice_counts_once(tmp_path: Path) -> None:
    once, _, _ = start(tmp_path / "once")
    fed, executor, grid = start(tmp_path / "twice")
    grid.twice = True
    fed = fed.run(2)
    for name, value in once.run(2).now.state.public.items():
        assert torch.equal(fed.now.state.public[name], value)
    assert executor.line.refused[REPLAYED] > 0


def fault_of(change: Callable[[Letter], Letter]) -> Callable[[int, Letter], Letter | None]:
    """Return a fault that changes the updates of silo 1."""

    def fault(number: int, reply: Letter) -> Letter | None:
        return change(reply) if number == FIRST + 1 and reply.facts["verb"] == "train" else reply

    return fault


def facts(**changed: object) -> Callable[[Letter], Letter]:
    return lambda reply: Letter({**reply.facts, **changed}, reply.tensors)


def tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Letter], Letter]:
    name = "sum0|totals|item"
    return lambda reply: Letter(reply.facts, {**reply.tensors, name: change(reply.tensors[name])})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (tensor(lambda value: value * torch.nan), INFINITE),
        (tensor(lambda value: value[:-1]), SHAPE),
        (tensor(lambda value: value * 1e9), "norm above 1e+06"),
        (facts(round=0), ROUND),
        (facts(of="another request"), REPLAYED),
        (facts(run="another run"), REPLAYED),
        (facts(epoch=-1), STALE),
        (facts(sums={"train": {}}), "cannot be read"),
        (lambda r: Letter(r.facts, {**r.tensors, "sum0|who": torch.tensor([0])}), SHAPE),
        (
            lambda r: Letter(r.facts, {**r.tensors, "sum0|who": r.tensors["sum0|who"] + 1}),
            "speaks for others",
        ),
    ],
)  # fmt: skip
def test_an_invalid_reply_is_refused_with_a_reason(
    change: Callable[[Letter], Letter], reason: str, tmp_path: Path
) -> None:
    fed, executor, grid = start(tmp_path)
    grid.changed = fault_of(change)
    expected = survivors(fed, gone=1)
    fed, refused = run_rounds(fed)
    assert refused.keys() == {reason}
    assert executor.line.refused[reason] == 1
    assert_close_models(expected, fed)


def test_a_second_node_with_the_same_silo_number_is_not_used(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    second = Node(Store(tmp_path / "x"), InMemorySource(tiny_holdings(CLIENTS, ITEMS)), 1, SILOS)
    grid.nodes[FIRST + 50] = second
    assert_close_models(
        Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(1), fed.run(1)
    )
    assert executor.line.nodes[1] == FIRST + 1
    assert executor.line.refused[UNKNOWN] == 1


def test_a_silo_that_was_killed_may_come_back_as_another_node(tmp_path: Path) -> None:
    """Flower still counts the old node as present. It is replaced when it does not reply."""
    fed, executor, grid = start(tmp_path)
    grid.nodes[FIRST + 50] = grid.nodes[FIRST + 1]
    grid.away = {FIRST + 1}
    fed, refused = run_rounds(fed)
    assert refused.keys() == {SILENT}
    fed, refused = run_rounds(fed)
    assert refused == {}
    assert executor.line.nodes[1] == FIRST + 50


def test_a_silo_that_missed_an_erasure_catches_up_first(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    fed = fed.run(1)
    event = Erase(lendable(tiny_holdings(CLIENTS, ITEMS), 1)[:1])  # client 1 is on silo 1
    grid.away = {FIRST + 1}
    after = fed.apply(event)
    assert executor.waiting(after) == (1,)
    grid.away, grid.said = set(), []
    trained = after.run(1)
    assert executor.waiting(trained) == ()
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(1).apply(event)
    assert_close_models(here.run(1), trained)
    assert torch.equal(trained.world.available, here.world.available)


def test_an_update_from_before_an_erasure_is_refused(tmp_path: Path) -> None:
    """A late update was computed in an older epoch, so it is never in a sum."""
    fed, executor, grid = start(tmp_path)
    grid.slow = {FIRST + 2}
    fed = fed.run(1)
    event = Erase(lendable(tiny_holdings(CLIENTS, ITEMS), 2)[:1])
    grid.slow = set()
    fed = fed.apply(event)
    assert remote_holdings(fed.now.vault).epoch == 1
    stale = grid.said[-2][1]
    grid.release()
    # Even if it is sent as the reply to this round's request:
    grid.changed = lambda number, reply: (
        Letter({**stale.facts, "verb": "train"}, stale.tensors)
        if number == FIRST + 2 and reply.facts["verb"] == "train" else reply
    )  # fmt: skip
    fed, refused = run_rounds(fed)
    assert refused.keys() == {STALE}
    assert executor.line.refused[LATE] == 1


def test_a_model_from_before_an_erasure_is_refused(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    before = fed.run(1)
    event = Erase(lendable(tiny_holdings(CLIENTS, ITEMS), 0)[:1])
    after = executor.settle(before.apply(event))
    after.run(1)
    with pytest.raises(ConsentError, match="epoch"):
        before.evaluate("test")


def test_settle_removes_erased_records_from_the_disk(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    fed = fed.run(2)
    erased = lendable(tiny_holdings(CLIENTS, ITEMS), 4)[:1]  # silo 1
    after = executor.settle(fed.retrained(Erase(erased)))
    store = Store(tmp_path / "silo-1")
    kept = [int(path.stem, 16) for path in (store.folder / HELD).glob("*.safetensors")]
    assert kept
    for moment in kept:
        assert not bool(erased.among(store.held(moment).records).any())
    assert len(list((store.folder / PRIVATE).glob("*.safetensors"))) <= 2
    after.run(1)


def test_a_request_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    with pytest.raises(ConsentError, match="does not share"):
        fed.apply(Unshare(lendable(tiny_holdings(CLIENTS, ITEMS), 3)[:1]))
    with pytest.raises(ConsentError, match="not a member"):
        fed.apply(Withdraw(3)).apply(Withdraw(3))
    assert executor.waiting(fed) == ()


def test_a_client_may_leave_and_join_again(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path)
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED)
    for event in (Withdraw(3), Join(3), Join(CLIENTS)):
        fed, here = fed.apply(event), here.apply(event)
        assert torch.equal(fed.world.members, here.world.members)
        assert torch.equal(fed.world.available, here.world.available)
    assert_close_models(here.run(1), fed.run(1))


def test_the_best_round_is_restored_on_the_silos_too(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    rule = EarlyStop(every=1, patience=2)
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(6, until=rule)
    fed = fed.run(6, until=rule, watch=[executor.watch()])
    assert fed.now.state.round == here.now.state.round
    assert fed.evaluate("test") == pytest.approx(here.evaluate("test"))
    kept = len(list((tmp_path / "silo-0" / PRIVATE).glob("*.safetensors")))
    assert kept <= 6  # fewer than one per round and measurement


def test_single_updates_need_the_consent_of_the_silo(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    fed = Federation.start(fed.now.vault.holdings, FedAccum(model=MF(dim=4)), SEED, executor)
    with pytest.raises(DataError, match="--single-updates"):
        fed.run(1)
    assert executor.line.refused["node failed"] == SILOS


@pytest.mark.parametrize("allowed", [False, True])
def test_a_single_client_of_a_larger_silo_is_not_trained(allowed: bool, tmp_path: Path) -> None:
    fed, _, grid = start(tmp_path, single_updates=allowed)
    one = replace(METHOD, clients_per_round=1)
    if allowed:
        fed.run(1, method=one)
    else:
        with pytest.raises(DataError, match=r"1 of its 4 clients.*--single-updates"):
            fed.run(1, method=one)
    sent = [reply for _, reply in grid.said if reply.facts["verb"] == "train"]
    assert [bool(reply.tensors) for reply in sent] == [allowed]


def test_a_silo_with_one_client_trains(tmp_path: Path) -> None:
    executor, _ = silos_of(tiny_holdings(CLIENTS, ITEMS), CLIENTS, tmp_path)
    fed = Federation.start(executor.gather(SEED), METHOD, SEED, executor).run(1)
    assert_close_models(Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(1), fed)


def test_questions_need_the_consent_of_the_silo(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path)
    with pytest.raises(ConsentError, match="does not answer"):
        fed.query(Records.of([0], [0]))


def test_holdings_on_silos_are_not_available_on_the_server(tmp_path: Path) -> None:
    fed, _, _ = start(tmp_path)
    with pytest.raises(BoundaryError, match="is on their silos"):
        fed.now.vault.holdings.cohort(torch.tensor([0]))


def test_a_silo_resumes_after_a_restart(tmp_path: Path) -> None:
    """Its state is on disk, so a new process with the same folder continues from there."""
    fed, _, grid = start(tmp_path)
    here = Federation.start(tiny_holdings(CLIENTS, ITEMS), METHOD, SEED).run(4)
    fed = fed.run(2)
    source = InMemorySource(tiny_holdings(CLIENTS, ITEMS))
    for silo in range(SILOS):
        grid.nodes[FIRST + silo] = Node(Store(tmp_path / f"silo-{silo}"), source, silo, SILOS)
    assert_close_models(here, fed.run(2))


def test_silos_can_be_gathered_for_another_run(tmp_path: Path) -> None:
    fed, executor, _ = start(tmp_path)
    again = Federation.start(executor.gather(SEED, wait=0.0), METHOD, SEED, executor)
    assert_close_models(fed.run(1), again.run(1))


def test_waiting_for_silos_names_the_missing_ones(tmp_path: Path) -> None:
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, tmp_path)
    del grid.nodes[FIRST + 2]
    with pytest.raises(DataError, match=r"2 of 3 silos joined.*\[2\]"):
        executor.gather(SEED, wait=0.0)
