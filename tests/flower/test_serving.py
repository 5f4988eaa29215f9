"""A recipe over silos: run, killed and gone on with, and then asked to forget."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory
from rescind import params
from rescind.errors import ConfigError
from rescind.experiment import obtained, start
from rescind.flower.asked import Serving
from rescind.flower.local import recommend
from rescind.flower.node import Node
from rescind.flower.serving import serve
from rescind.flower.sources import RecipeData, one_cell
from rescind.flower.store import HELD, Store

pytestmark = pytest.mark.flower

RECIPE = """
[data]
name = "synthetic"
users = 40
items = 30
interactions = 500

[sharing]
ratio = [1, 1, 1]

[method]
name = "FedShare"

[run]
rounds = 5
evaluate_every = 5
checkpoint_every = 1
"""


class Mortal(InMemory):
    """A grid whose server is killed while a round's letters are out."""

    dies_in: int | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        round_ = int(messages[0].metadata.group_id) if messages else 0
        if messages and messages[0].metadata.message_type == "train" and round_ == self.dies_in:
            super().push_messages(messages[:1])  # one silo has trained already
            raise KeyboardInterrupt
        return super().push_messages(messages)


def asked_of(folder: Path, **fields: Any) -> Serving:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)
    given = {"deadline": 0.0, "wait": 0.0, **fields}
    return Serving(str(folder / "recipe.toml"), 2, str(folder / "out"), **given)


def silos(asked: Serving, folder: Path) -> Mortal:
    source = RecipeData(asked.recipe)
    return Mortal({FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, 2) for i in range(2)})


def told(asked: Serving) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    facts = json.loads((Path(asked.out) / "run.json").read_text())
    return facts, params.load(Path(asked.out) / "model" / "public.safetensors")[0]


def test_a_recipe_over_silos_is_the_recipe(tmp_path: Path) -> None:
    asked = asked_of(tmp_path)
    serve(silos(asked, tmp_path), asked)
    facts, there = told(asked)
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


def test_a_server_that_was_killed_in_a_round_goes_on_and_counts_nobody_twice(
    tmp_path: Path,
) -> None:
    whole = asked_of(tmp_path / "whole")
    serve(silos(whole, tmp_path / "whole"), whole)
    asked = asked_of(tmp_path / "killed")
    grid = silos(asked, tmp_path / "killed")
    grid.dies_in = 4
    with pytest.raises(KeyboardInterrupt):
        serve(grid, asked)
    again = asked_of(tmp_path / "killed", resume=True)
    serve(silos(again, tmp_path / "killed"), again)
    (one, expected), (other, found) = told(whole), told(again)
    assert other["client_rounds"] == one["client_rounds"]
    for name, value in expected.items():
        assert torch.equal(found[name], value)


def test_people_take_back_and_leave_after_training(tmp_path: Path) -> None:
    asked = asked_of(tmp_path)
    _, cell = one_cell(asked.recipe, None)
    here = start(cell, obtained(cell))
    lender, leaver = int(here.world.shared.client[0]), int(here.world.shared.client[-1])
    assert lender != leaver
    asked = asked_of(tmp_path, take_back=lender, withdraw=leaver, unlearner="FedShareUnlearn")
    serve(silos(asked, tmp_path), asked)
    facts, _ = told(asked)
    assert facts["forgot"]["event"] == "Withdraw"
    assert facts["silos"]["waiting"] == []
    store = Store(tmp_path / f"silo-{leaver % 2}")
    kept = list((store.folder / HELD).glob("*.safetensors"))
    assert kept
    for path in kept:
        assert not bool((store.held(int(path.stem, 16)).records.client == leaver).any())


def test_streams_and_trials_are_refused_by_name(tmp_path: Path) -> None:
    blocks = RECIPE.replace('name = "synthetic"', 'name = "ml-100k"\nvariant = "blocks"')
    for size in ("users = 40\n", "items = 30\n", "interactions = 500\n"):
        blocks = blocks.replace(size, "")
    (tmp_path / "blocks.toml").write_text(blocks.replace("[sharing]\nratio = [1, 1, 1]\n", ""))
    with pytest.raises(ConfigError, match="from Python"):
        one_cell(str(tmp_path / "blocks.toml"), None)
