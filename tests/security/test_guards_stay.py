"""Erasing one person leaves everybody's guards on, and the accountant counts the retraining."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rescind as rs
from command_line import rescind
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.guards import Clip, Gaussian, Guard, Laplace
from rescind.core.records import Withdraw
from rescind.core.update import Sum, Update
from rescind.errors import ConfigError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.open_run import open_run
from rescind.experiments.recipe import Cell, DataSettings, GuardSettings, RunSettings
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy.gaussian import epsilon_of
from rescind.storage.federations import load_federation, save_federation
from worlds import tiny_holdings

NOISE = 7.5
SETTINGS = GuardSettings(clip=1.0, gaussian=NOISE)
GUARDS = (Clip(1.0), Gaussian(NOISE, 1.0))
CELL = Cell(
    "tiny",
    DataSettings(name="synthetic", users=30, items=40, interactions=500),
    None,
    FedAvg(model=MF(dim=4), clients_per_round=8),
    RunSettings(rounds=6, evaluate_every=2, checkpoint_every=1, restore=False),
    guards=SETTINGS,
)


def spread(fed: Federation) -> float:
    """The standard deviation of the item table: noise of 7.5 makes it large."""
    return float(fed.now.state.public["item"].std())


@pytest.fixture(scope="module")
def plain() -> float:
    """The spread without guards, the control."""
    return spread(Federation.start(tiny_holdings(), FedAvg(model=MF(dim=4))).run(6))


def test_forgetting_retrains_with_the_guards_and_states_the_new_epsilon(
    tmp_path: Path, plain: float
) -> None:
    before = run_cell(CELL, tmp_path / "run")
    old, first = before.facts["privacy"], before.fed.spent
    assert first is not None
    user = before.fed.labels.user_id(3)
    assert rescind("forget", str(tmp_path / "run"), "--user", user)[0] == 0
    done = open_run(tmp_path / "run", repeatable=False)
    assert spread(done) > 3 * plain < spread(before.fed)
    new = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]
    both = done.spent
    assert both is not None
    assert int(both.sum()) > 1.5 * int(first.sum()), "the retraining is counted"
    assert new["participations"] == int(both.max()) > old["participations"]
    assert new["epsilon"] == epsilon_of(NOISE, 1e-5, new["participations"]) > old["epsilon"]
    assert done.executor == InProcess(guards=GUARDS)


def test_a_saved_federation_carries_guards_and_ledger(tmp_path: Path) -> None:
    start = Federation.start(tiny_holdings(), FedAvg(), executor=InProcess(guards=GUARDS))
    fed = start.run(2)
    assert fed.spent is not None
    assert fed.spent.tolist() == [2, 2, 2, 2, 2, 0], "client 5 has nothing to train"
    for executor in (None, InProcess(), InProcess(guards=GUARDS)):
        back = load_federation(save_federation(fed, tmp_path), executor)
        assert back.executor == InProcess(guards=GUARDS)
        assert torch.equal(back.run(1).spent, fed.spent + fed.spent // 2)
    with pytest.raises(ConfigError, match="was trained with the guards"):
        load_federation(tmp_path, InProcess(guards=(Clip(2.0),)))


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_a_federation_states_what_a_run_of_its_settings_writes_down(
    tmp_path: Path, delta: float
) -> None:
    cell = replace(CELL, guards=replace(SETTINGS, delta=delta))
    written = run_cell(cell, tmp_path / "run").facts["privacy"]
    dataset = rs.load("synthetic", users=30, items=40, interactions=500)
    fed = rs.Federation.start(dataset, CELL.method, executor=rs.InProcess(guards=GUARDS))
    assert rs.guarantee(fed)["epsilon"] == 0, "nothing was shown yet"
    fed = fed.run(6)
    stated = rs.guarantee(fed, delta)
    assert stated == {n: v for n, v in written.items() if n not in ("budget", "stopped")}
    assert stated["epsilon"] == epsilon_of(NOISE, delta, stated["participations"]) > 0
    assert 2 <= stated["participations"] <= 6
    assert rs.guarantee(rs.load_federation(rs.save_federation(fed, tmp_path)), delta) == stated
    gone, _ = rs.forget(fed, rs.Withdraw("3"), audits="none")
    assert rs.guarantee(gone, delta)["epsilon"] > stated["epsilon"], "what was shown stays shown"


def test_a_federation_without_noise_guarantees_nothing_and_says_why() -> None:
    for guards in ((), (Clip(1.0),), (Laplace(0.1),)):
        start = Federation.start(tiny_holdings(), FedAvg(), executor=InProcess(guards=guards))
        stated = rs.guarantee(start.run(2))
        assert stated["epsilon"] is None
        assert stated["participations"] == (2 if guards else None), "counted under guards alone"
        assert stated["protects"].startswith("No guarantee")
    with pytest.raises(ConfigError, match="delta must lie between 0 and 1"):
        rs.guarantee(start, delta=2.0)


def test_sums_that_are_published_with_noise_state_their_own_guarantee(tmp_path: Path) -> None:
    noisy = replace(CELL, method=Gram(noise=4.0, longest_history=20), guards=None)
    done = run_cell(noisy, tmp_path / "run")
    stated, written = rs.guarantee(done.fed), done.facts["privacy"]
    assert stated["epsilon"] == written["epsilon"] == epsilon_of(4.0, Gram().delta) > 0
    assert stated["protects"] == written["protects"]


def test_rounds_that_ran_without_guards_are_not_called_private() -> None:
    fed = Federation.start(tiny_holdings(), FedAvg()).run(2)
    with pytest.raises(ConfigError, match="2 rounds of this federation: they ran without guards"):
        rs.guarantee(replace(fed, executor=InProcess(guards=GUARDS)))


def test_a_guard_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    class Mine:
        def each(self, update: Update, leaves: bool) -> Update:
            return update

        def total(self, total: Sum) -> Sum:
            return total

    guard: Guard = Mine()
    fed = Federation.start(tiny_holdings(), FedAvg(), executor=InProcess(guards=(guard,)))
    with pytest.raises(ConfigError, match="Mine cannot be saved"):
        save_federation(fed, tmp_path)


def test_models_that_audits_compare_with_are_guarded_too(tmp_path: Path, plain: float) -> None:
    method = FedAvg(model=MF(dim=4))
    fed = Federation.start(tiny_holdings(), method, executor=InProcess(guards=GUARDS)).run(6)
    # A worker of an audit loads the saved federation and retrains it with another seed.
    saved = load_federation(save_federation(fed, tmp_path))
    assert spread(saved.retrained(Withdraw(2), seed=9)) > 3 * plain
