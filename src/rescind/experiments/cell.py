"""A cell of a recipe: all settings that decide one result, and their digest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from rescind.core.settings import check_positive, chosen, to_table
from rescind.errors import ConfigError, suggest
from rescind.experiments.recipe_shape import SETTINGS, Table
from rescind.privacy.gaussian import DELTA, check_delta
from rescind.storage.provenance import version_of

if TYPE_CHECKING:  # a table of results needs settings, but no torch
    from rescind.core.guards import Guard
    from rescind.core.method import Method

FILTERS = ("min_user", "core")
"""Settings that decide which users and items are in a run at all."""
AT_K = ("HR", "NDCG", "Recall", "Precision", "MRR")
"""Metrics of a list of recommendations, such as HR@20."""
UNNAMED = ("sharing", "guards", "run")
"""Settings that are saved without the name of their class."""


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how it is prepared."""

    name: str = "ml-100k"
    variant: str | None = None
    """A published form of the dataset, such as "f3crec"."""
    core: int | None = None
    """Least rows of a user or item; others are removed until nothing changes."""
    min_user: int | None = None
    """Least rows of a user; other users are removed."""
    split: Literal["given", "random", "last"] = "given"
    """The published split of the dataset, if it has one; "random": always 8:1:1; "last": the task
    of the next item, where the last item of a user is test and the one before it valid."""
    order: bool = False
    """Times become places in each user's history, also where the file has the order alone."""
    users: int | None = None
    """Synthetic only: number of users."""
    items: int | None = None
    """Synthetic only: number of items."""
    interactions: int | None = None
    """Synthetic only: approximate number of interactions."""
    parts: Literal["metis", "louvain", "whole"] = "metis"
    """Graphs only: how nodes are assigned to clients; METIS parts come with the package, and one
    client holds the whole graph."""
    clients: int | None = None
    """Graphs only: number of clients. Default: the number of METIS parts, 10 for Louvain."""

    @property
    def filters(self) -> dict[str, int]:
        """Return the filters that are set, by name."""
        given = {name: getattr(self, name) for name in FILTERS}
        return {name: least for name, least in given.items() if least is not None}


@dataclass(frozen=True)
class SharingSettings:
    """Simulated users who share records."""

    ratio: tuple[int, ...] = (1, 2, 7)
    """All : part : nothing; FedShare V-A."""
    part: float = 0.3
    """Fraction of records that a partial sharer shares."""

    def __post_init__(self) -> None:
        if len(self.ratio) != 3 or min(self.ratio) < 0 or not sum(self.ratio):
            raise ConfigError(
                f"sharing.ratio is {list(self.ratio)}; write three counts, such as [1, 2, 7]."
            )
        if not 0 <= self.part <= 1:
            raise ConfigError(f"sharing.part must be from 0 to 1, got {self.part}.")


@dataclass(frozen=True)
class GuardSettings:
    """How updates are changed before the server sees them (docs/privacy.md)."""

    clip: float | None = None
    """The largest norm of a client's update."""
    gaussian: float | None = None
    """Noise multiplier: standard deviation over clip. Needs `clip`."""
    laplace: float | None = None
    """Scale of F3CRec's noise on every upload. It gives no differential privacy."""
    delta: float | None = None
    """Delta at which epsilon is stated. Default: 1e-5; keep it below 1 / clients."""
    epsilon: float | None = None
    """Budget: the run stops before the round in which a client would exceed it."""

    def __post_init__(self) -> None:
        needs = {"delta": "gaussian", "epsilon": "gaussian", "gaussian": "clip"}
        for name, other in needs.items():
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ConfigError(f"guards.{name} needs guards.{other}. Add it, or leave out both.")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(
                f"guards.epsilon must be a finite number above 0, got {self.epsilon}."
            )
        check_delta(self.at_delta)
        for name, of in (("clip", "Clip.norm"), ("gaussian", "Gaussian.noise"),
                         ("laplace", "Laplace.scale")):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                check_positive(of, value)

    @property
    def none(self) -> bool:
        """Return whether updates are sent as they are."""
        return self.clip is None and self.laplace is None

    @property
    def at_delta(self) -> float:
        return DELTA if self.delta is None else self.delta

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Return the guards of the executor, in the order in which they are applied."""
        from rescind.core.guards import Clip, Gaussian, Laplace

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
    """Length of a run, evaluation and device."""

    seed: int = 0
    rounds: int = 150
    evaluate_every: int = 10
    """Rounds between validations."""
    patience: int | None = None
    """Stop after this number of rounds without improvement; none: never."""
    measure: str = "NDCG@20"
    """Validation metric that selects the best round."""
    restore: bool = True
    """Report the best round on validation; false: the last round."""
    k: tuple[int, ...] = (20,)
    """Lengths of the recommendation lists to evaluate: HR@10 and so on for 10."""
    device: str = "cpu"
    checkpoint_every: int = 10
    keep_every: int | None = 50
    """Rounds between restore points, from which forgetting can rerun."""
    valid_users: int | None = None
    """Size of a fixed sample of users for validation; the test uses all users."""

    def __post_init__(self) -> None:
        counts = ("rounds", "evaluate_every", "checkpoint_every", "keep_every", "valid_users")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"run.{name} must be at least 1, got {value}.")
        if not self.k or min(self.k) < 1:
            raise ConfigError(
                f"run.k is {list(self.k)}; write lengths of lists, such as k = [10, 20]."
            )
        least = {f"{m}@{k}" for k in self.k for m in AT_K}
        least |= {"accuracy", "ROC-AUC"}  # of nodes
        if self.measure not in least:
            hint = suggest(self.measure, least)
            raise ConfigError(f"run.measure '{self.measure}': {hint} Other lengths: [run] k.")


@dataclass(frozen=True)
class ForgetSettings:
    """A request to forget, and the unlearner."""

    name: str
    """Class of the unlearner; "own": the method itself; or one of `CONTROLS`."""
    unlearner: Any = None
    """The `Unlearner`, if the name is one."""
    learner: Any = None
    """A `Method` that also keeps what the unlearner needs. Default: the learner itself."""
    event: Literal["erase", "unshare", "withdraw"] = "erase"
    draw: float | None = None
    """Fraction of the users of `of` who make the request."""
    of: Literal["lenders", "keepers"] = "lenders"
    """"lenders": for all their shared records; "keepers", who share nothing: for all their data."""
    client: int | tuple[int, ...] | None = None
    """The client to remove; several are removed separately, and the mean is reported."""
    audits: Literal["standard", "ulira", "none"] = "standard"
    """"ulira": the standard audit and U-LiRA for single records (minutes)."""
    pairs: int = 16
    """Pairs of shadow models for "ulira"."""

    def __post_init__(self) -> None:
        leaves = self.event == "withdraw"
        if leaves != (self.client is not None) or leaves == (self.draw is not None):
            raise ConfigError(
                f"[forget] event = '{self.event}': give client = 3 with 'withdraw', and draw = 0.3 "
                f"with 'erase' or 'unshare'."
            )
        if self.of == "keepers" and self.event != "erase":
            raise ConfigError("forget.of = 'keepers', who share nothing, needs event = 'erase'.")
        if self.draw is not None and not 0 < self.draw <= 1:
            raise ConfigError(f"forget.draw must be above 0 and at most 1, got {self.draw}.")

    @property
    def clients(self) -> tuple[int, ...]:
        return (self.client,) if isinstance(self.client, int) else self.client or ()


NO_OP, SHIFT, OTHER_SEED = "no-op", "score shift", "another seed"
CONTROLS = {
    NO_OP: "nothing is deleted: the model before",
    SHIFT: "the same with all scores lowered",
    OTHER_SEED: "a retraining under another seed",
}
"""Controls: answers whose verdict is known in advance."""

IDLE = ("seed", "device", "checkpoint_every", "keep_every")
"""Settings of a run that are not part of its digest."""


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
    """Its label on each axis of the recipe."""

    @property
    def configuration(self) -> Table:
        """Return everything that decides the result, as plain tables."""
        parts = {name: getattr(self, name) for name in SETTINGS}
        out = {name: to_table(part) for name, part in parts.items() if part is not None}
        for name in out.keys() & set(UNNAMED):
            out[name].pop("name")
        for name in ("unlearner", "learner") if self.forget is not None else ():
            if isinstance(method := out["forget"].pop(name), dict):
                out[name] = method
        return out

    @cached_property
    def digest(self) -> str:
        """Return a digest of the chosen settings, the same for all seeds and devices.

        Defaults are left out, so that a new setting keeps old results valid. `made` finds results
        of other defaults.
        """
        parts = {name: getattr(self, name) for name in SETTINGS}
        table = {name: chosen(part) for name, part in parts.items() if part is not None}
        table["data"]["name"] = self.data.name
        for name in IDLE:
            table["run"].pop(name, None)
        return "sha256:" + sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> Table:
        """Return all settings that decide the result, with defaults, for a line of results."""
        table = self.configuration
        table["run"] = {k: v for k, v in table["run"].items() if k not in IDLE}
        return table

    @property
    def stated(self) -> Table:
        """Return the first part of run.json: the cell and its settings."""
        return {
            "cell": self.name,
            "seed": self.run.seed,
            "configuration": self.configuration,
            "digest": self.digest,
            "settings": self.settings,
        }

    @cached_property
    def code(self) -> dict[str, str]:
        """Return the files and digests of its methods that are outside rescind, by class."""
        forget = (self.forget.learner, self.forget.unlearner) if self.forget else ()
        return version_of(*(one for one in (self.method, *forget) if one is not None))

    def as_used(self, method: Method) -> Table:
        """Return the configuration of run.json with the method that was used in the end.

        It differs if the method chose another one for the data (`Method.for_items`).
        """
        return {"configuration": replace(self, method=method).configuration}

    def made(self, line: Mapping[str, Any]) -> bool:
        """Return whether a result was made with these settings, including defaults.

        Settings that are newer than the result are ignored: their defaults keep the old behaviour.
        """
        if line["digest"] != self.digest:
            return False
        now = self._settings
        return all(
            part in now and all(now[part].get(key, value) == value for key, value in table.items())
            for part, table in line.get("settings", {}).items()
        )

    def same_code(self, line: Mapping[str, Any]) -> bool:
        """Return whether a result was made by its methods' files as they are now."""
        made = line.get("versions") or {}
        return all(
            made.get(name, code).endswith(code.rpartition(" ")[2])
            for name, code in self.code.items()
        )

    @cached_property
    def _settings(self) -> Table:
        """Return the settings, to read only: a table compares them with thousands of lines."""
        return self.settings

    def promise(self, times: int, clients: int) -> Table:
        """Return the privacy of a client that took part this number of times."""
        from rescind.privacy.accountant import statement

        given = self.guards or GuardSettings()
        privacy = statement(given.guards, self.method.individual, times, given.at_delta, clients)
        return {**privacy, "budget": given.epsilon}

    def with_seed(self, seed: int) -> Cell:
        return replace(self, run=replace(self.run, seed=seed))
