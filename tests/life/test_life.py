"""What the benchmark must show, on a made world: who passes, who fails, and when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rescind.data import Dataset
from rescind.life.authors import Plot, write_story
from rescind.life.entry import Arrival, Asked, Entry, Setting
from rescind.life.federated import Additive, Anew, Continual, Exact, KeepsTeacher, NoOp, ScoreShift
from rescind.life.rows import ROWS
from rescind.life.run import play, setting_of
from rescind.life.story import Story
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.seq_gram import SeqGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.continual.f3crec import F3CRec
from rescind.models.lightgcn import LightGCN

SMALL = FedAvg(model=LightGCN(dim=8))
Facts = list[dict[str, Any]]


def played(story: Story, make: Callable[[Setting, int], Entry]) -> Facts:
    setting = setting_of(story)
    return play(story, lambda seed: make(setting, seed), 0)


def verdicts(facts: Facts) -> list[str]:
    return [block["verdict"]["verdict"] for block in facts]


@pytest.mark.parametrize("learner", [Gram(), SeqGram()], ids=["Gram", "SeqGram"])
def test_sums_are_equal_to_never_there_after_each_step(story: Story, learner: Gram) -> None:
    facts = played(story, lambda setting, seed: Additive(setting, seed, learner, 1))
    assert all(step["equal"] for block in facts for step in block["steps"])
    assert all(block["equal"] for block in facts)
    assert {v["verdict"] for block in facts for v in block["back"].values()} == {"EQUAL"}
    assert all(step["in_time"] and not step["online"] for b in facts for step in b["steps"])


def test_retraining_is_equal_after_each_step_and_takes_the_time_of_all(story: Story) -> None:
    facts = played(story, lambda setting, seed: Exact(setting, seed, SMALL, 3))
    assert all(step["equal"] for block in facts for step in block["steps"])
    assert all(step["rounds"] == 3 for block in facts for step in block["steps"])
    assert min(step["online"] for block in facts for step in block["steps"]) > 5


class Leaks(Exact):
    """A method that leaves one record where it was: every comparison must see it."""

    def forget(self, asked: Asked) -> None:
        super().forget(Asked(asked.kind, asked.user[1:], asked.item[1:], asked.leavers[:0]))


def test_one_record_that_stays_is_seen_by_the_digests(story: Story) -> None:
    facts = played(begun(story, 1), lambda setting, seed: Leaks(setting, seed, SMALL, 3))
    wrong = [s for b in facts for s in b["steps"] if s["why"] != "unshare" and not s["equal"]]
    asked = [s for b in facts for s in b["steps"] if s["why"] != "unshare"]
    assert len(wrong) == len(asked)


def begun(story: Story, blocks: int) -> Story:
    """The first blocks of a story."""
    return replace(story, about={**story.about, "blocks": blocks})


@pytest.fixture(scope="module")
def busy(people: Dataset) -> Story:
    """A story in which enough is forgotten in each block that an audit can tell."""
    return write_story(people, 0, 4, plot=replace(Plot(), erase=0.15, withdraw=0.1))


@pytest.fixture(scope="module")
def controls(busy: Story) -> dict[type[NoOp], Facts]:
    return {
        kind: played(busy, lambda setting, seed, kind=kind: kind(setting, seed, FedAvg(), 20))  # type: ignore[misc]
        for kind in (NoOp, ScoreShift)
    }


@pytest.mark.parametrize("kind", [NoOp, ScoreShift])
def test_doing_nothing_and_shifting_scores_fail_in_every_block(
    controls: dict[type[NoOp], Facts], kind: type[NoOp]
) -> None:
    facts = controls[kind]
    assert verdicts(facts) == ["FAIL"] * len(facts)
    assert all(block["equal"] is False for block in facts[1:])
    far = [s["distance"] for b in facts for s in b["steps"] if s["why"] != "unshare"]
    assert far == [1.0] * len(far)


def test_a_shift_is_told_from_nothing_by_no_rank(controls: dict[type[NoOp], Facts]) -> None:
    """The audit ranks, so that a constant cannot change its mind."""
    one, two = controls.values()
    assert [b["verdict"]["left"] for b in one] == [b["verdict"]["left"] for b in two]


@pytest.mark.slow
def test_another_seed_without_the_records_passes(story: Story) -> None:
    """The control of the audit: who never had the records must not fail, at any seed."""

    class OtherSeed(Anew):
        def forget(self, asked: Asked) -> None:
            self.seed += 1
            super().forget(asked)
            self.arrive(
                Arrival(0, *(np.zeros(0, dtype=np.int64),) * 3, np.zeros(0, dtype=np.bool_))
            )

    facts = played(begun(story, 3), lambda setting, seed: OtherSeed(setting, seed, FedAvg(), 20))
    assert not any(block["steps"][-1]["equal"] for block in facts)
    assert verdicts(facts).count("FAIL") <= 1  # an interval of 95 % misses one in twenty
    assert "PASS" in verdicts(facts)


def test_the_kept_teacher_fails_one_block_later_and_not_before(story: Story) -> None:
    learner = F3CRec(top_n=10)
    kept = played(story, lambda setting, seed: KeepsTeacher(setting, seed, learner, 4))
    assert all(step["equal"] for block in kept for step in block["steps"])
    assert verdicts(kept) == ["EQUAL"] * story.blocks
    assert [block["back"]["1"]["verdict"] for block in kept[1:]] == ["BACK"] * (story.blocks - 1)
    purged = played(story, lambda setting, seed: Continual(setting, seed, learner, 4))
    assert {v["verdict"] for block in purged for v in block["back"].values()} == {"EQUAL"}


def test_every_row_can_be_built_and_says_what_it_is(story: Story) -> None:
    setting = setting_of(story)
    for row in ROWS.values():
        entry = row.build(setting, 0)
        assert entry.settings()["learner"]["name"]
        assert row.says
    assert len(ROWS) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ROWS))
def test_every_row_lives_through_the_story(story: Story, name: str) -> None:
    facts = played(story, ROWS[name].build)
    assert len(facts) == story.blocks
    if ROWS[name].build(setting_of(story), 0).exact:
        assert all(step["equal"] for block in facts for step in block["steps"])


def test_a_life_that_nobody_needs_any_more_frees_its_tables_at_once(story: Story) -> None:
    entry = Exact(setting_of(story), 0, SMALL, 1)
    arrival = Arrival(0, np.arange(3), np.arange(3), np.zeros(3, int), np.ones(3, bool))
    gc.disable()  # what only the collector finds would stay
    try:
        entry.relive([arrival])
        assert entry.cost.rounds == 1  # its rounds are still counted
        gone = weakref.ref(entry.now.now.state)
        del entry
        assert gone() is None
    finally:
        gc.enable()
