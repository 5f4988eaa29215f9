"""The audit of the lifecycle benchmark: lives are added until it can tell, and lived once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rescind.core.clock import Clock
from rescind.data.arrays import Ints
from rescind.life import audit
from rescind.life.audit import Auditor, key_of
from rescind.life.authors import Plot, write_story
from rescind.life.entry import Arrival, Asked, Entry, Setting
from rescind.life.federated import Anew, NoOp, ScoreShift
from rescind.life.run import play, setting_of
from rescind.life.story import Story
from rescind.methods.baselines.fedavg import FedAvg

PEOPLE, EACH = 60, 5
EFFECT = 0.022
"""How far the records move ranks, where seeds move them by 0.1."""


class Noisy(Entry):
    """Ranks that depend on the seed, and a little on whether the records were there."""

    effect = EFFECT

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        self.told = bool(arrivals)

    def vector(self) -> NDArray[np.float64]:
        towards, chance = (
            Clock(seed).normal(what, torch.arange(PEOPLE * EACH)).double().numpy()
            for what, seed in (("towards", 0), ("chance", self.seed))
        )
        return 0.5 + 0.1 * chance + self.effect * self.told * towards

    def arrive(self, arrival: Arrival) -> None:
        raise NotImplementedError

    def forget(self, asked: Asked) -> None:
        raise NotImplementedError

    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        raise NotImplementedError


class NoEffect(Noisy):
    effect = 0.0


@dataclass(frozen=True)
class Asking:
    """A probe that takes the ranks from the life."""

    users = np.arange(PEOPLE)
    person = np.repeat(np.arange(PEOPLE), EACH)
    item = np.arange(PEOPLE * EACH)
    key = b""

    def ranks(self, life: Noisy) -> NDArray[np.float64]:
        return life.vector()


class Nothing:
    def blocks(self) -> list[Arrival]:
        return []


NOTHING: Any = Nothing()
SETTING = Setting(PEOPLE, EACH)


def judged(told: bool, seed: int = 0, kind: type[Noisy] = Noisy, of: int = 0) -> audit.Verdict:
    """The verdict on a method that still has the records (told), or never had them."""
    auditor = Auditor(lambda s: kind(SETTING, s), of, probe=lambda *_: Asking())
    none = np.zeros(0, dtype=np.int64)
    auditor.arrived(Arrival(0, none, none, none, none.astype(bool)))
    entry = kind(SETTING, seed)
    entry.told = told
    return auditor.judge(entry, [(0, 0)], NOTHING)


def test_lives_are_added_until_the_no_op_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(told=True)
    assert found.verdict == "FAIL"
    assert found.lives
    assert found.lives > audit.WITH + audit.NEVER
    monkeypatch.setattr(audit, "TIMES", 1)  # the control: the first lives alone cannot tell
    assert judged(told=True).verdict == "POWERLESS"


def test_no_method_can_choose_how_many_lives_there_are() -> None:
    """Else one could ask until the answer pleases."""
    found = [judged(told, seed) for told in (True, False) for seed in range(2)]
    assert len({one.lives for one in found}) == 1
    assert len({one.left for one in found}) == len(found)


@pytest.mark.slow
def test_who_never_had_the_records_passes_with_added_lives() -> None:
    trials = [judged(told=False, seed=10**6 + n, of=n) for n in range(20)]
    assert any(one.lives for one in trials)
    assert [one.verdict for one in trials].count("FAIL") <= 4  # 5 % would be one


@pytest.mark.slow
def test_where_records_move_nothing_the_no_op_is_seldom_told_apart() -> None:
    """Four looks instead of one make luck more likely, not likely."""
    trials = [judged(told=True, kind=NoEffect, of=n).verdict for n in range(20)]
    assert trials.count("POWERLESS") >= 14


# -- lives that rows have in common --------------------------------------------------------------


@pytest.fixture(scope="module")
def short(people: Any) -> Story:
    story = write_story(people, 0, 4, plot=replace(Plot(), erase=0.15, withdraw=0.1))
    return replace(story, about={**story.about, "blocks": 1})


class Elsewhere(NoOp):
    """A stranger's method, which may learn and score as it likes."""


def lived(story: Story, kind: type[Anew], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """What was measured, and how many lives were lived for it."""
    count = 0
    relive = Anew.relive

    def counted(self: Anew, arrivals: Sequence[Arrival]) -> None:
        nonlocal count
        count += 1
        relive(self, arrivals)

    with monkeypatch.context() as patch:
        patch.setattr(Anew, "relive", counted)
        setting = setting_of(story)
        measured = play(story, lambda seed: kind(setting, seed, FedAvg(), 4), 0)
    return [(b["verdict"], b["back"]) for b in measured], count


def test_rows_with_the_same_life_live_it_once_and_measure_the_same(
    short: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ANSWERS", {})
    lived(short, NoOp, monkeypatch)
    after, few = lived(short, ScoreShift, monkeypatch)
    stranger, all_of_them = lived(short, Elsewhere, monkeypatch)
    monkeypatch.setattr(audit, "ANSWERS", {})
    alone, many = lived(short, ScoreShift, monkeypatch)
    assert after == alone == stranger
    assert many == all_of_them
    assert many - few >= audit.WITH + audit.NEVER  # those with the seed of the run are its own


def test_keys_tell_shapes_kinds_and_borders_apart() -> None:
    two = np.zeros(2, dtype=np.int64)
    keys = [key_of(*parts) for parts in (
        ("ab", "c"), ("a", "bc"), (1,), ("1",), (b"1",), (two,), (two.reshape(2, 1),),
        (two.view(np.float64),), (two, two), (np.zeros(4, dtype=np.int64),),
    )]  # fmt: skip
    assert len(set(keys)) == len(keys)
