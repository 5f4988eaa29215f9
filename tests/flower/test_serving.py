"""Run a recipe over silos: train, kill and resume the server, then forget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flwr.app import Message

from flower import served
from flower.deployments import DATA
from flower.grids import FIRST, InMemory, silos_of
from flower.served import results
from flower.silo_shop import asks
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records, Withdraw
from rescind.errors import ConfigError
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained
from rescind.experiments.unlearning_run import events
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import learner_cell, serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.recommend import recommend
from rescind.flower.silo.storage import Store
from rescind.flower.wire.steps import HELD
from rescind.forgetting.purge import purge
from rescind.methods.continual.finetune import FineTune
from rescind.models.mf import MF
from rescind.requests.words import Words
from worlds import lendable, tiny_holdings

pytestmark = pytest.mark.flower

RECIPE = (
    DATA
    + """
[sharing]
ratio = [1, 1, 1]

[method]
name = "FedShare"

[run]
rounds = 5
evaluate_every = 5
checkpoint_every = 1
"""
)


GRAPH = (
    served.GRAPH
    + """
[forget]
name = "own"
event = "withdraw"
client = 3
"""
)


class KillingGrid(InMemory):
    """A grid that kills the server after one silo has got the request of a round."""

    killed_in: int | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        round_ = int(messages[0].metadata.group_id) if messages else 0
        if messages and messages[0].metadata.message_type == "train" and round_ == self.killed_in:
            super().push_messages(messages[:1])  # one silo has trained already
            raise KeyboardInterrupt
        return super().push_messages(messages)


def asked_of(folder: Path, **fields: Any) -> RunRequest:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)
    given = {"deadline": 0.0, "wait": 0.0, **fields}
    return RunRequest(str(folder / "recipe.toml"), 2, str(folder / "out"), **given)


def silos(asked: RunRequest, folder: Path, **fields: bool) -> KillingGrid:
    source = RecipeData(asked.recipe)
    return KillingGrid(
        {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, 2, **fields) for i in range(2)}
    )


def test_a_recipe_over_silos_gives_the_result_of_one_process(tmp_path: Path) -> None:
    asked = asked_of(tmp_path)
    serve(silos(asked, tmp_path), asked)
    facts, there = results(asked)
    _, cell = one_cell(asked.recipe, None)
    here = start(cell, obtained(cell)).run(cell.run.rounds)
    for name, value in here.now.state.public.items():
        assert_close(there[name], value, rtol=1e-5, atol=1e-5)
    assert facts["metrics"]["test"] == pytest.approx(here.evaluate("test", cell.run.k), abs=1e-5)
    assert facts["shared"] == len(here.world.shared)
    assert facts["silos"]["refused"] == {}
    user = int(here.world.available.nonzero()[0])
    best = [item for item, _ in recommend(tmp_path / f"silo-{user % 2}", user, 5)]
    labels = [here.labels.item(r.item, here.world.sizes.items) for r in here.recommend(user, 5)]
    assert best == labels


def test_a_server_that_was_killed_in_a_round_resumes_and_counts_no_reply_twice(
    tmp_path: Path,
) -> None:
    whole = asked_of(tmp_path / "whole")
    serve(silos(whole, tmp_path / "whole"), whole)
    asked = asked_of(tmp_path / "killed")
    grid = silos(asked, tmp_path / "killed")
    grid.killed_in = 4
    with pytest.raises(KeyboardInterrupt):
        serve(grid, asked)
    resumed = asked_of(tmp_path / "killed", resume=True)
    serve(silos(resumed, tmp_path / "killed"), resumed)
    (one, expected), (other, found) = results(whole), results(resumed)
    assert other["client_rounds"] == one["client_rounds"]
    for name, value in expected.items():
        assert torch.equal(found[name], value)


def test_a_recipe_with_masked_sums_gives_the_result_of_one_process(tmp_path: Path) -> None:
    asked = replace(asked_of(tmp_path, masked=64.0), silos=3)
    source = RecipeData(asked.recipe)
    nodes = {
        FIRST + i: Node(Store(tmp_path / f"silo-{i}"), source, i, 3, secure=True) for i in range(3)
    }
    serve(InMemory(nodes), asked)
    facts, there = results(asked)
    _, cell = one_cell(asked.recipe, None)
    here = start(cell, obtained(cell)).run(cell.run.rounds)
    for name, value in here.now.state.public.items():
        assert_close(there[name], value, rtol=1e-4, atol=1e-4)  # 3 silos in steps of 64 / 2**21
    assert facts["silos"]["masked"] == 64.0
    assert facts["silos"]["refused"] == {}


def test_a_run_request_is_the_same_after_json() -> None:
    asked = RunRequest(
        "r.toml",
        3,
        "out",
        changes=("a=1",),
        requests=(Words("erase", {"17": ("3", "8")}, datetime.now(UTC), case="12"),),
        masked=8.0,
    )
    assert RunRequest.from_json(asked.to_json()) == asked


def test_clients_take_back_and_leave_after_training(tmp_path: Path) -> None:
    asked = asked_of(tmp_path)
    lender, leaver = served.lenders(Path(asked.recipe))
    assert lender != leaver
    asked = asked_of(
        tmp_path,
        requests=asks(unshare=[str(lender)], leave=[str(leaver)]),
        unlearner="FedShareUnlearn",
    )
    serve(silos(asked, tmp_path), asked)
    facts, _ = results(asked)
    assert [one["event"] for one in facts["forgot"]] == ["Unshare", "Withdraw"]
    assert [one["traces"] for one in facts["forgot"]] == [{}, {}]
    assert facts["silos"]["waiting"] == []
    store = Store(tmp_path / f"silo-{leaver % 2}")
    kept = list((store.folder / HELD).glob("*.safetensors"))
    assert kept
    for path in kept:
        assert not bool((store.held(int(path.stem, 16)).records.client == leaver).any())


UNLEARNT = [
    pytest.param("FedShare", '{ name = "FedShareUnlearn", learner = { snapshots = 2 } }', 1e-5),
    pytest.param("Gram", '{ name = "own" }', None),
]


def with_request(folder: Path, method: str, forget: str, event: str) -> Path:
    """Write a recipe with one cell, which trains and then forgets a part of the loans."""
    recipe = RECIPE.replace('name = "FedShare"', f'name = "{method}"')
    if method == "Gram":
        recipe = recipe.replace("rounds = 5", "rounds = 1").replace("every = 5", "every = 1")
    recipe += f'\n[forget]\nevent = "{event}"\ndraw = 0.4\n\n[axes]\nforget = [{forget}]\n'
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "request.toml"
    path.write_text(recipe)
    return path


@pytest.mark.parametrize("event", ["erase", "unshare"])
@pytest.mark.parametrize(("method", "forget", "close"), UNLEARNT)
def test_the_request_of_a_recipe_is_answered_as_in_one_process(
    method: str, forget: str, close: float | None, event: str, tmp_path: Path
) -> None:
    path = with_request(tmp_path, method, forget, event)
    asked = RunRequest(str(path), 2, str(tmp_path / "out"), deadline=0.0, wait=0.0)
    alone = method == "Gram"  # it subtracts one person at a time
    serve(silos(asked, tmp_path, single_updates=alone), asked)
    facts, there = results(asked)
    _, cell = one_cell(str(path), None)
    assert cell.forget is not None
    learner = learner_cell(cell)
    fed = start(learner, obtained(cell)).run(cell.run.rounds)
    (request,) = events(cell, fed)
    unlearner = cell.forget.unlearner or fed.method
    after = purge(fed, unlearner.unlearn(fed, request), fed.request(request), unlearner.exact)
    for name, value in after.now.state.public.items():
        if close is None or not value.is_floating_point():
            assert torch.equal(there[name], value), name
        else:
            assert_close(there[name], value, rtol=close, atol=close)
    (forgot,) = facts["forgot"]
    assert forgot["event"].lower() == event
    assert (forgot["traces"], facts["silos"]["waiting"]) == ({}, [])
    assert facts["metrics"]["test"] == pytest.approx(after.evaluate("test", cell.run.k), abs=1e-5)
    assert facts["round"] == after.now.state.round


def test_private_values_are_reset_after_an_unlearner_that_is_not_exact(tmp_path: Path) -> None:
    """Also on a silo that was missing at the erasure: it applies both events when it is back."""
    holdings = tiny_holdings(9, 14)
    executor, grid = silos_of(holdings, 2, tmp_path, questions=True)
    method = FineTune(model=MF(dim=4, spread=0.3), rate=0.05)
    fed = Federation.start(executor.gather(3), method, 3, executor).run(2)
    here = Federation.start(holdings, method, 3).run(2)
    event = Erase(lendable(holdings, 1)[:1])
    grid.away = {FIRST + 1}
    after = purge(fed, fed.apply(event), fed.request(event), False)
    assert executor.waiting(after) == (1,)
    grid.away = set()
    clean = purge(here, here.apply(event), here.request(event), False)
    pairs = Records.of([1] * 14 + [3] * 14, [*range(14), *range(14)])
    assert_close(after.query(pairs), clean.query(pairs), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(after.query(pairs)[:14], fed.query(pairs)[:14])
    assert torch.equal(after.query(pairs)[14:], fed.query(pairs)[14:])


@pytest.mark.data
def test_a_client_of_a_graph_leaves(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(GRAPH)
    asked = RunRequest(str(path), 2, str(tmp_path / "out"), deadline=0.0, wait=0.0)
    serve(silos(asked, tmp_path, single_updates=True), asked)  # the one who leaves has its own sum
    facts, there = results(asked)
    (forgot,) = facts["forgot"]
    assert (forgot["event"], forgot["by"]) == ("Withdraw", "FedGCV")
    _, cell = one_cell(str(path), None)
    fed = start(learner_cell(cell), obtained(cell)).run(cell.run.rounds)
    after = purge(
        fed, fed.method.unlearn(fed, Withdraw(3)), fed.request(Withdraw(3)), fed.method.exact
    )
    for name, value in after.now.state.public.items():
        assert_close(there[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("forget", "says"),
    [('event = "erase"\ndraw = 0.3\nname = "no-op"', "control"),
     ('event = "withdraw"\nclient = [2, 3]\nname = "own"', "Name one")],
)  # fmt: skip
def test_audit_controls_and_several_leavers_are_refused(
    forget: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(f"{RECIPE}\n[forget]\n{forget}\n")
    with pytest.raises(ConfigError, match=says):
        one_cell(str(tmp_path / "recipe.toml"), None)
