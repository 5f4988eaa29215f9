"""How far a method is from never-there: digests where they are equal, else an audit with controls.

The audit asks how high a method ranks forgotten items of their former owners. The answer is
compared with lives of the same method under other seeds: some with everything (the no-op), some
without the forgotten records (never-there). The no-op must be told apart, else the audit has no
power. There is no fixed threshold: the interval comes from the never-there lives.

Seeds move ranks, some more than others, and many together. Lives of one kind differ among
themselves by such moves alone: each rank is divided by its own, and what they have in common is
taken out before anything is compared. Without this the no-op could not be told apart in one block
of twelve on ML-100K.

How many lives that takes depends on the data: lives are added until the no-op is told apart. Only
the no-op decides, so the method under audit cannot choose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rescind.audits.case import PerPerson
from rescind.audits.verdict import Measure, compare, resample
from rescind.core.clock import Clock
from rescind.data.arrays import Ints
from rescind.life.entry import Arrival, Entry
from rescind.life.ledger import Ledger, Pair

WITH = 8
"""Lives with the records, under other seeds; so many more are added at a time."""
NEVER = 12
"""Lives without the records: what these change, and how far apart such lives are by chance."""
TIMES = 4
"""At most so many times as many lives; if the no-op is not told apart then, it is POWERLESS."""
SHARE_OF_NOISE = 4
"""Of n records, ranks lose at most n / 4 directions of chance, so that enough is left to see."""
PEOPLE = 300
"""Most people whose records are asked about."""
OTHER_SEEDS = 7919
"""Added to the seed of a run, times 1, 2, ...: seeds of the auditor's lives."""
Make = Callable[[int], Entry]
Floats = NDArray[np.float64]
ANSWERS: dict[bytes, Floats] = {}
"""What lives answered, kept for other rows: no-op, score shift and fine-tuning differ in how they
forget; without requests they live the same life."""
MOST_ANSWERS = 20_000
"""Kept at most; then all are dropped."""


def key_of(*parts: str | int | bytes | NDArray[Any]) -> bytes:
    """Return a key that no other parts have."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            state.update(f"array {part.dtype} {part.shape} ".encode())
            state.update(np.ascontiguousarray(part).tobytes())
        else:
            state.update(f"{part!r} ".encode())
    return state.digest()


@dataclass(frozen=True)
class Probe:
    """Records to ask about, and a history of each person that no method was trained on."""

    pairs: tuple[Pair, ...]
    users: Ints
    histories: tuple[tuple[Ints, Ints], ...]
    person: Ints
    """[n] position of each record's person in `users`."""
    item: Ints

    @classmethod
    def of(cls, pairs: Sequence[Pair], ledger: Ledger, clock: Clock) -> Probe | None:
        """Return the probe of some forgotten records; None if nobody of them has a history."""
        people = sorted({user for user, _ in pairs if ledger.probes.get(user)})
        if len(people) > PEOPLE:
            order = torch.argsort(clock.bits("life probe", torch.tensor(people)), stable=True)
            people = sorted(people[n] for n in order[:PEOPLE].tolist())
        place = {user: n for n, user in enumerate(people)}
        asked = tuple(pair for pair in pairs if pair[0] in place)
        if not asked:
            return None
        histories = tuple(_columns(ledger.probes[user]) for user in people)
        person = np.array([place[user] for user, _ in asked], dtype=np.int64)
        item = np.array([item for _, item in asked], dtype=np.int64)
        return cls(asked, np.array(people, dtype=np.int64), histories, person, item)

    @cached_property
    def key(self) -> bytes:
        """What the answer of a life depends on."""
        histories = (column for history in self.histories for column in history)
        return key_of(self.users, self.person, self.item, *histories)

    def ranks(self, entry: Entry) -> Floats:
        """Return the share of items that are scored below each record's item; ties count half. [n]

        Shifting or scaling all scores changes nothing.
        """
        scores = entry.scores(self.users, self.histories)
        return ranks(scores, self.person, self.item)


def _columns(history: Mapping[int, int]) -> tuple[Ints, Ints]:
    items = sorted(history)
    times = [history[item] for item in items]
    return np.array(items, dtype=np.int64), np.array(times, dtype=np.int64)


def ranks(scores: NDArray[Any], person: Ints, item: Ints) -> Floats:
    """Return the share of a person's scores below that of an item. scores: [people, items]"""
    ordered = np.sort(scores, axis=1)
    out = np.zeros(len(item))
    for n in range(len(scores)):
        mine = np.flatnonzero(person == n)
        values = scores[n, item[mine]]
        below = np.searchsorted(ordered[n], values, "left")
        up_to = np.searchsorted(ordered[n], values, "right")
        out[mine] = (below + up_to) / 2 / scores.shape[1]
    return out


@dataclass(frozen=True)
class Verdict:
    """PASS, FAIL, or POWERLESS: even the no-op cannot be told from never-there."""

    verdict: str
    left: float | None = None
    """Share of the records' influence that is still there: about 1 for the no-op, 0 for none."""
    low: float | None = None
    high: float | None = None
    """95 % interval of `left`."""
    never: float | None = None
    """The same for never-there lives, on average."""
    no_op: float | None = None
    records: int = 0
    lives: int | None = None
    """Lives of the auditor that it took, where the first were too few."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return the verdict for a result line."""
        made = {n: round(v, 4) if isinstance(v, float) else v for n, v in vars(self).items()}
        return {n: v for n, v in made.items() if v is not None}


class Auditor:
    """Lives of the same method, with and without what was forgotten, made when they are needed."""

    def __init__(
        self, make: Make, seed: int, spare: Make | None = None, probe: Callable[..., Any] = Probe.of
    ) -> None:
        self.make, self.spare, self.probe = make, spare or make, probe
        self.seed, self.clock = seed, Clock(seed)
        self.told: list[Arrival] = []
        """Everything that ever arrived, as it arrived."""
        self._lives: dict[tuple[str, int], Entry] = {}
        self._rest: list[Arrival] | None = None
        """What remains of what arrived, block by block."""
        self._keys: dict[str, bytes] = {}
        """By kind of life: what other rows may have in common with it."""

    def arrived(self, arrival: Arrival) -> None:
        self.told.append(arrival)
        self._lives.clear()
        self._keys.clear()
        self._rest = None

    def changed(self) -> None:
        """Say that something was forgotten: lives without it must be lived anew."""
        self._lives = {key: life for key, life in self._lives.items() if key[0] == "with"}
        self._keys.pop("without", None)
        self._rest = None

    def with_everything(self, number: int = 0) -> Entry:
        """Return a life in which nobody asked for anything. number: 0 has the seed of the run"""
        return self._life("with", number, self.told)

    def never_there(self, ledger: Ledger, number: int = 0) -> Entry:
        """Return a life without the forgotten records."""
        return self._life("without", number, self._what_remains(ledger))

    def _what_remains(self, ledger: Ledger) -> list[Arrival]:
        if self._rest is None:
            self._rest = ledger.blocks()
        return self._rest

    def _life(self, kind: str, number: int, arrivals: Sequence[Arrival]) -> Entry:
        key = (kind, number)
        if key not in self._lives:
            make = self.spare if number else self.make
            life = make(self.seed + number * OTHER_SEEDS)
            life.relive(arrivals)
            self._lives[key] = life
        return self._lives[key]

    def distance(self, entry: Entry, pairs: Sequence[Pair], ledger: Ledger) -> float | None:
        """Return |ranks - never-there| / |no-op - never-there|; None if the no-op is the same."""
        probe = self.probe(pairs, ledger, self.clock)
        if probe is None:
            return None
        never = probe.ranks(self.never_there(ledger))
        far = float(np.linalg.norm(probe.ranks(self.with_everything()) - never))
        return float(np.linalg.norm(probe.ranks(entry) - never)) / far if far else None

    def judge(self, entry: Entry, pairs: Sequence[Pair], ledger: Ledger) -> Verdict:
        """Judge what is left of some forgotten records."""
        probe = self.probe(pairs, ledger, self.clock)
        if probe is None:
            return Verdict("POWERLESS")
        told, never = list[Floats](), list[Floats]()
        for _ in range(TIMES):
            told += self._answers(probe, len(told), WITH, None)
            never += self._answers(probe, len(never), NEVER, ledger)
            verdict = self._compared(entry, probe, np.array(told), np.array(never))
            if verdict.verdict != "POWERLESS" or verdict.left is None:  # records that move nothing
                break
        return verdict

    def _answers(self, probe: Probe, done: int, count: int, ledger: Ledger | None) -> list[Floats]:
        """Return ranks of the next lives under other seeds. ledger: without what it has forgotten

        Lives that other rows have lived are not lived again. done: lives that have answered
        """
        kind = "with" if ledger is None else "without"
        if kind not in self._keys:
            arrivals = self.told if ledger is None else self._what_remains(ledger)
            self._keys[kind] = self.spare(self.seed).life(arrivals)
        known = self._keys[kind]

        def answer(number: int) -> Floats:
            if ledger is None:
                return probe.ranks(self.with_everything(number))
            return probe.ranks(self.never_there(ledger, number))

        def kept(number: int) -> Floats:
            if not known:
                return answer(number)
            key = key_of(known, probe.key, self.seed + number * OTHER_SEEDS)
            if key not in ANSWERS:
                if len(ANSWERS) >= MOST_ANSWERS:
                    ANSWERS.clear()
                ANSWERS[key] = answer(number)
            return ANSWERS[key]

        return [kept(n + 1) for n in range(done, done + count)]

    def _compared(self, entry: Entry, probe: Probe, told: Floats, never: Floats) -> Verdict:
        """Compare an entry and the no-op with never-there. told, never: [lives, n] ranks"""
        if not (told.mean(0) - never.mean(0)).any():
            return Verdict("POWERLESS", records=len(probe.item))
        counts = resample(len(probe.users), self.clock, f"life {len(probe.users)}")

        def influence(life: Floats, others: Floats = never) -> Measure:
            return _influence(probe, life, told, others).measure(counts)

        # A never-there life is measured by the others, as the entry is measured by all of them.
        chance = [influence(life, np.delete(never, n, 0)) for n, life in enumerate(never)]
        mine, no_op = (
            compare(influence(probe.ranks(e)), chance) for e in (entry, self.with_everything())
        )
        apart, seen = (not d.low <= d.reference <= d.high for d in (mine, no_op))
        verdict = "FAIL" if apart else "PASS"
        return Verdict(
            verdict if seen else "POWERLESS",
            mine.value, mine.low, mine.high, mine.reference, no_op.value, len(probe.item),
            lives if (lives := len(told) + len(never)) > WITH + NEVER else None,
        )  # fmt: skip


def _influence(probe: Probe, life: Floats, told: Floats, never: Floats) -> PerPerson:
    """Return how far ranks are moved the way that the records move them, in units of the no-op.

    life: [n] ranks    told, never: [lives, n] ranks of lives with and without the records
    """
    centre = never.mean(0)
    apart = np.concatenate([told - told.mean(0), never - centre])
    scale = _scale(apart, probe.person)
    noise = _together(apart * scale)
    towards, moved = (
        x - noise.T @ (noise @ x)
        for x in ((told.mean(0) - centre) * scale, (life - centre) * scale)
    )
    weight, part = (_by_person(probe, towards * x) for x in (towards, moved))
    value = torch.where(weight > 0, part / weight.clamp(min=1e-30), torch.zeros_like(part))
    return PerPerson(value, weight)


def _scale(apart: Floats, person: Ints) -> Floats:
    """Return 1 / the spread of each rank by chance, shrunk to that of its person. [n]

    apart: [lives, n] differences from the mean of their kind
    """
    spread = (apart**2).mean(0)
    mine = np.bincount(person, weights=spread) / np.maximum(np.bincount(person), 1)
    usual = spread + mine[person]
    return 1 / np.sqrt(np.where(usual > 0, usual, 1.0))


def _together(apart: Floats) -> Floats:
    """Return the directions in which lives of one kind differ, orthonormal. [k, n]

    From the products of lives with each other: lives are few, records are many.
    """
    squares, places = np.linalg.eigh(apart @ apart.T)
    sizes = np.sqrt(np.maximum(squares, 0))[::-1]
    real = min(int((sizes > 1e-6 * sizes[0]).sum()), apart.shape[1] // SHARE_OF_NOISE)
    directions = (places[:, ::-1][:, :real] / sizes[:real]).T @ apart
    return np.asarray(directions)


def _by_person(probe: Probe, values: Floats) -> Tensor:
    summed = np.bincount(probe.person, weights=values, minlength=len(probe.users))
    return torch.from_numpy(summed)
