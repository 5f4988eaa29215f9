"""Servers that are killed while they forget: the request is taken up again, and counted once."""

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
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event
from rescind.errors import ConfigError, ConsentError
from rescind.experiments.learning_run import obtained, start
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.remote_holdings import FORGETTING
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.secure_aggregation import Masks
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


class Heard(InProcess):
    """Counts what a silo's people were told to forget, and how often."""

    events: Counter[str]

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        if isinstance(event, FORGETTING):
            self.events[event.digest()] += 1
        return super().apply(method, public, event, vault, clock)


class Mortal(InMemory):
    """A grid whose server is killed at one of its exchanges."""

    left: int | None = None
    """Exchanges before it is killed; None: it lives."""
    reached: int = 0
    """How many silos the fatal exchange still reaches."""
    counting: Path | None = None
    """Exchanges count once this folder is there."""

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
    """A server, its silos and their disks; what silos heard is counted over all servers."""

    def __init__(self, folder: Path, recipe: str, silos: int, **fields: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.parent / "recipe.toml"
        path.write_text(recipe)
        given = {"deadline": 0.0, "wait": 0.0, **fields}
        self.asked = RunRequest(str(path), silos, str(folder / "out"), **given)
        self.trained: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.masks: dict[int, Masks] = defaultdict(Masks)
        """Silos outlive their server: they may be in the middle of a masked round."""

    @property
    def forgetting(self) -> Path:
        return Path(self.asked.out) / "forgetting"

    def live(self, left: int | None = None, reached: int = 0, again: bool = True) -> bool:
        """One server's life; whether it came to its end."""
        source, nodes = RecipeData(self.asked.recipe), {}
        for silo in range(self.asked.silos):
            executor = Heard()
            object.__setattr__(executor, "events", self.events)
            store = Store(self.folder / f"silo-{silo}")
            nodes[FIRST + silo] = Node(
                store, source, silo, self.asked.silos, executor,
                secure=self.asked.masked is not None, masks=self.masks[silo],
            )  # fmt: skip
        grid = Mortal(nodes)
        grid.left, grid.reached, grid.counting = left, reached, self.forgetting
        try:
            serve(grid, replace(self.asked, resume=again))
        except KeyboardInterrupt:
            return False
        finally:
            told = [letter for _, letter in grid.said if letter.facts["verb"] == "train"]
            self.trained.update(str(letter.facts["of"]) for letter in told)
        return True

    def copy(self, name: str) -> World:
        """The same disks once more, as they are now."""
        other = object.__new__(World)
        other.folder = self.folder.parent / name
        shutil.copytree(self.folder, other.folder)
        other.asked = replace(self.asked, out=str(other.folder / "out"))
        other.trained, other.events = Counter(self.trained), Counter(self.events)
        other.masks = copy.deepcopy(self.masks)
        return other

    def told(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return served.told(self.asked)


def assert_same(whole: World, killed: World) -> None:
    """The same model to the last bit, the same story, and nothing left of the way."""
    (one, expected), (other, found) = whole.told(), killed.told()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    for facts in (one, other):
        for told in facts["forgot"]:
            told.pop("seconds")
    assert other["forgot"] == one["forgot"]
    assert all(told["waiting"] == [] and told["traces"] == {} for told in other["forgot"])
    assert other["metrics"] == one["metrics"]
    assert other["client_rounds"] == one["client_rounds"]
    assert {p.name for p in Path(killed.asked.out).iterdir()} == {"run.json", "model"}
    assert killed.events == whole.events  # each acknowledged, and by nobody twice


def lenders(recipe: str, folder: Path) -> tuple[int, int]:
    """Two people who lend something."""
    (folder / "recipe.toml").write_text(recipe)
    return served.lenders(folder / "recipe.toml")


CASES = [
    pytest.param(RECIPE, "FedShareUnlearn", 2, id="FedShareUnlearn"),
    pytest.param(RECIPE, "Retrain", 2, id="Retrain"),
    pytest.param(RECIPE, "Retrain", 1, id="Retrain on one silo"),
    pytest.param(GRAM, None, 2, id="Gram"),
]


@pytest.mark.parametrize(("recipe", "unlearner", "silos"), CASES)
def test_a_server_killed_after_every_single_exchange_comes_to_the_same_end(
    recipe: str, unlearner: str | None, silos: int, tmp_path: Path
) -> None:
    """One more answer in every life: whoever asks again for what it had heard never ends."""
    lender, leaver = lenders(recipe, tmp_path)
    request = {"take_back": lender, "withdraw": leaver, "unlearner": unlearner}
    whole = World(tmp_path / "whole", recipe, silos, **request)
    assert whole.live(again=False)
    killed = World(tmp_path / "killed", recipe, silos, **request)
    lives, done = 0, killed.live(left=0, again=False)
    while not done:
        lives += 1
        assert lives < 60
        done = killed.live(left=2)  # the first is the greeting of a server that goes on
    assert lives > 5
    assert_same(whole, killed)
    assert set(killed.trained.values()) == {1}, "a silo was asked for a round again"
    assert killed.trained == whole.trained


@pytest.mark.parametrize(("unlearner", "reached"), [("FedShareUnlearn", 2), ("Retrain", 1)])
def test_a_server_killed_while_letters_are_out_comes_to_the_same_end(
    unlearner: str, reached: int, tmp_path: Path
) -> None:
    """One silo, or both, have done what the server never heard of, at any of its exchanges."""
    _, leaver = lenders(RECIPE, tmp_path)
    request = {"erase": (leaver, _some_items(leaver, tmp_path)), "unlearner": unlearner}
    whole = World(tmp_path / "whole", RECIPE, 2, **request)
    assert whole.live(again=False)
    begun = World(tmp_path / "begun", RECIPE, 2, **request)
    assert not begun.live(left=0, again=False)
    for number in range(60):
        killed = begun.copy(f"killed-{number}")
        if killed.live(left=number, reached=reached):
            break
        assert killed.live()
        assert_same(whole, killed)
        assert killed.trained.keys() == whole.trained.keys()
    assert number > 5


MASKED = [
    pytest.param(GRAM, None, 2.0**17, 0.0, id="Gram"),  # whole numbers: not a bit is lost
    pytest.param(RECIPE, "Retrain", 8.0, 1e-4, id="Retrain"),
]


@pytest.mark.parametrize(("recipe", "unlearner", "masked", "blur"), MASKED)
def test_a_server_killed_while_it_forgets_by_masked_sums_comes_to_the_same_end(
    recipe: str, unlearner: str | None, masked: float, blur: float, tmp_path: Path
) -> None:
    """Killed between keys and sums, or anywhere: no round counts twice, or not at all.

    blur: steps of 8 / 2**21 for each of three silos, in some ten rounds
    """
    _, leaver = lenders(recipe, tmp_path)
    request = {"withdraw": leaver, "unlearner": unlearner, "masked": masked}
    whole = World(tmp_path / "whole", recipe, 3, **request)
    assert whole.live(again=False)
    begun = World(tmp_path / "begun", recipe, 3, **request)
    assert not begun.live(left=0, again=False)
    for number in range(0, 60, 5):  # in another of a round's four exchanges each time
        killed = begun.copy(f"killed-{number}")
        if killed.live(left=number, reached=number % 4):
            break
        if number % 2:
            killed.masks.clear()  # the silos were killed, too
        assert killed.live()
        assert_near(whole, killed, blur)
        shutil.rmtree(killed.folder)
    assert number > 5


def assert_near(whole: World, killed: World, blur: float) -> None:
    """The same model but for the steps of masked sums, of as many people, and nothing left over."""
    (one, expected), (other, found) = whole.told(), killed.told()
    for name, value in expected.items():
        assert_close(found[name], value, rtol=0.0, atol=blur)
    for mine, theirs in zip(one["forgot"], other["forgot"], strict=True):
        for fact in ("event", "by", "rounds", "client_rounds", "waiting", "traces"):
            assert theirs[fact] == mine[fact], fact
    assert other["silos"]["refused"] == one["silos"]["refused"] == {}
    assert killed.events.keys() == whole.events.keys()
    assert {p.name for p in Path(killed.asked.out).iterdir()} == {"run.json", "model"}


def _some_items(client: int, folder: Path) -> tuple[int, ...]:
    _, cell = one_cell(str(folder / "recipe.toml"), None)
    shared = start(cell, obtained(cell)).world.shared
    return tuple(shared[shared.client == client].item[:2].tolist())


@pytest.mark.data
@pytest.mark.parametrize(
    ("recipe", "client"), [pytest.param(GRAPH, 3, id="graph"), pytest.param(STREAM, 5, id="stream")]
)
def test_people_leave_graphs_and_streams_whose_server_is_killed(
    recipe: str, client: int, tmp_path: Path
) -> None:
    whole = World(tmp_path / "whole", recipe, 2, withdraw=client)
    assert whole.live(again=False)
    killed = World(tmp_path / "killed", recipe, 2, withdraw=client)
    assert not killed.live(left=3, reached=1, again=False)
    assert killed.live()
    assert_same(whole, killed)


def test_nothing_forgotten_comes_back_to_a_silo_with_a_server_that_goes_on(tmp_path: Path) -> None:
    """Killed when some silos have removed it for good: no letter makes them take it in again."""
    _, leaver = lenders(RECIPE, tmp_path)
    world = World(tmp_path / "world", RECIPE, 2, withdraw=leaver, unlearner="Retrain")
    assert not world.live(left=0, again=False)
    for _ in range(60):
        if world.live(left=2, reached=1):
            break
        store = Store(world.folder / f"silo-{leaver % 2}")
        if not store.notes["epoch"]:
            continue
        kept = [int(p.stem, 16) for p in (store.folder / HELD).glob("*.safetensors")]
        assert kept
        assert not any(bool((store.held(m).records.client == leaver).any()) for m in kept)
    assert store.notes["epoch"]


def test_a_journal_of_another_server_is_not_believed(tmp_path: Path) -> None:
    """A torn exchange, and one that answers other letters: silos are asked instead."""
    lender, _ = lenders(RECIPE, tmp_path)
    request = {"take_back": lender, "unlearner": "Retrain"}
    whole = World(tmp_path / "whole", RECIPE, 2, **request)
    assert whole.live(again=False)
    killed = World(tmp_path / "killed", RECIPE, 2, **request)
    assert not killed.live(left=4, again=False)
    heard = sorted(killed.forgetting.glob("stand-*/heard/exchange-*.safetensors"))
    assert len(heard) == 4
    for number, spoil in enumerate((heard[3].read_bytes()[:-7], heard[0].read_bytes())):
        again = killed.copy(f"again-{number}")
        again_heard = sorted(again.forgetting.glob("stand-*/heard/*"))
        again_heard[3].write_bytes(spoil)
        assert again.live()
        assert_same(whole, again)


def test_other_requests_than_those_begun_are_refused(tmp_path: Path) -> None:
    lender, leaver = lenders(RECIPE, tmp_path)
    world = World(tmp_path / "world", RECIPE, 2, take_back=lender, unlearner="Retrain")
    assert not world.live(left=2, again=False)
    world.asked = replace(world.asked, take_back=None, withdraw=leaver)
    with pytest.raises(ConfigError, match="something else"):
        world.live()


def test_after_a_retraining_a_server_that_went_back_is_refused(tmp_path: Path) -> None:
    """Devices that begin anew have forgotten, too: the epoch counts it."""
    _, leaver = lenders(RECIPE, tmp_path)
    world = World(tmp_path / "world", RECIPE, 2, withdraw=leaver, unlearner="Retrain")
    assert world.live(again=False)
    with pytest.raises(ConsentError, match="epoch"):
        world.live(again=False)


def test_a_silo_says_who_it_is_without_taking_anything_in(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    node = Node(Store(tmp_path / "silo"), RecipeData(str(tmp_path / "recipe.toml")), 1, 2)
    told = node.answer(Letter({"verb": "meet", "run": "r", "round": 0, "epoch": 0}, {}))
    assert (told.facts["silo"], told.facts["silos"]) == (1, 2)
    assert not (tmp_path / "silo").exists()
