"""A cell of a recipe: every setting that decides one result, and the digest that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from rescind.core.guards import Clip, Gaussian, Guard, Laplace, check_guards
from rescind.core.method import Method, Unlearner
from rescind.core.settings import chosen, to_table
from rescind.errors import ConfigError, suggest
from rescind.experiments.recipe_file import SETTINGS, Table
from rescind.privacy.accountant import check_delta, statement

UNNAMED = ("sharing", "guards", "run")
"""Settings whose class says nothing about them."""


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how it is prepared."""

    name: str = "ml-100k"
    variant: str | None = None
    """A published form of the dataset, such as "f3crec"."""
    core: int | None = None
    """Keep users and items with at least so many rows, repeated until nothing changes."""
    min_user: int | None = None
    """Keep users with at least so many rows."""
    split: Literal["given", "random"] = "given"
    """The split the dataset comes with, where it has one; "random": 8:1:1 whatever it has."""
    users: int | None = None
    """Synthetic only: how many users."""
    items: int | None = None
    """Synthetic only: how many items."""
    interactions: int | None = None
    """Synthetic only: about how many interactions."""
    parts: Literal["metis", "louvain"] = "metis"
    """Graphs only: how nodes are dealt out to clients; METIS parts come with the package."""
    clients: int | None = None
    """Graphs only: how many clients; as many as there are parts, and 10 for Louvain's."""


@dataclass(frozen=True)
class SharingSettings:
    """Simulated people who lend records."""

    ratio: tuple[int, ...] = (1, 2, 7)
    """All : part : nothing; FedShare V-A."""
    part: float = 0.3
    """What a partial sharer lends."""


@dataclass(frozen=True)
class GuardSettings:
    """What happens to updates before the server sees them (docs/privacy.md)."""

    clip: float | None = None
    """The largest norm of a client's update."""
    gaussian: float | None = None
    """Noise multiplier: standard deviation over clip. Needs `clip`."""
    laplace: float | None = None
    """Scale of F3CRec's noise on every upload. No differential privacy."""
    delta: float | None = None
    """At which delta epsilon is stated, 1e-5 unless said; keep it below 1 / clients."""
    epsilon: float | None = None
    """Budget: the run stops before the round in which anybody would pass it."""

    def __post_init__(self) -> None:
        for name in ("delta", "epsilon"):
            if getattr(self, name) is not None and self.gaussian is None:
                raise ConfigError(
                    f"guards.{name} belongs to Gaussian noise, but guards.gaussian is not set. "
                    f"Add gaussian and clip, or leave {name} out."
                )
        if self.gaussian is not None and self.clip is None:
            raise ConfigError(
                "guards.gaussian needs guards.clip: without a bound on what one client may change, "
                "no noise gives an epsilon. Add clip, such as clip = 1.0."
            )
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(
                f"guards.epsilon must be a finite number above 0, got {self.epsilon}."
            )
        check_delta(self.at_delta)
        check_guards(self.guards)

    @property
    def at_delta(self) -> float:
        """The delta, 1e-5 where none is given: below 1 / clients for all datasets here."""
        return 1e-5 if self.delta is None else self.delta

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards of the executor, in the order in which they act."""
        found: list[Guard] = []
        if self.clip is not None:
            found.append(Clip(self.clip))
        if self.gaussian is not None and self.clip is not None:
            found.append(Gaussian(self.gaussian, self.clip))
        if self.laplace is not None:
            found.append(Laplace(self.laplace))
        return tuple(found)


@dataclass(frozen=True)
class RunSettings:
    """How long, how often measured, where."""

    seed: int = 0
    rounds: int = 150
    evaluate_every: int = 10
    """Validation after every so many rounds."""
    patience: int | None = None
    """Stop after so many rounds without improvement; none: never."""
    measure: str = "NDCG@20"
    """What validation picks the round by."""
    restore: bool = True
    """Report the best round on validation; false: the last round."""
    k: tuple[int, ...] = (20,)
    """Lengths of the lists that are measured."""
    device: str = "cpu"
    checkpoint_every: int = 10
    keep_every: int | None = 50
    """Keep the model of every so many rounds in the run, to go back to when someone leaves."""
    valid_users: int | None = None
    """Validate on a fixed sample of so many people; the test is always on everybody."""

    def __post_init__(self) -> None:
        counts = ("rounds", "evaluate_every", "checkpoint_every", "keep_every", "valid_users")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"run.{name} must be at least 1, got {value}.")
        least = {f"{m}@{k}" for k in self.k for m in ("HR", "NDCG", "Recall", "Precision", "MRR")}
        least |= {"accuracy", "ROC-AUC"}  # of nodes
        if self.measure not in least:
            raise ConfigError(f"run.measure '{self.measure}': {suggest(self.measure, least)}")


@dataclass(frozen=True)
class ForgetSettings:
    """A request to forget, and who answers it."""

    name: str
    """An unlearner's class; "own": what the method itself does; or one of `CONTROLS`."""
    unlearner: Unlearner | None = None
    """The unlearner, where the name is one."""
    learner: Method | None = None
    """Who learnt, if not the method itself: it learns the same, and keeps what this takes."""
    event: Literal["erase", "unshare", "withdraw"] = "erase"
    draw: float | None = None
    """So large a share of the lenders take back all they lent,"""
    of: Literal["lenders", "keepers"] = "lenders"
    """or of the people who lend nothing, all that their devices train on."""
    client: int | tuple[int, ...] | None = None
    """Who leaves; several: each alone, and the mean is reported."""
    audits: Literal["standard", "ulira", "none"] = "standard"
    """"ulira": the standard audit, and shadows for single records (minutes)."""
    pairs: int = 16
    """Pairs of shadows, for "ulira"."""

    def __post_init__(self) -> None:
        if (self.draw is None) == (self.client is None):
            raise ConfigError(
                "[forget] needs one of draw (a share of the lenders, such as draw = 0.3) and "
                "client (who leaves, such as client = 3)."
            )
        if (self.event == "withdraw") != (self.client is not None):
            raise ConfigError(
                f"forget.event is '{self.event}': a client withdraws (client = 3), and drawn "
                f"lenders erase or unshare (draw = 0.3)."
            )
        if self.of == "keepers" and self.event != "erase":
            raise ConfigError(
                f"forget.of = 'keepers': who lends nothing can erase what their device has, not "
                f"'{self.event}'. Give event = \"erase\"."
            )
        if self.draw is not None and not 0 < self.draw <= 1:
            raise ConfigError(f"forget.draw is above 0 and up to 1, got {self.draw}.")

    @property
    def clients(self) -> tuple[int, ...]:
        """Who leaves, one after another."""
        return (self.client,) if isinstance(self.client, int) else self.client or ()


NO_OP, SHIFT, OTHER_SEED = "no-op", "score shift", "another seed"
CONTROLS = {
    NO_OP: "nothing is deleted: the model before",
    SHIFT: "the same with all scores lowered",
    OTHER_SEED: "a retraining under another seed",
}
"""Answers whose verdict is known in advance."""

IDLE = ("seed", "device", "checkpoint_every", "keep_every")
"""Settings of a run that do not decide its result, or are counted apart."""


@dataclass(frozen=True)
class Cell:
    """One configuration of a recipe, with its seed."""

    name: str
    data: DataSettings
    sharing: SharingSettings | None
    method: Method
    run: RunSettings
    guards: GuardSettings | None = None
    forget: ForgetSettings | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What it is called along each axis."""

    @property
    def configuration(self) -> Table:
        """Everything that decides the result, as plain tables."""
        parts = {name: getattr(self, name) for name in SETTINGS}
        out = {name: to_table(part) for name, part in parts.items() if part is not None}
        for name in out.keys() & set(UNNAMED):
            out[name].pop("name")
        for name in ("unlearner", "learner") if self.forget is not None else ():
            if isinstance(method := out["forget"].pop(name), dict):
                out[name] = method
        return out

    @property
    def digest(self) -> str:
        """A digest of what was chosen, the same for all seeds, devices and checkpoint habits.

        Defaults are left out, so that a new setting does not make old results stale; that a default
        was another one when a result was made is found by `made`.
        """
        parts = {name: getattr(self, name) for name in SETTINGS}
        table = {name: chosen(part) for name, part in parts.items() if part is not None}
        table["data"]["name"] = self.data.name
        for idle in IDLE:
            table["run"].pop(idle, None)
        return "sha256:" + sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> Table:
        """Every setting that decides the result, defaults too: what a result line carries."""
        table = self.configuration
        table["run"] = {k: v for k, v in table["run"].items() if k not in IDLE}
        return table

    @property
    def stated(self) -> Table:
        """What every run.json begins with: which cell, and with which settings."""
        return {
            "cell": self.name,
            "seed": self.run.seed,
            "configuration": self.configuration,
            "digest": self.digest,
            "settings": self.settings,
        }

    def made(self, line: Mapping[str, Any]) -> bool:
        """Whether a result was made with these settings, defaults included.

        A setting that is newer than the result is no difference: it was added with a default that
        does what was done before.
        """
        then = line.get("settings", {})
        now = self.settings
        same = all(
            part in now and all(now[part].get(key, value) == value for key, value in table.items())
            for part, table in then.items()
        )
        return bool(line["digest"] == self.digest and same)

    def promise(self, times: int, clients: int) -> Table:
        """What the guards promise to somebody who took part so many times."""
        given = self.guards or GuardSettings()
        said = statement(given.guards, self.method.individual, times, given.at_delta, clients)
        return {**said, "budget": given.epsilon}

    def with_seed(self, seed: int) -> Cell:
        """The same cell under another seed."""
        return replace(self, run=replace(self.run, seed=seed))
