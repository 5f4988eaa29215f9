"""Play a story with one method, and measure after each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescind.core.clock import Clock
from rescind.life.audit import Auditor, Make, Probe
from rescind.life.entry import Asked, Cost, Setting
from rescind.life.ledger import Ledger, Pair
from rescind.life.quality import quality
from rescind.life.story import Step, Story

LATER = (1, 2, 3)
"""Blocks after which it is asked whether something is back."""
ROUNDS_PER_BLOCK = 60
"""Rounds of devices for which a block has time: to learn, and to answer its requests."""
BACK = "BACK"
"""It was equal to never-there, and after one more block it is not: something has come back."""
Progress = Callable[[int, int, str], Any]


Facts = dict[str, Any]


def play(
    story: Story,
    make: Make,
    seed: int,
    progress: Progress = lambda *_: None,
    spare: Make | None = None,
) -> list[Facts]:
    """Live through a story; return what was measured, a table per block.

    make: returns a fresh entry for a seed    progress: called with (block, blocks, step)
    spare: the same, for lives of the auditor with other seeds
    """
    game = _Game(story, make, seed, progress, spare)
    return [game.block(number) for number in range(story.blocks)]


def setting_of(story: Story) -> Setting:
    """Return what methods know before the first block."""
    classes = story.graph.num_classes if story.graph else 0
    return Setting(story.users, story.items, str(story.about["task"]), classes)


@dataclass(frozen=True)
class _World:
    """What depends on the task: the ledger, the quality and the probe of an audit."""

    ledger: Callable[[Story], Any]
    quality: Callable[[Any, Any, Clock], Facts]
    probe: Callable[..., Any]

    @classmethod
    def of(cls, story: Story) -> _World:
        if story.graph is None:
            return cls(lambda _: Ledger(), quality, Probe.of)
        from rescind.life.nodes import NodeLedger
        from rescind.life.nodes_audit import NodeProbe, node_quality

        return cls(lambda story: NodeLedger(story.graph), node_quality, NodeProbe.of)  # type: ignore[arg-type]


@dataclass
class _Game:
    story: Story
    make: Make
    seed: int
    progress: Progress
    spare: Make | None = None
    was_equal: bool = True
    """Whether the entry was equal to never-there after the requests of the last block."""

    def __post_init__(self) -> None:
        self.world = _World.of(self.story)
        self.ledger = self.world.ledger(self.story)
        self.entry = self.make(self.seed)
        self.auditor = Auditor(self.make, self.seed, self.spare, self.world.probe)
        self.clock = Clock(int(self.story.about["seed"]))

    def block(self, number: int) -> Facts:
        """Live through one block."""
        learn, requests = self.story.of_block(number)
        self.entry.cost = Cost()  # of this block
        facts: Facts = {"block": number, "learn": self._learn(number, learn)}
        self.progress(number, self.story.blocks, "learn")
        facts |= self.world.quality(self.entry, self.ledger, self.clock)
        equal = self.equal()
        facts["equal"] = equal
        facts["back"] = self._back(number, equal)
        facts["steps"] = []
        for step in requests:
            facts["steps"].append(self._answer(step))
            self.progress(number, self.story.blocks, step.why)
        self.was_equal = all(step["equal"] is True for step in facts["steps"])
        facts["verdict"] = self._verdict(self.ledger.gone(number), self.was_equal)
        return facts

    def _learn(self, number: int, steps: Sequence[Step]) -> Facts:
        for step in steps:
            for event in step.events:
                self.ledger.apply(event)
        arrival = self.ledger.blocks()[number]
        self.auditor.arrived(arrival)
        begin = time.process_time()
        self.entry.arrive(arrival)
        return {"records": len(arrival), **_costs(self.entry.cost, begin, ())}

    def _answer(self, step: Step) -> Facts:
        asked = self.ledger.asked(step.events)
        before = self.entry.cost.rounds, self.entry.cost.client_rounds, self.entry.cost.bytes
        self.entry.cost.online = set()
        begin = time.process_time()
        self.entry.forget(asked)
        people = np.union1d(asked.user, asked.leavers).tolist()
        facts = {"why": step.why, "people": len(people), "records": len(asked.user),
                 **_costs(self.entry.cost, begin, people, before)}  # fmt: skip
        facts["in_time"] = self.entry.cost.rounds <= ROUNDS_PER_BLOCK
        for event in step.events:
            self.ledger.apply(event)
        self.auditor.changed()
        facts["equal"] = self.equal()
        facts["distance"] = 0.0 if facts["equal"] else self._distance(asked)
        return facts

    def equal(self) -> bool | None:
        """Return whether the digest is that of a life without the forgotten; None: no digest."""
        mine = self.entry.digest()
        return mine == self.auditor.never_there(self.ledger).digest() if mine else None

    def _distance(self, asked: Asked) -> float | None:
        pairs: list[Pair] = list(zip(asked.user.tolist(), asked.item.tolist(), strict=True))
        found = self.auditor.distance(self.entry, pairs, self.ledger)
        return None if found is None else round(found, 4)

    def _verdict(self, pairs: Sequence[Pair], equal: bool | None) -> Facts:
        if equal:
            return {"verdict": "EQUAL", "records": len(pairs)}
        return self.auditor.judge(self.entry, pairs, self.ledger).facts

    def _back(self, number: int, equal: bool | None) -> dict[str, Facts]:
        """Ask for what was forgotten one, two and three blocks ago."""
        ago = {str(n): self.ledger.gone(number - n) for n in LATER if number >= n}
        if equal is False and self.was_equal:
            return {n: self._came_back(pairs) for n, pairs in ago.items()}
        return {n: self._verdict(pairs, equal) for n, pairs in ago.items()}

    def _came_back(self, pairs: Sequence[Pair]) -> Facts:
        """Judge a method that was equal to never-there until this block, and is not any more.

        Same code, same seed, same block: only what was forgotten can make a difference.
        """
        far = self.auditor.distance(self.entry, pairs, self.ledger)
        verdict = BACK if far else "EQUAL"
        return {"verdict": verdict, "distance": far and round(far, 4), "records": len(pairs)}


def _costs(
    cost: Cost, begin: float, people: Sequence[int], before: tuple[int, int, int] = (0, 0, 0)
) -> Facts:
    """Return what a step took. people: who asked; the others had to be online for them"""
    rounds, client_rounds, sent = before
    return {
        "cpu": round(time.process_time() - begin, 4),
        "rounds": cost.rounds - rounds,
        "client_rounds": cost.client_rounds - client_rounds,
        "online": len(cost.online - set(people)),
        "mb": round((cost.bytes - sent) / 1e6, 4),
    }
