"""The value of sharing: quality by group, and what one user gains by lending their records.

A gain is counterfactual. For a user who lends, a world is retrained in which only this user lends
nothing; for a user who lends nothing, a world in which only this user lends all. Seed, rounds and
all other users stay the same, and the user's lists are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.params import Params
from rescind.data.simulated_lending import GROUPS, groups_of
from rescind.errors import ConfigError, DataError
from rescind.experiments import counterfactual
from rescind.experiments.counterfactual import UNCHANGED, Worlds, each_person
from rescind.experiments.open_run import open_run
from rescind.storage.provenance import versions

DRAWS = 1000  # bootstrap resamples; the interval ends then vary by about 3 % of its width


@dataclass(frozen=True)
class Interval:
    """A mean over users with a 95 % interval."""

    mean: float
    low: float
    high: float
    people: int


@dataclass(frozen=True)
class Person:
    """One sampled user: quality if they share and if they keep their records."""

    client: int
    user: str
    group: str
    shares: Mapping[str, float]
    keeps: Mapping[str, float]

    def gain(self, metric: str) -> float:
        return self.shares[metric] - self.keeps[metric]


@dataclass(frozen=True)
class Value:
    """The value of sharing in one run."""

    quality: Mapping[str, Mapping[str, Interval]]
    """By group and metric, over all users with held-out items."""
    gain: Mapping[str, Mapping[str, Interval]]
    """By group and metric, over the sampled users."""
    others: Mapping[str, Interval]
    """By metric: change in the same worlds for sampled users whose decision stayed the same."""
    noise: Mapping[str, float]
    """By metric: standard deviation of such a change of one user."""
    people: tuple[Person, ...]
    rounds: int
    reproduced: bool
    """Whether retraining the unchanged world gave the same model bit for bit."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.others)


def bootstrap(values: Tensor, clock: Clock, purpose: str) -> Interval:
    """Compute the mean and a 95 % percentile interval over resampled users. values: [n]"""
    n = len(values)
    if not n:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    means, place = [], torch.arange(n)
    for part in torch.split(torch.arange(DRAWS), max(1, 2**22 // n)):  # 32 MB at a time
        drawn = clock.at(0).integers(f"bootstrap {purpose}", part[:, None], place, n)
        means.append(values[drawn].mean(1))
    ends = torch.quantile(torch.cat(means), torch.tensor([0.025, 0.975], dtype=values.dtype))
    return Interval(float(values.mean()), float(ends[0]), float(ends[1]), n)


def draw_people(fed: Federation, count: int, measured: Tensor) -> dict[str, Tensor]:
    """Draw by group the users with the smallest hashes who can be measured and have records."""
    groups = groups_of(fed.now.vault.holdings)
    able = measured & (fed.now.vault.holdings.lot("own")[1].cpu() > 0) & fed.world.members.cpu()
    out = {}
    for name, code in GROUPS.items():
        ids = ((groups == code) & able).nonzero().squeeze(1)
        order = torch.argsort(fed.clock.at(0).bits("value of sharing", ids), stable=True)
        out[name] = ids[order[:count]]
    return out


def value_of_sharing(
    folder: Path | str,
    users: int = 20,
    processes: int = 1,
    k: int = 20,
    watch: Callable[[int, int], Any] = lambda *_: None,
) -> Value:
    """Measure the value of sharing in a finished run; finished worlds are kept in value.jsonl.

    users: sampled users per group, with one retraining each
    watch: progress callback, called with (finished, total) worlds
    """
    if users < 1 or processes < 1:
        given = f"users={users} and processes={processes}"
        raise ConfigError(f"users and processes must be at least one; got {given}.")
    folder = Path(folder)
    fed = open_run(folder)
    now = each_person(fed, k)
    measured = ~torch.stack(list(now.values())).isnan().any(0)
    drawn = draw_people(fed, users, measured)
    people = [p for ids in drawn.values() for p in ids.tolist()]
    if not people:
        raise DataError(f"no user in {folder} has records to lend and held-out items to measure.")
    worlds = counterfactual.all_worlds(folder, fed, people, k, processes, watch)
    return _summary(fed, now, drawn, worlds)


def _summary(fed: Federation, now: Params, drawn: Params, worlds: Worlds) -> Value:
    groups, clock = groups_of(fed.now.vault.holdings), fed.clock
    people = [_person(fed, c, name, worlds) for name, ids in drawn.items() for c in ids.tolist()]

    def quality(name: str, values: Tensor) -> Interval:
        theirs = values[(groups == GROUPS[name]) & ~values.isnan()]
        return bootstrap(theirs, clock, f"quality {name}")

    def gain(name: str, metric: str) -> Interval:
        gains = [p.gain(metric) for p in people if p.group == name]
        return bootstrap(torch.tensor(gains, dtype=torch.float64), clock, f"gain {name}")

    changes = {m: _others(people, worlds, m) for m in now}
    return Value(
        quality={name: {m: quality(name, values) for m, values in now.items()} for name in GROUPS},
        gain={name: {m: gain(name, m) for m in now} for name in GROUPS},
        others={m: bootstrap(_means(changes[m]), clock, "others") for m in now},
        noise={m: _spread(changes[m]) for m in now},
        people=tuple(people),
        rounds=fed.now.state.round,
        reproduced=worlds[UNCHANGED]["model"] == counterfactual.model_digests(fed),
    )


def _person(fed: Federation, client: int, group: str, worlds: Worlds) -> Person:
    base, other = (worlds[w]["values"][str(client)] for w in (UNCHANGED, client))
    shares, keeps = (other, base) if group == "nothing" else (base, other)
    return Person(client, fed.labels.user_id(client), group, shares, keeps)


def _others(people: list[Person], worlds: Worlds, metric: str) -> list[list[float]]:
    """Return by world the changes of the sampled users whose decision did not change in it.

    The sign is that of a gain: the world with sharing minus the world without.
    """
    base = worlds[UNCHANGED]["values"]
    out = []
    for person in people:
        there, sign = worlds[person.client]["values"], 1 if person.group == "nothing" else -1
        both = [p for p in there if p in base and p != str(person.client)]
        out.append([sign * (there[p][metric] - base[p][metric]) for p in both])
    return [change for change in out if change]


def _means(changes: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([sum(c) / len(c) for c in changes], dtype=torch.float64)


def _spread(changes: Sequence[Sequence[float]]) -> float:
    every = [c for world in changes for c in world]
    return statistics.pstdev(every) if every else float("nan")


def facts_of(value: Value) -> dict[str, Any]:
    """Return the content of value.json."""

    def plain(found: Mapping[str, Interval]) -> dict[str, Any]:
        return {m: vars(interval) for m, interval in found.items()}

    return {
        "interval": f"95 %, percentile bootstrap over people, {DRAWS} draws",
        "quality": {g: plain(v) for g, v in value.quality.items()},
        "gain": {g: plain(v) for g, v in value.gain.items()},
        "others": plain(value.others),
        "noise": dict(value.noise),
        "people": [{n: v for n, v in vars(p).items() if n != "client"} for p in value.people],
        "rounds": value.rounds,
        "reproduced": value.reproduced,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
