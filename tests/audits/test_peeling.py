"""Peeling against histories that are known, and against sums from which nothing can be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from rescind.audits.peeling import SLACK, factors, gram_from_weights, neighbours, peel, releases
from rescind.cli import app
from rescind.clock import Clock
from rescind.data import Dataset
from rescind.leaks import peeled_lines
from rescind.models.gram_pairs import UNIT, weight_of
from rescind.models.gram_solve import weights_of

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
    counts = {
        name: peel(gram_from_weights(seen, RIDGE), SLACK).right(truth)
        for name, seen in releases(weights, 4, 6)
    }
    assert list(counts) == ["dense", "float16", "4 neighbours", "6 factors"]
    assert counts["dense"] > 20
    assert max(counts["4 neighbours"], counts["6 factors"]) < counts["dense"]


def test_neighbours_and_factors_are_what_they_say():
    weights = published(some_people(), 120)
    near = neighbours(weights, 4)
    assert int((near != 0).sum(0).max()) == 4
    column = weights[:, 7].abs().sort(descending=True).values
    assert_close(near[:, 7].abs().sort(descending=True).values[:4], column[:4])
    assert_close(factors(weights, 120), weights, atol=1e-5, rtol=1e-4)
    few = factors(weights, 6).double()
    assert not few.diagonal().any()


def small() -> Dataset:
    clock, rows = Clock(5), []
    for user in range(30):
        order = torch.argsort(clock.bits("films", torch.tensor(user), torch.arange(60)))
        rows += [(user, int(item)) for item in order[:10]]
    pairs = np.array(rows, dtype=np.int64)
    users, items = (
        np.array([f"{kind}-{n}" for n in range(m)]) for kind, m in (("p", 30), ("f", 60))
    )
    time = np.zeros(len(pairs), dtype=np.int64)
    return Dataset("tiny", pairs[:, 0], pairs[:, 1], None, time, users, items)


def test_lines_of_every_view_and_a_control_that_finds_people():
    lines = {line["view"]: line for line in peeled_lines(small())}
    assert lines["the exact sum"]["found"] > 0
    assert lines["the exact sum"]["people"] == 30
    assert lines["a sum over 10 people"]["found"] == 10
    assert lines["published weights, dense"]["found"] == lines["the exact sum"]["found"]
    assert lines["two sums, 5 people left between them"]["found"] == 5
    assert {"published weights, float16", "two releases, 5 people left between them"} <= set(lines)
    assert any("neighbours" in view for view in lines)
    assert any("factors" in view for view in lines)
    assert all(line["found"] <= min(line["claimed"], line["people"]) for line in lines.values())


def test_the_command_says_it(tmp_path, monkeypatch):
    monkeypatch.setattr("rescind.experiment.prepare", lambda settings: small())
    call = ["leak", "--method", "Gram", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert "the exact sum" in done.output
    assert (tmp_path / "peeling.json").is_file()


@pytest.mark.slow
@pytest.mark.data
def test_most_histories_of_ml_100k_are_read_out_of_its_sum():
    from rescind.data import load

    lines = {line["view"]: line for line in peeled_lines(load("ml-100k"))}
    assert lines["the exact sum"]["found"] >= 860
    assert lines["published weights, dense"]["found"] >= 860
