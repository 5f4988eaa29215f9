"""Servers that are killed while they forget: the request is resumed and counted once."""

from __future__ import annotations

import copy
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flwr.app import Message

from flower import served
from flower.grids import FIRST, InMemory
from flower.served import results
from flower.silo_shop import asks, outcomes
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.remote_holdings import FORGETTING
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.secure_sum import Masks
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD

pytestmark = pytest.mark.flower

RECIPE = """
[data]
name = "synthetic"
users = 24
items = 20
interactions = 220

[sharing]
ratio = [1, 1, 1]

[method]
name = "FedShare"
snapshots = 2

[run]
rounds = 4
evaluate_every = 4
checkpoint_every = 1
"""
GRAM = RECIPE.replace("FedShare", "Gram").replace("snapshots = 2", "")
GRAM = GRAM.replace("rounds = 4", "rounds = 1").replace("every = 4", "every = 1")
GRAPH = served.GRAPH.replace("= 3", "= 1")  # one round is enough
STREAM = """
[data]
name = "ml-100k"
variant = "blocks"

[method]
name = "F3CRec"
model = { name = "MF", dim = 4 }

[run]
rounds = 1
evaluate_every = 1
"""


class CountingExecutor(InProcess):
    """Counts the forgetting events that a silo applies."""

    events: Counter[str]

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        if isinstance(event, FORGETTING):
            self.events[event.digest()] += 1
        return super().apply(method, public, event, vault, clock)


class KillingGrid(InMemory):
    """A grid that kills the server at one of its exchanges."""

    left: int | None = None
    """Exchanges before the server is killed; None: never."""
    reached: int = 0
    """Number of silos that the last exchange still reaches."""
    counting: Path | None = None
    """Exchanges are counted when this folder exists."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if self.left is None or not messages or not (self.counting and self.counting.is_dir()):
            return super().push_messages(messages)
        if self.left == 0:
            super().push_messages(messages[: self.reached])
            raise KeyboardInterrupt
        self.left -= 1
        return super().push_messages(messages)


class World:
    """A server, its silos and their disks. Counts are over all restarts of the server."""

    def __init__(self, folder: Path, recipe: str, silos: int, **fields: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.parent / "recipe.toml"
        path.write_text(recipe)
        given = {"deadline": 0.0, "wait": 0.0, **fields}
        self.asked = RunRequest(str(path), silos, str(folder / "out"), **given)
        # These ask for one person alone; masked sums cannot.
        alone = any(f'name = "{method}"' in recipe for method in ("Gram", "FedGCV"))
        self.single_updates = alone and self.asked.masked is None
        self.trained: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.masks: dict[int, Masks] = defaultdict(Masks)
        """Silos are not restarted with the server: they may be in the middle of a masked round."""

    @property
    def forgetting(self) -> Path:
        return Path(self.asked.out) / "forgetting"

    def serve(self, left: int | None = None, reached: int = 0, resume: bool = True) -> bool:
        """Run the server. Return whether it finished."""
        source, nodes = RecipeData(self.asked.recipe), {}
        for silo in range(self.asked.silos):
            executor = CountingExecutor()
            object.__setattr__(executor, "events", self.events)
            store = Store(self.folder / f"silo-{silo}")
            nodes[FIRST + silo] = Node(
                store, source, silo, self.asked.silos, executor,
                secure=self.asked.masked is not None, masks=self.masks[silo],
                single_updates=self.single_updates,
            )  # fmt: skip
        grid = KillingGrid(nodes)
        grid.left, grid.reached, grid.counting = left, reached, self.forgetting
        try:
            serve(grid, replace(self.asked, resume=resume))
        except KeyboardInterrupt:
            return False
        finally:
            replies = [reply for _, reply in grid.said if reply.facts["verb"] == "train"]
            self.trained.update(str(reply.facts["of"]) for reply in replies)
        return True

    def copy(self, name: str) -> World:
        """Return a copy with copies of all disks."""
        other = object.__new__(World)
        other.folder = self.folder.parent / name
        shutil.copytree(self.folder, other.folder)
        other.asked = replace(self.asked, out=str(other.folder / "out"))
        other.single_updates = self.single_updates
        other.trained, other.events = Counter(self.trained), Counter(self.events)
        other.masks = copy.deepcopy(self.masks)
        return other

    def results(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return served.results(self.asked)


def assert_same(whole: World, killed: World) -> None:
    """Check that model and facts are equal, and that no temporary files are left."""
    (one, expected), (other, found) = whole.results(), killed.results()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    for facts in (one, other):
        for request in facts["forgot"]:
            del request["seconds"], request["request"]
    assert other["forgot"] == one["forgot"]
    assert all(one["traces"] == {} for one in other["forgot"])
    assert other["metrics"] == one["metrics"]
    assert other["client_rounds"] == one["client_rounds"]
    left = {"run.json", "model", "federation", "forgetting"}
    assert {p.name for p in Path(killed.asked.out).iterdir()} == left
    assert killed.events == whole.events  # each silo applied each event once


def lenders(recipe: str, folder: Path) -> tuple[int, int]:
    """Write the recipe. Return two clients that lend records."""
    (folder / "recipe.toml").write_text(recipe)
    return served.lenders(folder / "recipe.toml")


CASES = [
    pytest.param(RECIPE, "FedShareUnlearn", 2, id="FedShareUnlearn"),
    pytest.param(RECIPE, "Retrain", 2, id="Retrain"),
    pytest.param(RECIPE, "Retrain", 1, id="Retrain on one silo"),
    pytest.param(GRAM, None, 2, id="Gram"),
]


@pytest.mark.parametrize(("recipe", "unlearner", "silos"), CASES)
def test_a_server_killed_after_every_exchange_gives_the_same_result(
    recipe: str, unlearner: str | None, silos: int, tmp_path: Path
) -> None:
    """Each run gets one more reply. If replies were asked for again, it would never finish."""
    lender, leaver = lenders(recipe, tmp_path)
    request = {
        "requests": asks(unshare=[str(lender)], leave=[str(leaver)]),
        "unlearner": unlearner,
    }
    whole = World(tmp_path / "whole", recipe, silos, **request)
    assert whole.serve(resume=False)
    killed = World(tmp_path / "killed", recipe, silos, **request)
    restarts, done = 0, killed.serve(left=0, resume=False)
    killed.asked = replace(killed.asked, requests=())  # they are in the ledger
    while not done:
        restarts += 1
        assert restarts < 60
        done = killed.serve(left=3)  # the first exchanges identify the silos, and who asks
    assert restarts > 3
    assert_same(whole, killed)
    assert set(killed.trained.values()) == {1}, "a silo was asked twice for a round"
    assert killed.trained == whole.trained


@pytest.mark.parametrize(("unlearner", "reached"), [("FedShareUnlearn", 2), ("Retrain", 1)])
def test_a_server_killed_before_replies_come_gives_the_same_result(
    unlearner: str, reached: int, tmp_path: Path
) -> None:
    """One silo or both have done their work, but the server did not get the replies."""
    _, leaver = lenders(RECIPE, tmp_path)
    items = [str(item) for item in _some_items(leaver, tmp_path)]
    request = {"requests": asks(erase={str(leaver): items}), "unlearner": unlearner}
    whole = World(tmp_path / "whole", RECIPE, 2, **request)
    assert whole.serve(resume=False)
    started = World(tmp_path / "started", RECIPE, 2, **request)
    assert not started.serve(left=0, resume=False)
    for number in range(60):
        killed = started.copy(f"killed-{number}")
        if killed.serve(left=number, reached=reached):
            break
        assert killed.serve()
        assert_same(whole, killed)
        assert killed.trained.keys() == whole.trained.keys()
    assert number > 5


MASKED = [
    pytest.param(GRAM, None, 2.0**17, 0.0, id="Gram"),  # whole numbers are exact
    pytest.param(RECIPE, "Retrain", 8.0, 1e-4, id="Retrain"),
]


@pytest.mark.parametrize(("recipe", "unlearner", "masked", "atol"), MASKED)
def test_a_server_killed_while_it_forgets_with_masked_sums_gives_the_same_result(
    recipe: str, unlearner: str | None, masked: float, atol: float, tmp_path: Path
) -> None:
    """Killed at any stage of masking: every round is counted once.

    atol: steps of 8 / 2**21 for each of three silos, in about ten rounds
    """
    _, leaver = lenders(recipe, tmp_path)
    request = {
        "requests": asks(leave=[str(leaver)]),
        "unlearner": unlearner,
        "masked": masked,
    }
    whole = World(tmp_path / "whole", recipe, 3, **request)
    assert whole.serve(resume=False)
    started = World(tmp_path / "started", recipe, 3, **request)
    assert not started.serve(left=0, resume=False)
    for number in range(0, 60, 5):  # each time in another of a round's four exchanges
        killed = started.copy(f"killed-{number}")
        if killed.serve(left=number, reached=number % 4):
            break
        if number % 2:
            killed.masks.clear()  # the silos were restarted, too
        assert killed.serve()
        assert_near(whole, killed, atol)
        shutil.rmtree(killed.folder)
    assert number > 5


def assert_near(whole: World, killed: World, atol: float) -> None:
    """Check that models are equal within `atol`, and that no temporary files are left."""
    (one, expected), (other, found) = whole.results(), killed.results()
    for name, value in expected.items():
        assert_close(found[name], value, rtol=0.0, atol=atol)
    for mine, theirs in zip(one["forgot"], other["forgot"], strict=True):
        for fact in ("event", "by", "rounds", "client_rounds", "traces"):
            assert theirs[fact] == mine[fact], fact
    assert other["silos"]["refused"] == one["silos"]["refused"] == {}
    assert killed.events.keys() == whole.events.keys()
    left = {"run.json", "model", "federation", "forgetting"}
    assert {p.name for p in Path(killed.asked.out).iterdir()} == left


def _some_items(client: int, folder: Path) -> tuple[int, ...]:
    _, cell = one_cell(str(folder / "recipe.toml"), None)
    shared = start(cell, obtained(cell)).world.shared
    return tuple(shared[shared.client == client].item[:2].tolist())


@pytest.mark.data
@pytest.mark.parametrize(
    ("recipe", "client"), [pytest.param(GRAPH, 3, id="graph"), pytest.param(STREAM, 5, id="stream")]
)
def test_clients_leave_graphs_and_streams_while_the_server_is_killed(
    recipe: str, client: int, tmp_path: Path
) -> None:
    whole = World(tmp_path / "whole", recipe, 2, requests=asks(leave=[str(client)]))
    assert whole.serve(resume=False)
    killed = World(tmp_path / "killed", recipe, 2, requests=asks(leave=[str(client)]))
    assert not killed.serve(left=3, reached=1, resume=False)
    assert killed.serve()
    assert_same(whole, killed)


def test_a_resumed_server_brings_no_forgotten_record_back_to_a_silo(tmp_path: Path) -> None:
    """Killed when some silos have removed the records: no request restores them."""
    _, leaver = lenders(RECIPE, tmp_path)
    world = World(
        tmp_path / "world",
        RECIPE,
        2,
        requests=asks(leave=[str(leaver)]),
        unlearner="Retrain",
    )
    assert not world.serve(left=0, resume=False)
    for _ in range(60):
        if world.serve(left=3, reached=1):
            break
        store = Store(world.folder / f"silo-{leaver % 2}")
        if not store.notes["epoch"]:
            continue
        kept = [int(p.stem, 16) for p in (store.folder / HELD).glob("*.safetensors")]
        assert kept
        assert not any(bool((store.held(m).records.client == leaver).any()) for m in kept)
    assert store.notes["epoch"]


def test_an_invalid_journal_is_not_used(tmp_path: Path) -> None:
    """An incomplete file, and one with replies to other requests: the silos are asked again."""
    lender, _ = lenders(RECIPE, tmp_path)
    request = {"requests": asks(unshare=[str(lender)]), "unlearner": "Retrain"}
    whole = World(tmp_path / "whole", RECIPE, 2, **request)
    assert whole.serve(resume=False)
    killed = World(tmp_path / "killed", RECIPE, 2, **request)
    assert not killed.serve(left=4, resume=False)
    journal = sorted(killed.forgetting.glob("stand-*/heard-*/exchange-*.safetensors"))
    assert len(journal) == 4
    for number, invalid in enumerate((journal[3].read_bytes()[:-7], journal[0].read_bytes())):
        resumed = killed.copy(f"resumed-{number}")
        files = sorted(resumed.forgetting.glob("stand-*/heard-*/*"))
        files[3].write_bytes(invalid)
        assert resumed.serve()
        assert_same(whole, resumed)


def test_other_requests_join_the_queue_of_a_killed_server(tmp_path: Path) -> None:
    lender, leaver = lenders(RECIPE, tmp_path)
    first, second = (
        asks(unshare=[str(lender)]),
        asks(leave=[str(leaver)]),
    )
    world = World(tmp_path / "world", RECIPE, 2, requests=first, unlearner="Retrain")
    assert not world.serve(left=2, resume=False)
    world.asked = replace(world.asked, requests=second)
    assert world.serve()
    facts, _ = results(world.asked)
    assert [one["event"] for one in facts["forgot"]] == ["Unshare", "Withdraw"]


def test_after_a_request_an_older_state_of_the_server_is_refused(tmp_path: Path) -> None:
    """Retraining from the start also raises the epoch."""
    one, two = lenders(RECIPE, tmp_path)
    world = World(tmp_path / "world", RECIPE, 2, unlearner="Retrain")
    assert world.serve(resume=False)
    older = shutil.copytree(world.forgetting, tmp_path / "older")
    world.asked = replace(world.asked, requests=asks(leave=[str(one)]))
    assert world.serve(resume=False)
    shutil.rmtree(world.forgetting)
    shutil.copytree(older, world.forgetting)  # restored from a backup, say
    world.asked = replace(world.asked, requests=asks(leave=[str(two)]))
    assert world.serve(resume=False)
    facts = world.results()[0]
    assert outcomes(facts) == ["WAITING"]
    assert not facts["requests"][0]["papers"], "silos refuse it, so nobody is told that it is done"


def test_a_silo_replies_with_its_number_without_loading_data(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    node = Node(Store(tmp_path / "silo"), RecipeData(str(tmp_path / "recipe.toml")), 1, 2)
    reply = node.answer(Letter({"verb": "meet", "run": "r", "round": 0, "epoch": 0}, {}))
    assert (reply.facts["silo"], reply.facts["silos"]) == (1, 2)
    assert not (tmp_path / "silo").exists()
