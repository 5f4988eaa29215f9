"""The story follows from its seed, says what the page promises, and its ledger tells the truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
from rescind.data import Dataset
from rescind.errors import ConfigError, ConsentError
from rescind.life.authors import write_story
from rescind.life.ledger import Ledger, pairs
from rescind.life.story import Story
from rescind.methods.baselines.popularity import Popularity


def test_a_seed_gives_one_story_and_another_seed_another(people: Dataset, story: Story) -> None:
    assert write_story(people, 0, 4).digest == story.digest
    assert write_story(people, 1, 4).digest != story.digest


def test_everything_happens_that_the_page_promises(story: Story) -> None:
    for block in range(story.blocks):
        learn, requests = story.of_block(block)
        assert {"arrive", "lend"} <= {step.why for step in learn}
        assert {"unshare", "erase", "withdraw"} <= {step.why for step in requests}
    once = [step.why for step in story.steps if step.why in ("burst", "silo", "item")]
    assert sorted(once) == ["burst", "item", "silo"]
    assert any(step.why == "back" for step in story.steps)


def test_the_file_holds_original_ids(story: Story, tmp_path: Path) -> None:
    story.write(tmp_path / "story.jsonl")
    line = json.loads((tmp_path / "story.jsonl").read_text().splitlines()[1])
    assert set(line["events"][0]["user"]) <= set(story.labels.users)


def test_the_next_item_is_the_last_of_a_block(people: Dataset) -> None:
    made = write_story(people, 0, 4, "next")
    for step in made.steps:
        for event in step.events:
            if isinstance(event, Arrive):
                for user in set(event.records.client.tolist()):
                    mine = event.records.client == user
                    time, split = event.records.time[mine], event.split[mine]
                    if 2 in split.tolist():
                        assert int(time[split == 2].min()) >= int(time[split != 2].max())


def test_without_times_a_person_arrives_whole_and_can_be_asked(people: Dataset) -> None:
    ordered = "amazon-video-games-2018-5core"  # rows in the order of each person
    untimed = replace(people, name=ordered, time=np.zeros_like(people.time))
    made = write_story(untimed, 0, 4, "next")
    seen: dict[int, set[int]] = {}
    for step in made.steps:
        for event in step.events:
            if isinstance(event, Arrive) and step.block < 2:  # later some come back
                assert 2 in event.split.tolist()
                for user in set(event.records.client.tolist()):
                    seen.setdefault(user, set()).add(step.block)
    assert {len(blocks) for blocks in seen.values()} == {1}


def test_a_story_needs_blocks_and_a_task(people: Dataset) -> None:
    with pytest.raises(ConfigError, match="4 blocks"):
        write_story(people, 0, 3)
    with pytest.raises(ConfigError, match="ranking"):
        write_story(people, 0, 4, "nodes")


# -- the ledger, by hand and against the core ---------------------------------------------------


def arrive(*rows: tuple[int, int, int]) -> Arrive:
    """Rows (user, item, split)."""
    user, item, split = zip(*rows, strict=True)
    return Arrive(Records.of(user, item), torch.tensor(split, dtype=torch.int8), 5, 9)


def test_the_ledger_by_hand() -> None:
    ledger = Ledger()
    ledger.apply(arrive((0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 1, 0), (2, 4, 0)))
    ledger.apply(Share(Records.of([0, 1], [2, 1])))
    assert ledger.lent == {0: {2}, 1: {1}}
    ledger.apply(Unshare(Records.of([0], [2])))
    ledger.apply(Erase(Records.of([0], [1])))
    ledger.apply(Withdraw(1))
    assert ledger.forgotten == {(0, 1): 0, (1, 1): 0}
    (block,) = ledger.blocks()
    assert (block.user.tolist(), block.item.tolist()) == ([0, 2], [2, 4])
    ledger.apply(Join(1))
    ledger.apply(arrive((1, 1, 0)))
    assert ledger.forgotten == {(0, 1): 0}  # given again, so no longer forgotten
    assert [len(b) for b in ledger.blocks()] == [2, 1]
    assert ledger.gone(1) == []
    assert ledger.gone(0) == [(0, 1)]


@pytest.mark.parametrize(
    "event",
    [
        Withdraw(4),
        Erase(Records.of([0], [7])),
        Unshare(Records.of([0], [1])),
        Share(Records.of([0], [3])),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_ledger_refuses_what_cannot_happen(event: Erase) -> None:
    ledger = Ledger()
    ledger.apply(arrive((0, 1, 0), (0, 3, 2)))
    with pytest.raises(ConsentError):
        ledger.apply(event)


def test_nobody_who_left_gets_records() -> None:
    ledger = Ledger()
    ledger.apply(arrive((0, 1, 0)))
    ledger.apply(Withdraw(0))
    with pytest.raises(ConsentError, match="has left"):
        ledger.apply(arrive((0, 2, 0)))


def test_the_ledger_and_the_core_agree_after_each_step_of_a_block(story: Story) -> None:
    """Two codes, one truth: the core with its tables, the ledger with its dictionaries."""
    ledger, fed = Ledger(), None
    for step in story.steps:
        if step.block:
            break
        for event in step.events:
            ledger.apply(event)
            if isinstance(event, Arrive):
                held = Holdings.of(event.records, event.split, story.users, story.items)
                fed = Federation.start(held, Popularity())
            else:
                assert fed is not None
                fed = fed.apply(event)
        assert fed is not None
        held = fed.now.vault.holdings
        mine = held.records[held.split == TRAIN]
        (block,) = ledger.blocks()
        assert set(pairs(mine)) == set(zip(block.user.tolist(), block.item.tolist(), strict=True))
        lent = {(u, i) for u, items in ledger.lent.items() for i in items}
        assert set(pairs(fed.world.shared)) == lent
        gone = np.flatnonzero(~fed.world.members.numpy()).tolist()
        assert set(gone) == set(ledger.left)
