"""Streams over silos: each silo has its own blocks, and the result is that of one process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory, InMemorySource
from flower.served import results
from rescind.core.holdings import TRAIN
from rescind.data import Dataset, load
from rescind.data.blocks import arrange, chronological
from rescind.errors import ConfigError
from rescind.experiments.stream_run import measured
from rescind.experiments.streams import Blocks, Stream, Streamed, run_stream
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.serve import serve
from rescind.flower.server.transport import Transport
from rescind.flower.silo import data_source as sources
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD
from rescind.methods.continual.f3crec import F3CRec
from rescind.models.mf import MF
from rescind.requests.words import Words

pytestmark = pytest.mark.flower

METHOD = F3CRec(model=MF(dim=4), top_n=4, negatives=2, batch_size=16)
HOW = Blocks(rounds=4, patience=2, k=(5,), value="NDCG@5")
RECIPE = """
[data]
name = "ml-100k"
variant = "blocks"

[method]
name = "F3CRec"
model = { name = "MF", dim = 4 }
top_n = 4

[run]
rounds = 3
evaluate_every = 1
patience = 2
checkpoint_every = 1
"""


def blocks() -> Dataset:
    data = load("synthetic", users=40, items=40, interactions=700)
    return arrange(data, chronological(data, base=0.5, parts=2))


def over(stream: Stream, silos: int, folder: Path) -> tuple[FlowerExecutor, InMemory]:
    """Return an executor for the blocks of a stream over silos, and its grid."""
    source = InMemorySource(stream.first, tuple(stream.later))
    nodes = {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, silos) for i in range(silos)}
    grid = InMemory(nodes)
    return FlowerExecutor(Transport(grid, silos, deadline=0.0, pause=0.0)), grid


def assert_same(here: Streamed, there: Streamed, close: float | None) -> None:
    assert len(here.blocks) == len(there.blocks) > 1
    for mine, other in zip(here.blocks, there.blocks, strict=True):
        assert (mine.trained, mine.returning) == (other.trained, other.returning)
        if close is None:
            assert (mine.round, mine.rounds) == (other.round, other.rounds)
            assert mine.test == other.test or torch.allclose(
                torch.tensor([t["NDCG@5"] for t in mine.test]),
                torch.tensor([t["NDCG@5"] for t in other.test]), atol=1e-12,
            )  # fmt: skip
    for name, value in here.fed.now.state.public.items():
        if close is None:
            assert torch.equal(there.fed.now.state.public[name], value), name
        else:
            assert_close(there.fed.now.state.public[name], value, rtol=close, atol=close)


@pytest.mark.parametrize(("silos", "close"), [(1, None), (2, 1e-5), (4, 1e-5)])
def test_a_stream_over_silos_gives_the_result_of_one_process(
    silos: int, close: float | None, tmp_path: Path
) -> None:
    stream = Stream.of(blocks(), 3)
    how = HOW if close is None else replace(HOW, patience=None)
    here = run_stream(stream, METHOD, 3, how)
    executor, _ = over(stream, silos, tmp_path)
    remote = Stream(executor.gather(3), executor.arrivals(3))
    there = run_stream(remote, METHOD, 3, how, executor, [executor.watch()])
    assert_same(here, there, close)


def test_a_silo_that_missed_a_block_applies_it_before_it_trains(tmp_path: Path) -> None:
    stream = Stream.of(blocks(), 3)
    executor, grid = over(stream, 2, tmp_path)
    remote = Stream(executor.gather(3), ())
    fed = run_stream(remote, METHOD, 3, HOW, executor).fed
    (block, *_) = executor.arrivals(3)
    grid.away = {FIRST + 1}
    after = fed.apply(block)
    assert executor.waiting(after) == (1,)
    grid.away = set()
    late = after.run(1)
    assert executor.waiting(late) == ()
    assert torch.equal(late.world.available, fed.apply(block).world.available)


def test_no_record_of_a_block_is_sent_to_the_server(tmp_path: Path) -> None:
    stream = Stream.of(blocks(), 3)
    executor, grid = over(stream, 2, tmp_path)
    run_stream(Stream(executor.gather(3), executor.arrivals(3)), METHOD, 3, HOW, executor)
    replies = [reply for _, reply in grid.said if reply.facts["verb"] in ("next", "apply")]
    assert replies
    for reply in replies:
        names = {name.split("|")[-1] for name in reply.tensors}
        assert names <= {"trains", "available", "keeps", "member"}


# -- as a recipe -----------------------------------------------------------------------------------


class KillingGrid(InMemory):
    """A grid that kills the server after one silo has got the request of a round."""

    killed_in: int | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        first = messages[0].metadata if messages else None
        if first and first.message_type == "train" and int(first.group_id) == self.killed_in:
            super().push_messages(messages[:1])
            raise KeyboardInterrupt
        return super().push_messages(messages)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small recipe of blocks."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    monkeypatch.setattr(sources, "prepare", lambda _: blocks())
    sources._stream.cache_clear()
    return path


def asked_of(recipe: Path, folder: Path, **fields: Any) -> RunRequest:
    given = {"deadline": 0.0, "wait": 0.0, **fields}
    return RunRequest(str(recipe), 2, str(folder / "out"), **given)


def silos(asked: RunRequest, folder: Path) -> KillingGrid:
    source = RecipeData(asked.recipe)
    return KillingGrid(
        {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, 2) for i in range(2)}
    )


def test_a_recipe_of_blocks_over_silos_gives_the_result_of_one_process(
    recipe: Path, tmp_path: Path
) -> None:
    asked = asked_of(recipe, tmp_path)
    serve(silos(asked, tmp_path), asked)
    facts, there = results(asked)
    _, cell = one_cell(str(recipe), None)
    fed, expected = measured(cell, blocks())
    for name, value in fed.now.state.public.items():
        assert_close(there[name], value, rtol=1e-5, atol=1e-5)
    assert [b["rounds"] for b in facts["blocks"]] == [b["rounds"] for b in expected["blocks"]]
    for rows, others in zip(facts["matrix"]["HR@20"], expected["matrix"]["HR@20"], strict=True):
        assert rows == pytest.approx(others, abs=1e-5, nan_ok=True)


def test_a_stream_whose_server_was_killed_resumes_in_its_block(
    recipe: Path, tmp_path: Path
) -> None:
    whole = asked_of(recipe, tmp_path / "whole")
    serve(silos(whole, tmp_path / "whole"), whole)
    facts, expected = results(whole)
    first = facts["blocks"][0]["round"]
    asked = asked_of(recipe, tmp_path / "killed")
    grid = silos(asked, tmp_path / "killed")
    grid.killed_in = first + 2  # the second round of the second block
    with pytest.raises(KeyboardInterrupt):
        serve(grid, asked)
    assert (Path(asked.out) / "checkpoints" / "block-001").is_dir()
    again = replace(asked, resume=True)
    serve(silos(again, tmp_path / "killed"), again)
    other, found = results(again)
    assert other["client_rounds"] == facts["client_rounds"]
    assert other["matrix"] == facts["matrix"]
    assert [b["returning"] for b in other["blocks"]] == [b["returning"] for b in facts["blocks"]]
    for name, value in expected.items():
        assert torch.equal(found[name], value)


def blocks_on_disk(store: Store) -> set[int]:
    """Return the blocks of which a silo has training records on disk."""
    found: set[int] = set()
    for path in (store.folder / HELD).glob("*.safetensors"):
        held = store.held(int(path.stem, 16))
        found |= set(held.block[held.split == TRAIN].tolist())
    return found


class DiskWatchingGrid(InMemory):
    """Records the blocks on the silos' disks after each reply of a round."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        super().__init__(nodes)
        self.seen: dict[int, list[set[int]]] = {}
        """Round -> the blocks on the disk of each silo that replied."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            if reply.metadata.message_type == "train":
                facts = Letter.from_records(reply.content).facts
                store = self.nodes[FIRST + int(facts["silo"])].store
                self.seen.setdefault(int(facts["round"]), []).append(blocks_on_disk(store))
        return replies


def watched_silos(asked: RunRequest, folder: Path) -> DiskWatchingGrid:
    source = RecipeData(asked.recipe)
    return DiskWatchingGrid(
        {FIRST + i: Node(Store(folder / f"silo-{i}"), source, i, 2) for i in range(2)}
    )


def test_a_silo_has_only_the_current_block_on_its_disk(recipe: Path, tmp_path: Path) -> None:
    """Earlier blocks are removed before the next one is trained."""
    recipe.write_text(RECIPE.replace("patience = 2\n", ""))
    asked = asked_of(recipe, tmp_path)
    grid = watched_silos(asked, tmp_path)
    serve(grid, asked)
    facts, _ = results(asked)
    latest = 0
    for node in grid.nodes.values():
        assert blocks_on_disk(node.store) == {len(facts["blocks"]) - 1}
    for seen in grid.seen.values():
        for blocks in seen:
            assert len(blocks) == 1, "an earlier block is still there"
            latest = max(latest, *blocks)
    assert latest == len(facts["blocks"]) - 1 > 0


def test_a_resumed_server_brings_no_earlier_block_back(recipe: Path, tmp_path: Path) -> None:
    asked = asked_of(recipe, tmp_path)
    whole = asked_of(recipe, tmp_path / "whole")
    serve(silos(whole, tmp_path / "whole"), whole)
    facts, expected = results(whole)
    grid = silos(asked, tmp_path)
    grid.killed_in = facts["blocks"][0]["round"] + 2
    with pytest.raises(KeyboardInterrupt):
        serve(grid, asked)
    for node in grid.nodes.values():
        assert blocks_on_disk(node.store) == {1}
    again = watched_silos(asked, tmp_path)  # the silos are restarted, too, on the same disks
    serve(again, replace(asked, resume=True))
    assert all(len(blocks) == 1 for seen in again.seen.values() for blocks in seen)
    for name, value in expected.items():
        assert torch.equal(results(asked)[1][name], value)


def test_a_silo_that_missed_the_end_of_a_block_removes_it_before_it_trains(
    tmp_path: Path,
) -> None:
    stream = Stream.of(blocks(), 3)
    executor, grid = over(stream, 2, tmp_path)
    fed = run_stream(Stream(executor.gather(3), ()), METHOD, 3, HOW, executor).fed
    (block, *_) = executor.arrivals(3)
    grid.away = {FIRST + 1}
    fed = fed.apply(block)
    executor.drop_earlier_blocks(fed)
    assert [blocks_on_disk(grid.nodes[FIRST + i].store) for i in range(2)] == [{1}, {0}]
    grid.away = set()
    fed.run(1)
    assert blocks_on_disk(grid.nodes[FIRST + 1].store) == {1}


def test_a_client_leaves_after_the_last_block(recipe: Path, tmp_path: Path) -> None:
    asked = asked_of(recipe, tmp_path, requests=(Words("leave", {"3": None}),))
    serve(silos(asked, tmp_path), asked)
    facts, _ = results(asked)
    (forgot,) = facts["forgot"]
    assert (forgot["event"], forgot["traces"]) == ("Withdraw", {})
    assert [one["outcome"] for one in facts["requests"]] == ["ERASED"]
    source = RecipeData(asked.recipe)
    labels, clients, _ = source.names()
    client = labels.client("3", clients)
    assert client != 3, "the id of a user is not their number"
    store = Store(tmp_path / f"silo-{client % 2}")
    kept = list((store.folder / HELD).glob("*.safetensors"))
    assert kept
    for path in kept:
        assert not bool((store.held(int(path.stem, 16)).records.client == client).any())


@pytest.mark.parametrize("kind", ["leave", "erase"])
def test_a_new_training_has_no_block_of_what_was_forgotten(
    kind: str, recipe: Path, tmp_path: Path
) -> None:
    asked = asked_of(recipe, tmp_path)
    serve(silos(asked, tmp_path), asked)
    source, data = RecipeData(asked.recipe), blocks()
    assert data.block is not None
    first = set(data.user[data.block == 0].tolist())
    late = [int(c) for c in data.user[data.block == data.block.max()] if int(c) not in first]
    client = late[0] if kind == "leave" else int(data.user[data.block == data.block.max()][0])
    store = Store(tmp_path / f"silo-{client % 2}")
    held = pairs_on_disk(store)
    items = [item for c, item in held if c == client]
    assert items, "the control: they have records in the last block"
    labels = source.names().labels
    named = tuple(labels.item_id(item) for item in items) if kind == "erase" else None
    leaves = replace(asked, requests=(Words(kind, {labels.user_id(client): named}),))
    serve(silos(leaves, tmp_path), leaves)
    serve(silos(asked, tmp_path), asked)
    assert pairs_on_disk(store) == {pair for pair in held if pair[0] != client}


def pairs_on_disk(store: Store) -> set[tuple[int, int]]:
    """Return the clients and items of the records that a silo has on disk."""
    moments = [int(path.stem, 16) for path in (store.folder / HELD).glob("*.safetensors")]
    found = [store.held(moment).records for moment in moments]
    return {pair for r in found for pair in zip(r.client.tolist(), r.item.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("line", "says"),
    [('carry = "last"', "carry"), ("reset_private = true", "reset_private"),
     ('mask = "all"', "mask")],
)  # fmt: skip
def test_settings_that_need_all_devices_in_one_process_are_refused(
    line: str, says: str, recipe: Path
) -> None:
    recipe.write_text(RECIPE.replace("top_n = 4", line))
    with pytest.raises(ConfigError, match=f"{says}.*one process"):
        one_cell(str(recipe), None)
