"""Peeling against histories that are known, and against sums from which nothing can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from rescind.cli import app
from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.data import Dataset
from rescind.data.sequences import next_item
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.experiments.peeling import LEAVERS, UNDEFENDED, grid, peeled_lines, peeled_run
from rescind.experiments.peeling_attack import SLACK, gram_from_weights, peel, peel_ordered
from rescind.methods.additive._ordered import Nearness, add_sequences
from rescind.methods.additive._pairs import weight_of
from rescind.methods.additive._release import factors, neighbours
from rescind.methods.additive._solve import weights_of
from rescind.methods.additive._solving import UNIT
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.seq_gram import SeqGram
from rescind.storage.federations import save_federation
from rescind.storage.run_folder import write_facts

RIDGE = 3.0


def sum_of(histories: list[set[int]], items: int) -> torch.Tensor:
    """The sum one person after another. [I, I]"""
    total = torch.zeros(items, items, dtype=torch.float64)
    for mine in histories:
        x = torch.zeros(items, dtype=torch.float64)
        x[sorted(mine)] = 1
        total += int(weight_of(torch.tensor(len(mine)))) * torch.outer(x, x)
    return total


def some_people(people: int = 40, items: int = 120) -> list[set[int]]:
    clock = Clock(3)
    out = []
    for person in range(people):
        order = torch.argsort(clock.bits("films", torch.tensor(person), torch.arange(items)))
        out.append(set(order[: 4 + person % 7].tolist()))
    return out


def peeled_slowly(gram: torch.Tensor) -> list[frozenset[int]]:
    """The obvious form: look at every row again after every person."""
    gram, found = gram.clone(), []
    while True:
        for row in gram:
            there = (row > 0).nonzero().squeeze(1)
            weight = weight_of(torch.tensor(len(there)))
            if len(there) and bool((row[there] == weight).all()):
                break
        else:
            return found
        gram[there[:, None], there] -= weight
        found.append(frozenset(there.tolist()))


def test_one_owner_after_another_by_hand():
    # Item 0 has one owner; without them item 1 has one, and then the last person is what is left.
    people = [{0, 1, 2}, {1, 2, 3}, {2, 3}]
    assert peel(sum_of(people, 5)).histories == tuple(frozenset(p) for p in people)


def test_the_fast_form_finds_what_the_slow_one_finds():
    people = some_people()
    gram = sum_of(people, 120)
    truth = {frozenset(p) for p in people}
    found = peel(gram)
    assert set(found.histories) == set(peeled_slowly(gram))
    assert found.right(truth) > 20
    assert set(found.histories) <= truth


def test_nothing_is_found_where_every_item_has_several_owners():
    people = [{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}]
    assert peel(sum_of(people, 4)).histories == ()
    assert peel(torch.zeros(3, 3)).histories == ()


def published(people: list[set[int]], items: int) -> torch.Tensor:
    ridged = sum_of(people, items) / UNIT + RIDGE * torch.eye(items, dtype=torch.float64)
    return weights_of(torch.tensor(np.linalg.inv(ridged.numpy())))


def test_the_sum_comes_back_from_published_weights():
    people = some_people()
    gram = sum_of(people, 120)
    found = gram_from_weights(published(people, 120), RIDGE)
    met = gram.diagonal() > 0
    assert_close(found[met][:, met], gram[met][:, met], atol=1.0, rtol=1e-3)
    truth = {frozenset(p) for p in people}
    assert peel(found, SLACK).right(truth) == peel(gram).right(truth) > 20


def test_cut_forms_tell_less():
    people = some_people()
    weights = published(people, 120)
    truth = {frozenset(p) for p in people}
    cut = {"dense": weights, "near": neighbours(weights, 4), "low": factors(weights, 6)}
    counts = {
        name: peel(gram_from_weights(seen, RIDGE), SLACK).right(truth) for name, seen in cut.items()
    }
    assert counts["dense"] > 20
    assert max(counts["near"], counts["low"]) < counts["dense"]


def small() -> Dataset:
    clock, rows = Clock(5), []
    for user in range(30):
        order = torch.argsort(clock.bits("films", torch.tensor(user), torch.arange(90)))
        rows += [(user, int(item)) for item in order[:10]]
    pairs = np.array(rows, dtype=np.int64)
    users, items = (
        np.array([f"{kind}-{n}" for n in range(m)]) for kind, m in (("p", 30), ("f", 90))
    )
    time = np.zeros(len(pairs), dtype=np.int64)
    return Dataset("tiny", pairs[:, 0], pairs[:, 1], None, time, users, items)


def test_long_histories_that_weigh_less_are_peeled_by_who_knows_the_setting():
    people = some_people()
    total = torch.zeros(120, 120, dtype=torch.float64)
    for mine in people:
        x = torch.zeros(120, dtype=torch.float64)
        x[sorted(mine)] = 1
        total += int(weight_of(torch.tensor(len(mine)), 2)) * torch.outer(x, x)
    truth = {frozenset(p) for p in people}
    assert peel(total, longest=2).right(truth) == peel(sum_of(people, 120)).right(truth) > 20
    assert peel(total).right(truth) < 5


@pytest.fixture(scope="module")
def lines() -> dict[tuple[str, str], dict[str, int]]:
    return {(line["dial"], line["view"]): line for line in peeled_lines(small())}


def test_the_control_finds_people_in_every_view(lines):
    views = [view for dial, view in lines if dial == UNDEFENDED]
    found = {view: lines[UNDEFENDED, view] for view in views}
    kept = found["the sum that the server keeps"]
    assert kept["people"] == 30
    assert kept["found"] > 10
    assert found["the published weights"]["found"] == kept["found"]
    assert found["what comes in from 10 people"]["found"] == 10
    for between in ("two sums", "two releases"):
        line = found[f"{between}, {LEAVERS} people left between"]
        assert line["found"] == line["people"] == LEAVERS
    assert all(line["found"] <= min(line["claimed"], line["people"]) for line in lines.values())


def test_each_setting_stops_what_it_is_made_for_and_nothing_else(lines):
    def of(start: str, view: str) -> int:
        ((_, line),) = [x for x in lines.items() if x[0][0].startswith(start) and x[0][1] == view]
        return line["found"]

    published, kept = "the published weights", "the sum that the server keeps"
    coming = "what comes in from 10 people"
    releases = f"two releases, {LEAVERS} people left between"
    whole = lines[UNDEFENDED, kept]["found"]
    for setting in ("min_count", "noise"):
        assert of(setting, published) == of(setting, releases) == 0
        assert of(setting, kept) >= whole - 5, "the server itself is stopped by nothing"
    assert of("servers", coming) == 0
    assert of("servers", kept) == whole, "an opened sum is a sum"
    # A schedule alone hides nobody: all who left since are read out of the difference.
    assert of("release_every", releases) == LEAVERS
    assert of("noise", coming) == 10


def markdown(lines: list) -> str:
    """The lines as a Markdown table."""
    names, rows = grid(lines)
    out = [f"| complete histories read out of | there | {' | '.join(names)} |"]
    out.append("|---|" + "---|" * (len(names) + 1))
    out += [f"| {view} | {people} | {' | '.join(cells)} |" for view, people, cells in rows]
    return "\n".join(out)


def saved(folder: Path, method: Method) -> Path:
    fed = Federation.start(small(), method, seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(1)
    save_federation(fed, folder / "model")
    write_facts(folder, {"data": {"name": "tiny"}, "seed": 0, "configuration": {}})
    return folder


def test_a_run_is_attacked_as_it_is_set(tmp_path, monkeypatch):
    monkeypatch.setattr("rescind.experiments.prepared_data.prepare", lambda settings: small())
    run = saved(tmp_path / "run", Gram(noise=1.0, longest_history=1))
    done = CliRunner().invoke(app, ["leak", str(run), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "[2] as it is set" in done.output
    facts = json.loads((tmp_path / "peeling.json").read_text("utf-8"))
    found = {(x["dial"], x["view"]): x["found"] for x in facts["lines"]}
    assert found[UNDEFENDED, "the published weights"] > 0
    assert found["as it is set", "the published weights"] == 0
    fed = Federation.start(small(), Gram(), seed=0).run(1)
    assert {line["dial"] for line in peeled_run(fed)} == {UNDEFENDED}
    missing = CliRunner().invoke(app, ["leak", str(tmp_path / "nowhere")])
    assert f"there is no folder {tmp_path / 'nowhere'}" in str(missing.exception)


@pytest.mark.slow
@pytest.mark.data
def test_most_histories_of_ml_100k_are_read_out_of_its_sum():
    from rescind.data import load

    found = {(x["dial"], x["view"]): x["found"] for x in peeled_lines(load("ml-100k"))}
    assert found[UNDEFENDED, "the sum that the server keeps"] >= 860
    assert found[UNDEFENDED, "the published weights"] >= 860


def test_the_page_shows_what_was_measured():
    root = Path(__file__).parents[2]
    facts = json.loads((root / "recipes" / "leak" / "peeling-ml-100k.json").read_text("utf-8"))
    page = root / "docs" / "results" / "additive-details.md"
    assert markdown(facts["lines"]) in page.read_text("utf-8")


def test_sequences_are_read_from_a_sum_of_ordered_pairs_in_their_order():
    near = Nearness((4.0, 20.0), 0.35)
    people = [(0, 3, 5, 1), (2, 3, 4), (5, 0, 2, 4, 1), (6, 3, 5)]
    rows = sorted((u, i, t) for u, mine in enumerate(people) for t, i in enumerate(mine))
    owner, item, time = (torch.tensor(c) for c in zip(*rows, strict=True))
    total = torch.zeros(7**2, 2, dtype=torch.int64)
    add_sequences(total, Lot(owner, item, 4, time), torch.ones(4).long(), near)
    # 6 has one owner; without them nothing has, so three people stay hidden.
    assert peel_ordered(total, near) == [(6, 3, 5)]
    alone = torch.zeros_like(total)
    add_sequences(alone, Lot(item[:4] * 0, item[:4], 1, time[:4]), torch.ones(1).long(), near)
    assert peel_ordered(alone, near) == [(0, 3, 5, 1)]


@pytest.mark.parametrize("named", [True, False])
def test_the_sums_of_sequences_are_attacked_by_the_command(named, tmp_path, monkeypatch):
    rows = small()
    data = next_item(replace(rows, time=np.arange(len(rows)) * 37 % 301 + 1))
    monkeypatch.setattr("rescind.experiments.prepared_data.prepare", lambda _: data)
    run = tmp_path / "run"
    if not named:
        fed = Federation.start(data, SeqGram.sequences(), seed=0).run(1)
        save_federation(fed, run / "model")
        write_facts(run, {"data": {"name": "tiny"}, "seed": 0, "configuration": {}})
    subject = ["--method", "seqgram", "--data", "tiny"] if named else [str(run)]
    done = CliRunner().invoke(app, ["leak", *subject, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "as a set, from Gram" in done.output
    lines = json.loads((tmp_path / "ordered-tiny.json").read_text("utf-8"))["lines"]
    alone = lines[0]
    assert alone["people"] == alone["as a set"] == alone["in order"] == 1, "the control"
    assert all(line["in order"] <= line["as a set"] <= line["people"] for line in lines)
    assert lines[-1]["people"] > lines[0]["people"]
