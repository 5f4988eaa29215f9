"""What every method promises. New files under `methods/` are collected by themselves."""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tomli_w
import torch
from torch import Tensor
from torch.testing import assert_close

from graphs import tiny_subgraphs
from rescind import methods, models
from rescind.core import params
from rescind.core.cohort import Cohort
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.records import Erase, Records, Unshare, Withdraw
from rescind.core.run_state import EarlyStop
from rescind.core.settings import from_table, to_table
from rescind.core.update import Rows, Update
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import BoundaryError
from rescind.forgetting.forget import forget
from rescind.forgetting.purge import traces
from rescind.privacy import keys
from rescind.receipts.receipt import canonical
from rescind.receipts.verify import verify
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.kinds import MODELS
from worlds import next_block, tiny_holdings

# A small world for each task; a method that names another task needs one here.
WORLDS = {
    "ranking": lambda: tiny_holdings(clients=9, items=14),
    "nodes": lambda: tiny_subgraphs(clients=9),
}
MEASURES = {"ranking": "NDCG@20", "nodes": "accuracy"}
ROUNDS = 3

CASES = [
    pytest.param(cls, task, id=f"{name}-{task}")
    for name, cls in methods.all_methods().items()
    for task in cls.tasks
]
every_method = pytest.mark.parametrize(("cls", "task"), CASES)


def begin(
    cls: type[Method], task: str, seed: int = 0, executor: InProcess | None = None
) -> Federation:
    """A small federation in which some people lend."""
    method = replace(cls(), clients_per_round=5)
    fed = Federation.start(WORLDS[task](), method, seed, executor)
    groups = draw_groups(fed.world.sizes.clients, fed.clock, (1, 1, 1))
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


@cache
def begun(cls: type[Method], task: str) -> Federation:
    """The same, once for all tests of a method: a federation is a value."""
    return begin(cls, task)


@cache
def learnt(cls: type[Method], task: str) -> Federation:
    """The same after its rounds."""
    return begun(cls, task).run(ROUNDS)


def stopper(fed: Federation, task: str) -> EarlyStop:
    """Stop when a measure has not grown for two rounds."""
    return EarlyStop(metric=fed.method.metric("valid"), value=MEASURES[task], every=1, patience=2)


@cache
def uninterrupted(cls: type[Method], task: str) -> Federation:
    """Five rounds at most, in one go."""
    fed = begun(cls, task)
    return fed.run(5, until=stopper(fed, task))


def digests(fed: Federation) -> tuple[str, str, str]:
    """Everything a run changes, on both sides."""
    state, vault = fed.now.state, fed.now.vault
    return params.digest(state.public), params.digest(state.own), params.digest(vault.private)


def trained(fed: Federation) -> tuple[Update, Cohort]:
    """What all available clients would send in the next round."""
    ids = fed.world.available.nonzero().squeeze(1)
    vault, clock = fed.now.vault, fed.clock.at(fed.now.state.round + 1)
    mail = fed.method.server_mail(fed.now.state, fed.world, ids, clock)
    cohort = InProcess().cohort(fed.method, vault, ids, mail=mail)
    update, _ = fed.method.client_train(fed.now.state.public, vault.read(ids), cohort, clock)
    return update, cohort


def doubled(fed: Federation) -> Federation:
    """The same federation in float64, where rounding cannot hide a difference."""

    def wide(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: v.double() if v.is_floating_point() else v for n, v in values.items()}

    state = replace(fed.now.state, public=wide(fed.now.state.public))
    return fed.with_(state=state, vault=replace(fed.now.vault, private=wide(fed.now.vault.private)))


def part_of(update: Update, place: int) -> dict[str, Tensor]:
    """One client's part of an update."""
    out = {}
    for name, entry in update.entries.items():
        if isinstance(entry, Rows):
            mine = entry.owner == place
            out[f"{name} rows"], out[name] = entry.index[mine], entry.value[mine]
        else:
            out[name] = entry[place]
    return out


@every_method
def test_0_the_sum_is_the_fold_of_single_updates(cls, task):
    fed = doubled(begun(cls, task).run(1))
    update, cohort = trained(fed)
    clock = fed.clock.at(fed.now.state.round + 1)
    private = fed.now.vault.read(cohort.ids)
    fused, _ = fed.method.client_sum(fed.now.state.public, private, cohort, clock)
    folded = update.fold(cohort.weight)
    assert fused.totals.keys() == folded.totals.keys()
    for name, total in folded.totals.items():
        assert_close(fused.totals[name], total, atol=1e-10, rtol=1e-10)
    for name, touched in folded.touched.items():
        assert_close(fused.touched[name], touched)
    assert (fused.weight, fused.clients) == pytest.approx((folded.weight, folded.clients))
    assert fused.up == folded.up


@every_method
def test_1_together_is_in_chunks_is_one_by_one(cls, task):
    results = []
    chunks, single = InProcess(chunk=2, score_cells=30), OneByOne()
    others = (begin(cls, task, executor=executor).run(ROUNDS) for executor in (chunks, single))
    for fed in (learnt(cls, task), *others):
        results.append((fed.now.state.public, fed.now.vault.private, fed.evaluate(k=5)))
    for public, private, measured in results[1:]:
        for name, value in results[0][0].items():
            assert_close(public[name], value, atol=1e-5, rtol=1e-4)
        for name, value in results[0][1].items():
            assert_close(private[name], value, atol=1e-5, rtol=1e-4)
        assert measured == pytest.approx(results[0][2], abs=1e-6)


@every_method
def test_2_changing_one_clients_data_leaves_other_updates_untouched(cls, task):
    fed = begun(cls, task)
    before, cohort = trained(fed)
    holdings = fed.now.vault.holdings
    # Two of somebody's own records go; several of theirs stay, so that they still take part.
    own = holdings.records[(holdings.split == 0) & ~holdings.lent]
    changing = int(torch.mode(own.client).values)
    theirs = own[own.client == changing]
    gone = Records.of(theirs.client[:2], theirs.item[:2])
    assert len(gone) == 2
    after, other = trained(fed.apply(Erase(gone)))
    places = {int(i): p for p, i in enumerate(other.ids.tolist())}
    changed = []
    for place, client in enumerate(cohort.ids.tolist()):
        then, now = part_of(before, place), part_of(after, places[client])
        same = all(torch.equal(value, now[name]) for name, value in then.items())
        changed += [] if same else [client]
    silent = cls.__name__ in ("Central", "LocalModels")  # devices send nothing that could change
    assert changed == ([] if silent else [changing])


@every_method
def test_3_no_server_function_asks_for_client_data(cls, task):
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if name.startswith("server_"):
            asked = set(inspect.signature(function).parameters)
            assert not asked & {"private", "cohort", "vault", "holdings"}, name


@every_method
def test_3_server_code_runs_with_the_holdings_removed(cls, task, monkeypatch):
    fed = begin(cls, task)
    method, clock = fed.method, fed.clock.at(1)
    ids = method.server_sample(fed.now.state, fed.world, clock)
    public = fed.now.state.public
    sums, _ = fed.executor.train(method, public, None, fed.now.vault, ids, None, clock)
    sizes = fed.world.sizes
    arrived = fed.apply(next_block(clients=sizes.clients + 1, items=sizes.items + 2)).world

    def closed(*_: object, **__: object) -> None:
        raise BoundaryError("server code reached for client data")

    for verb in ("lot", "cohort", "of_clients", "apply", "digest"):
        monkeypatch.setattr(Holdings, verb, closed)
    method.server_init(fed.world, clock)
    method.server_sample(fed.now.state, fed.world, clock)
    method.server_mail(fed.now.state, fed.world, ids, clock)
    state = method.server_step(fed.now.state, sums, fed.world, clock)
    assert state.round == 1
    grown = method.server_turn(state, arrived, clock)
    for name in method.model.tables:
        assert len(grown.public[name]) == sizes.items + 2


@every_method
def test_4_sums_add_in_any_order_and_survive_bytes(cls, task):
    fed = begun(cls, task)
    update, cohort = trained(fed)
    each = [
        update.only(torch.arange(len(cohort)) == place).fold(
            torch.where(torch.arange(len(cohort)) == place, cohort.weight, 0.0)
        )
        for place in range(3)
    ]
    left, right = (each[0] + each[1]) + each[2], each[0] + (each[2] + each[1])
    for name, total in left.totals.items():
        assert_close(right.totals[name], total)
    assert (left.weight, left.clients) == pytest.approx((right.weight, right.clients))


@every_method
def test_5_the_same_seed_gives_the_same_bits_and_another_seed_another_run(cls, task):
    one, two = (begin(cls, task, seed=3).run(ROUNDS) for _ in range(2))
    assert digests(one) == digests(two)
    fresh = Federation.start(WORLDS[task](), cls(), 3).run(ROUNDS)
    other = Federation.start(WORLDS[task](), cls(), 4).run(ROUNDS)
    same = params.digest(fresh.now.state.public) == params.digest(other.now.state.public)
    assert same == cls.seedless


@every_method
def test_6_zero_rounds_change_nothing(cls, task):
    fed = begun(cls, task)
    assert digests(fed.run(0)) == digests(fed)
    assert digests(fed.run(1)) != digests(fed)


@every_method
def test_7_configuration_survives_toml(cls, task):
    method = replace(cls(), clients_per_round=5)
    text = tomli_w.dumps(to_table(method))
    assert from_table(cls, tomllib.loads(text), {"model": MODELS}) == method


@every_method
def test_7_a_saved_federation_comes_back_bit_for_bit(cls, task, tmp_path: Path):
    fed = learnt(cls, task)
    back = load_federation(save_federation(fed, tmp_path / "model"))
    assert digests(back) == digests(fed)
    assert back.world.digest() == fed.world.digest()
    assert back.evaluate(k=5) == fed.evaluate(k=5)
    assert digests(back.run(1)) == digests(fed.run(1))


@every_method
@pytest.mark.parametrize("kind", ["unshare", "erase", "withdraw"])
def test_8_after_forgetting_nothing_is_left_and_the_receipt_verifies(cls, task, kind):
    fed = learnt(cls, task)
    if not len(fed.world.shared):
        pytest.skip("nobody can lend in this world")
    lent = fed.world.shared
    mine = lent[lent.client == lent.client[0]]
    leaves = Withdraw(int(mine.client[0]))
    event = {"unshare": Unshare(mine), "erase": Erase(mine), "withdraw": leaves}[kind]
    after, evidence = forget(fed, event, audits="none")
    assert not bool(after.world.shared.among(mine).any())
    held = after.now.vault.holdings.records
    assert bool(held.among(mine).any()) == (kind == "unshare")
    assert traces(after, fed.request(event), fed, made=False) == {}
    pinned = {keys.own_public_key() or "": "mine"}
    assert verify(canonical(evidence.receipt), pinned, request=(event, evidence.key)).valid


@every_method
def test_9_a_method_given_the_wrong_task_says_so_by_name(cls, task):
    wrong = "nodes" if task == "ranking" else "ranking"
    with pytest.raises(BoundaryError, match=cls.__name__):
        Federation.start(replace(WORLDS[task](), task=wrong), cls())


@every_method
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_10_resume_is_uninterrupted_bit_for_bit(cls, task, stop, tmp_path: Path):
    fed, whole = begin(cls, task), uninterrupted(cls, task)
    until = stopper(fed, task)
    keep = Checkpoints(tmp_path, every=1, key="same run")
    fed.run(stop, until=until, watch=[keep])
    again = begin(cls, task)
    found = resume(tmp_path, "same run", again, until)
    assert found is not None
    rest = replace(again, now=found.now).run(5 - found.now.state.round, until=found.until)
    assert digests(rest) == digests(whole)
    assert rest.now.state.round == whole.now.state.round


@every_method
@pytest.mark.parametrize("share", [(1, 0, 0), (0, 0, 1)], ids=["nobody lends", "all lend all"])
def test_11_numbers_stay_finite_whoever_lends_and_newcomers_find_a_place(cls, task, share):
    fed = Federation.start(WORLDS[task](), replace(cls(), clients_per_round=5))
    groups = draw_groups(fed.world.sizes.clients, fed.clock, share)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(2)
    sizes = fed.world.sizes
    if task == "ranking":
        fed = fed.apply(next_block(clients=sizes.clients + 2, items=sizes.items + 2)).run(2)
    for values in (fed.now.state.public, fed.now.state.own, fed.now.vault.private):
        assert all(bool(torch.isfinite(value).all()) for value in values.values())
    assert all(math.isfinite(value) for value in fed.evaluate(k=5).values())


def test_methods_and_models_are_found_by_themselves():
    assert {"FedAvg", "Popularity"} <= methods.all_methods().keys()
    assert {"MF", "LightGCN"} <= models.all_models().keys()
    assert "Method" not in methods.all_methods()
