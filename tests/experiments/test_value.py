"""The value of sharing: per-person quality, other worlds, intervals, and going on after a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rescind.cli import value as door
from rescind.core.clock import Clock
from rescind.core.records import Share, Unshare
from rescind.data.simulated_lending import ALL, GROUPS, NOTHING, PART, draw_groups, groups_of
from rescind.errors import ConfigError, DataError
from rescind.experiments import counterfactual
from rescind.experiments.counterfactual import each_person, otherwise, retrained
from rescind.experiments.learning_run import run_cell
from rescind.experiments.open_run import open_run
from rescind.experiments.recipe import (
    Cell,
    DataSettings,
    GuardSettings,
    RunSettings,
    SharingSettings,
)
from rescind.experiments.value import bootstrap, draw_people, facts_of, value_of_sharing
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.fedshare import FedShare
from rescind.storage.run_folder import read_facts

CELL = Cell(
    name="tiny",
    data=DataSettings(name="synthetic", users=45, items=40, interactions=700),
    sharing=SharingSettings(ratio=(1, 1, 1), part=0.5),
    method=FedShare(clients_per_round=15, refine_pairs=256, contrast_items=16, refine_rate=0.05),
    run=RunSettings(rounds=6, evaluate_every=2, k=(5, 20)),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_cell(CELL, folder)
    return folder


@pytest.fixture
def fresh(run, tmp_path) -> Path:
    """A copy of the run in which nothing about its value is known yet."""
    for path in (p for p in run.rglob("*") if p.is_file() and not p.name.startswith("value")):
        copy = tmp_path / path.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def test_each_persons_quality_is_that_of_a_ranking_of_them_alone(run):
    fed = open_run(run)
    found = each_person(fed, k=5)
    counted = 0
    for client in range(fed.world.sizes.clients):
        alone = fed.evaluate(k=5, clients=torch.tensor([client]))  # NaN without held-out items
        for metric, values in found.items():
            assert float(values[client]) == pytest.approx(alone[metric], abs=1e-12, nan_ok=True)
        counted += alone["HR@5"] == alone["HR@5"]
    assert counted > 30
    whole = fed.evaluate(k=5)
    for metric, values in found.items():
        assert float(values.nanmean()) == pytest.approx(whole[metric])


def test_groups_are_read_from_what_people_lend(run):
    fed = open_run(run)
    groups = groups_of(fed.now.vault.holdings)
    drawn = draw_groups(fed.world.sizes.clients, fed.clock, (1, 1, 1))
    assert groups.tolist() == drawn.tolist()
    for code, lent in ((ALL, 1.0), (NOTHING, 0.0)):
        for client in (groups == code).nonzero().squeeze(1).tolist():
            own = int(fed.now.vault.holdings.lot("own")[1][client])
            assert len(fed.lent(fed.labels.user_id(client))) == lent * own
    assert int((groups == PART).sum()) == 15


def test_a_run_writes_down_how_well_each_group_is_served(run):
    fed, facts = open_run(run), read_facts(run)
    groups = groups_of(fed.now.vault.holdings)
    assert set(facts["groups"]) == set(GROUPS)
    for name, code in GROUPS.items():
        for metric, values in each_person(fed, k=5).items():
            theirs = float(values[groups == code].nanmean())
            assert facts["groups"][name][metric] == pytest.approx(theirs, abs=1e-9)


def test_people_are_drawn_by_the_clock_and_fewer_are_among_more(run):
    fed = open_run(run)
    everybody = torch.ones(fed.world.sizes.clients, dtype=torch.bool)
    few, more = (draw_people(fed, n, everybody) for n in (3, 7))
    groups = groups_of(fed.now.vault.holdings)
    for name, code in (("all", ALL), ("part", PART), ("nothing", NOTHING)):
        assert few[name].tolist() == more[name].tolist()[:3]
        assert set(groups[more[name]].tolist()) == {code}
    other = draw_people(replace(fed, clock=Clock(9)), 7, everybody)
    assert other["all"].tolist() != more["all"].tolist()
    nobody = draw_people(fed, 3, torch.zeros_like(everybody))
    assert all(len(ids) == 0 for ids in nobody.values())


def test_the_other_world_differs_in_one_persons_loan_only(run):
    fed = open_run(run)
    groups = groups_of(fed.now.vault.holdings)
    for code in (ALL, PART, NOTHING):
        client = int((groups == code).nonzero()[0])
        event = otherwise(fed, client)
        assert isinstance(event, Share if code == NOTHING else Unshare)
        there = fed.apply(event)
        changed = groups_of(there.now.vault.holdings)
        assert int(changed[client]) == (ALL if code == NOTHING else NOTHING)
        rest = torch.arange(len(groups)) != client
        assert torch.equal(changed[rest], groups[rest])
        assert there.now.vault.holdings.lot("own")[1].equal(fed.now.vault.holdings.lot("own")[1])


def test_the_unchanged_world_trained_once_more_is_the_run_itself(run):
    fed = open_run(run)
    again = retrained(fed)
    assert torch.equal(again.now.state.public["item"], fed.now.state.public["item"])
    assert again.now.state.round == fed.now.state.round
    client = int((groups_of(fed.now.vault.holdings) == ALL).nonzero()[0])
    other = retrained(fed, client)
    assert not torch.equal(other.now.state.public["item"], fed.now.state.public["item"])


def test_a_gain_is_sharing_less_keeping_in_every_group(fresh):
    found = value_of_sharing(fresh, users=2, k=5)
    fed = open_run(fresh)
    assert found.reproduced
    assert [p.group for p in found.people] == ["all", "all", "part", "part", "nothing", "nothing"]
    base, groups = each_person(fed, 5), groups_of(fed.now.vault.holdings)
    for person in found.people:
        there = each_person(retrained(fed, person.client), 5)
        sign = 1 if person.group == "nothing" else -1
        for metric in found.metrics:
            change = float(there[metric][person.client] - base[metric][person.client])
            assert person.gain(metric) == pytest.approx(sign * change, abs=1e-12)
    for name, code in (("all", ALL), ("part", PART), ("nothing", NOTHING)):
        mine = [p.gain("NDCG@5") for p in found.people if p.group == name]
        assert found.gain[name]["NDCG@5"].mean == pytest.approx(sum(mine) / 2)
        theirs = base["NDCG@5"][groups == code]
        shown = found.quality[name]["NDCG@5"]
        assert shown.mean == pytest.approx(float(theirs.nanmean()))
        assert shown.people == int((~theirs.isnan()).sum())
        assert shown.low < shown.mean < shown.high


def test_people_who_decide_nothing_measure_the_noise(fresh):
    found = value_of_sharing(fresh, users=1, k=5)
    fed = open_run(fresh)
    base = each_person(fed, 5)["NDCG@5"]
    everybody = [p.client for p in found.people]
    by_world, every = [], []
    for person in found.people:
        there = each_person(retrained(fed, person.client), 5)["NDCG@5"]
        change = [float(there[p] - base[p]) for p in everybody if p != person.client]
        every += change if person.group == "nothing" else [-c for c in change]
        by_world.append((1 if person.group == "nothing" else -1) * sum(change) / len(change))
    assert found.others["NDCG@5"].people == 3
    assert found.others["NDCG@5"].mean == pytest.approx(sum(by_world) / 3, abs=1e-12)
    middle = sum(every) / 6
    spread = (sum((c - middle) ** 2 for c in every) / 6) ** 0.5
    assert spread > 0
    assert found.noise["NDCG@5"] == pytest.approx(spread, abs=1e-12)


def test_a_method_that_ignores_what_is_lent_gains_nobody_anything(tmp_path):
    method = FedAvg(clients_per_round=15)
    run_cell(replace(CELL, method=method), tmp_path)
    found = value_of_sharing(tmp_path, users=2)
    assert all(p.gain(m) == 0 for p in found.people for m in found.metrics)


def counted(monkeypatch) -> list[int]:
    """The worlds that are trained from now on."""
    trained, real = [], counterfactual.train_world

    def train(fed, client, people, k):
        trained.append(client)
        return real(fed, client, people, k)

    monkeypatch.setattr(counterfactual, "train_world", train)
    return trained


def test_finished_worlds_are_not_trained_again(fresh, monkeypatch):
    whole = facts_of(value_of_sharing(fresh, users=2))
    (fresh / "value.jsonl").unlink()
    trained, stop = counted(monkeypatch), 4

    def pull_the_plug(done, total):
        assert total == 7
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        value_of_sharing(fresh, users=2, watch=pull_the_plug)
    assert len(trained) == 4
    with open(fresh / "value.jsonl", "a") as torn:
        torn.write('{"world": 3, "values": {"1')
    trained.clear()
    again = facts_of(value_of_sharing(fresh, users=2))
    assert len(trained) == 4  # the three that were missing, and the unchanged world as a check
    assert {k: v for k, v in again.items() if k != "date"} == {
        k: v for k, v in whole.items() if k != "date"
    }
    trained.clear()
    value_of_sharing(fresh, users=2)
    value_of_sharing(fresh, users=1)
    assert trained == []
    value_of_sharing(fresh, users=3)
    assert len(trained) == 4


def test_worlds_of_another_training_are_not_mixed_in(fresh, monkeypatch):
    value_of_sharing(fresh, users=1)
    path = fresh / "value.jsonl"
    lines = [json.loads(x) for x in path.read_text().splitlines() if x]
    for line in lines:  # as if the code had been another one
        line["model"] = ["sha256:other", "sha256:other"]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    trained = counted(monkeypatch)
    value_of_sharing(fresh, users=2)
    assert len(trained) == 7
    run_cell(CELL.with_seed(5), fresh)
    trained.clear()
    value_of_sharing(fresh, users=1)
    assert len(trained) == 4


def test_two_processes_find_what_one_finds(fresh):
    one = value_of_sharing(fresh, users=1)
    (fresh / "value.jsonl").unlink()
    assert value_of_sharing(fresh, users=1, processes=2) == one


def test_a_bootstrap_interval_is_that_of_the_means_standard_error():
    values = torch.arange(400, dtype=torch.float64) % 20
    found = bootstrap(values, Clock(0), "test")
    error = float(values.std()) / 400**0.5
    assert (found.mean, found.people) == (9.5, 400)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert bootstrap(values, Clock(0), "test") == found
    assert bootstrap(values, Clock(1), "test") != found
    # The number of draws made at a time changes nothing.
    many = torch.cat([values] * 30)
    assert bootstrap(many, Clock(0), "test").high - 9.5 < error
    assert bootstrap(torch.zeros(0, dtype=torch.float64), Clock(0), "test").people == 0


def test_the_command_writes_a_table_a_file_and_two_pictures(fresh, capsys):
    door.command(fresh, users=2, processes=1, k=20)
    out = capsys.readouterr().out
    assert out.count("lends everything") == 2
    assert "others (noise)" in out
    facts = json.loads((fresh / "value.json").read_text())
    assert len(facts["people"]) == 6
    assert facts["gain"]["all"]["HR@20"]["people"] == 2
    assert (fresh / "value.svg").read_text().count("<svg") == 1
    assert (fresh / "value.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_a_run_names_those_inside_it(run):
    with pytest.raises(DataError, match="Finished runs inside it"):
        value_of_sharing(run.parent)


def test_a_run_with_noise_is_refused(tmp_path):
    guards = GuardSettings(clip=1.0, gaussian=0.5)
    run_cell(replace(CELL, method=FedAvg(clients_per_round=15), guards=guards), tmp_path)
    with pytest.raises(ConfigError, match="no seed repeats"):
        value_of_sharing(tmp_path)


@pytest.mark.parametrize("wrong", [{"users": 0}, {"processes": 0}])
def test_nobody_to_ask_is_refused(run, wrong):
    with pytest.raises(ConfigError, match="at least one"):
        value_of_sharing(run, **wrong)
