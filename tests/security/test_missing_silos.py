"""Silos that die while something is forgotten: they are waited for, by name, and catch up first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, silos_of
from flower.silo_shop import SiloShop, asks, outcomes
from rescind.core.claims import CONFIRMED
from rescind.core.federation import Federation
from rescind.core.home import LEDGER
from rescind.core.records import Erase, Records, Withdraw
from rescind.errors import ConfigError
from rescind.flower.run_request import RunRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.serve import serve
from rescind.flower.server.storage import load_remote, save_remote
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.departures import read_list
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy import keys
from rescind.receipts import receipt
from rescind.receipts.verify import verify
from rescind.receipts.words import level_says
from worlds import lendable, tiny_holdings

pytestmark = pytest.mark.flower

CLIENTS, ITEMS, SILOS, SEED, GONE = 12, 14, 3, 5, 1
METHOD = FedAvg(model=MF(dim=4))
ERASED = lendable(tiny_holdings(CLIENTS, ITEMS), GONE)[:1]


class Dying(InMemory):
    """A silo that dies when it gets a request with a certain verb."""

    verb: str = ""

    def dies(self, verb: str) -> Dying:
        self.verb = verb
        self.changed = self._answers
        for node in (FIRST + GONE,):
            self.nodes[node] = _Dead(self.nodes[node], verb)  # type: ignore[assignment]
        return self

    def _answers(self, _: int, reply: Letter) -> Letter | None:
        return None if reply.facts.get("dead") else reply

    def comes_back(self) -> None:
        found = self.nodes[FIRST + GONE]
        self.nodes[FIRST + GONE] = getattr(found, "node", found)


class _Dead:
    """A silo that does nothing any more after the first request with a verb."""

    def __init__(self, node: Node, verb: str) -> None:
        self.node, self.verb, self.dead = node, verb, False

    def answer(self, request: Letter) -> Letter:
        self.dead = self.dead or request.facts["verb"] == self.verb
        return Letter({"dead": True}, {}) if self.dead else self.node.answer(request)


def start(folder: Path) -> tuple[Federation, FlowerExecutor, Dying]:
    executor, plain = silos_of(tiny_holdings(CLIENTS, ITEMS), SILOS, folder)
    grid = Dying(plain.nodes)
    executor = replace(executor, line=replace(executor.line, grid=grid))
    return Federation.start(executor.gather(SEED), METHOD, SEED, executor).run(1), executor, grid


def rows_of(folder: Path, records: Records) -> int:
    """Return how many copies of records are on the silo's disk."""
    store = Store(folder / f"silo-{GONE}")
    moments = [int(path.stem, 16) for path in (store.folder / HELD).glob("*.safetensors")]
    assert moments
    return sum(int(records.among(store.held(moment).records).sum()) for moment in moments)


FAST = [("keep", "train"), ("open", "restart")]
"""The cases that run every time."""


@pytest.mark.parametrize(
    ("verb", "contact"),
    [
        pytest.param(verb, contact, marks=[] if (verb, contact) in FAST else pytest.mark.slow)
        for verb in ("keep", "open", "apply")
        for contact in ("train", "measure", "settle", "restart")
    ],
)
def test_stale_rows_go_before_a_silo_that_died_works_again(
    verb: str, contact: str, tmp_path: Path
) -> None:
    fed, executor, grid = start(tmp_path)
    grid.dies(verb)
    fed = executor.settle(fed.retrained(Erase(ERASED)))
    assert executor.waiting(fed) == (GONE,)
    assert rows_of(tmp_path, ERASED) > 0
    fed = executor.settle(fed)  # it is still away
    assert executor.waiting(fed) == (GONE,)
    if contact == "restart":
        save_remote(fed, tmp_path / "server")
        fed = load_remote(tmp_path / "server", executor)
    grid.comes_back()
    if contact == "measure":
        fed.evaluate("test")
    elif contact == "settle":
        fed = executor.settle(fed)
    else:
        fed = fed.run(1)
    assert rows_of(tmp_path, ERASED) == 0
    if contact != "measure":
        assert executor.waiting(fed) == ()
    fed = executor.settle(fed.run(1).retrained(Withdraw(0)))
    assert executor.waiting(fed) == ()


@pytest.mark.parametrize("event", [Erase(ERASED), Withdraw(GONE)], ids=["Erase", "Withdraw"])
def test_a_new_run_does_not_bring_erased_people_back(
    event: Erase | Withdraw, tmp_path: Path
) -> None:
    fed, executor, _ = start(tmp_path)
    executor.settle(fed.retrained(event))
    assert read_list(tmp_path / f"silo-{GONE}").erased, "a list under a key, in the silo's folder"
    again = replace(executor, run="another run")
    second = Federation.start(again.gather(SEED), METHOD, SEED, again).run(1)
    assert rows_of(tmp_path, ERASED) == 0
    assert bool(second.world.members[GONE]) is isinstance(event, Erase)
    for path in tmp_path.rglob(LEDGER):
        path.unlink()
    forgotten = replace(executor, run="a third run")
    third = Federation.start(forgotten.gather(SEED), METHOD, SEED, forgotten)
    assert bool(third.world.members[GONE]), "the control: without the list they are back"
    assert rows_of(tmp_path, ERASED) > 0


def test_a_silo_whose_answer_is_lost_removes_once(tmp_path: Path) -> None:
    fed, executor, grid = start(tmp_path)
    grid.dies("open")
    fed = executor.settle(fed.retrained(Erase(ERASED)))
    grid.comes_back()
    grid.changed = lambda node, reply: None if node == FIRST + GONE else reply
    for _ in range(3):
        fed = fed.run(1, watch=[executor.watch()])
    assert executor.waiting(fed) == (GONE,)
    grid.changed = None
    fed = fed.run(2, watch=[executor.watch()])
    assert executor.waiting(fed) == ()
    assert rows_of(tmp_path, ERASED) == 0


# -- receipts --------------------------------------------------------------------------------------

RECIPE = """
[data]
name = "synthetic"
users = 24
items = 20
interactions = 220

[method]
name = "FedAvg"
model = { name = "MF", dim = 4 }

[run]
rounds = 2
evaluate_every = 2
"""


def served(folder: Path, verb: str | None, **fields: Any) -> dict[str, Any]:
    """Run a recipe and a request over three silos. verb: a silo dies there; None: none does"""
    (folder / "recipe.toml").write_text(RECIPE)
    asked = RunRequest(
        str(folder / "recipe.toml"), SILOS, str(folder / "out"), deadline=0.0, wait=0.0,
        unlearner="Retrain", **{"requests": asks(leave=[str(GONE)]), **fields},
    )  # fmt: skip
    source = RecipeData(asked.recipe)
    grid = Dying(
        {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, SILOS) for i in range(SILOS)}
    )
    serve(grid.dies(verb) if verb else grid, asked)
    facts: dict[str, Any] = json.loads((folder / "out" / "run.json").read_text())
    return facts


def exact(one: dict[str, Any]) -> receipt.Receipt:
    with ZipFile(one["papers"]) as packed:
        data, key = packed.read("receipt.json"), packed.read("receipt.key")
    signer = keys.own_public_key()
    assert signer
    assert verify(data, {signer: "the server"}).valid
    return receipt.opened(receipt.parse(data), bytes.fromhex(key.decode()))


@pytest.mark.parametrize("verb", ["keep", "purge", pytest.param("apply", marks=pytest.mark.slow)])
def test_a_receipt_is_signed_when_the_last_silo_has_confirmed(verb: str, tmp_path: Path) -> None:
    facts = served(tmp_path, verb)
    assert outcomes(facts) == ["WAITING"]
    assert f"silo {GONE}" in facts["requests"][0]["reason"]
    assert not facts["requests"][0]["papers"]
    with pytest.raises(ConfigError):
        served(tmp_path, None, requests=())
    facts = served(tmp_path, None, resume=True, requests=())
    (one,) = facts["requests"]
    signed = exact(one)
    assert (one["outcome"], signed.done.level, signed.previous) == ("ERASED", "L3", "")
    days = [part.split(" on ") for part in signed.claims[CONFIRMED].split(", ")]
    assert [silo for silo, _ in days] == ["silo 0", "silo 1", "silo 2"]
    assert "world_before" not in json.dumps(facts)
    store = Store(tmp_path / f"silo-{GONE}")
    for path in (store.folder / HELD).glob("*.safetensors"):
        assert not bool((store.held(int(path.stem, 16)).records.client == GONE).any())


@pytest.mark.parametrize(("kind", "stays"), [("unshare", True), ("erase", False)])
def test_a_receipt_over_silos_says_whether_devices_keep_the_records(
    kind: str, stays: bool, tmp_path: Path
) -> None:
    lending = RECIPE + "\n[sharing]\nratio = [1, 0, 0]\n"
    served_with = SiloShop(tmp_path, SILOS)
    served_with.write_recipe(lending)
    served_with.serve()
    user = str(GONE)
    items = sorted(key for who, key in served_with.held() if who == key_of(USER, user))
    named = next(str(n) for n in range(ITEMS) if key_of(ITEM, str(n)) in items)
    words = asks(unshare=[user]) if stays else asks(erase={user: [named]})
    (one,) = served_with.serve(*words)["requests"]
    signed = exact(one)
    assert any("devices keep them" in part for part in signed.not_covered) is stays
    assert ("Devices keep the records" in level_says(signed)) is stays
