"""A recipe is one table: what is run, along which axes, and the paper's numbers beside it.

    title = "..."
    [data]     name = "ml-1m"                      what `rescind data` knows; more keys below
    [sharing]  ratio = [1, 2, 7]  part = 0.3       optional: simulated people lend records
    [method]   name = "FedAvg"  negatives = 4      fields of the class, one to one
    [method.model]  name = "LightGCN"
    [guards]   clip = 1.0  gaussian = 0.8          optional: fields of `GuardSettings`
    [run]      rounds = 150                        fields of `RunSettings`
    [axes]     data = ["ml-100k", "ml-1m"]         each value changes its table for one cell
               method = ["Popularity", { label = "FedAvg, 4", name = "FedAvg", negatives = 4 }]
               seed = [0, 1, 2]                    a value may carry `run = { rounds = 1 }` too
    [paper."ml-1m/FedAvg, 4"]  "HR@20" = 0.4656    published numbers, by cell
    [plot]     x = "method.negatives"              optional: the setting that is swept

A cell is named by its labels along the axes other than seed, joined by "/".
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from rescind.accountant import check_delta, statement
from rescind.errors import ConfigError, suggest
from rescind.guards import Clip, Gaussian, Guard, Laplace, check_guards
from rescind.method import Method
from rescind.settings import checked, chosen, fields_of, find, from_table, to_table
from rescind.storage import METHODS, MODELS

SETTINGS = ("data", "sharing", "method", "guards", "run")
TABLES = (*SETTINGS, "axes", "paper", "plot")
WORDS = ("title", "source", "notes")
AXES = ("data", "method", "model", "sharing", "guards", "seed")

Table = dict[str, Any]


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
        if self.measure not in least:
            raise ConfigError(f"run.measure '{self.measure}': {suggest(self.measure, least)}")


@dataclass(frozen=True)
class PlotSettings:
    """How `rescind table --plot` draws a recipe that sweeps one setting."""

    x: str
    """The swept setting, such as "method.contrast"; the lines are the other axes."""
    across: str | None = None
    """The words below the figure; the setting unless given."""


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
    labels: Mapping[str, str] = field(default_factory=dict)
    """What it is called along each axis."""

    @property
    def configuration(self) -> Table:
        """Everything that decides the result, as plain tables."""
        parts = {name: getattr(self, name) for name in SETTINGS}
        out = {name: to_table(part) for name, part in parts.items() if part is not None}
        for name in out.keys() - {"data", "method"}:  # theirs say which, the others' nothing
            out[name].pop("name")
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


@dataclass(frozen=True)
class Recipe:
    """A read recipe: its cells and the numbers they are held against."""

    path: Path
    title: str
    source: str
    names: tuple[str, ...]
    """The names of its cells, in order."""
    cells: tuple[Cell, ...]
    """All cells (or the one that was read) at every seed of the recipe."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    plot: PlotSettings | None = None
    changed: bool = False
    """Settings other than the seed were overridden, so results do not belong to its table."""

    @property
    def results(self) -> Path:
        """Where the results of its runs are kept, one line each."""
        return self.path.with_suffix(".jsonl")

    def choose(self, name: str | None, seeds: Sequence[int] | None = None) -> tuple[Cell, ...]:
        """The cells of one name (or all), at the recipe's seeds or the given ones."""
        if name is not None and name not in self.names:
            raise ConfigError(f"{self.path.name} has no cell '{name}'; {suggest(name, self.names)}")
        cells = [c for c in self.cells if name is None or c.name == name]
        if seeds is None:
            return tuple(cells)
        firsts = {c.name: c for c in reversed(cells)}
        order = [firsts[n] for n in self.names if n in firsts]
        return tuple(cell.with_seed(seed) for cell in order for seed in seeds)


def locate(name: str) -> Path:
    """The file of a recipe given by path, or by its name under `recipes/` (paper/table)."""
    given = Path(name)
    tried = [given, given.with_suffix(".toml"), Path("recipes") / f"{name}.toml"]
    for path in tried:
        if path.is_file() and path.suffix == ".toml":
            return path
    known = sorted(
        str(p.relative_to("recipes").with_suffix("")) for p in Path("recipes").glob("*/*.toml")
    )
    raise ConfigError(
        f"there is no recipe '{name}' (looked for {', '.join(map(str, tried))}). "
        f"{suggest(name, known)}"
    )


def read(path: Path, changes: Sequence[str] = (), only: str | None = None) -> Recipe:
    """Read a recipe and expand its axes; `changes` are "key=value" overrides.

    only: build this cell alone, so that a change need not fit the others
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Mend that line.") from None
    for key in table:
        if key not in TABLES + WORDS:
            raise ConfigError(f"{path}: unknown key '{key}'; {suggest(key, TABLES + WORDS)}")
    axes = dict(table.get("axes", {}))
    settled = [_change(axes, change) for change in changes]
    names, cells = _cells(path, table, axes, [c for c in settled if c is not None], only)
    return Recipe(
        path=path,
        title=str(table.get("title", path.stem)),
        source=str(table.get("source", "")),
        names=tuple(names),
        cells=tuple(cells),
        paper=table.get("paper", {}),
        plot=_settings(PlotSettings, table["plot"]) if "plot" in table else None,
        changed=any(change is not None for change in settled),
    )


def _change(axes: Table, change: str) -> tuple[list[str], Any] | None:
    """Read one "key=value" as (path of keys, value); None for the seed, which is an axis.

    An axis of the same name ("data", "method", "model") is replaced.
    """
    key, sign, text = change.partition("=")
    if not sign:
        raise ConfigError(f"--set wants key=value, got '{change}'. Example: --set run.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    key = key.strip()
    if key in ("seed", "run.seed"):
        axes["seed"] = [value]
        return None
    if key in AXES:
        axes.pop(key, None)
        key = {"data": "data.name", "method": "method.name", "model": "method.model"}.get(key, key)
    parts = key.split(".")
    if parts[0] not in SETTINGS or len(parts) < 2:
        allowed = [*AXES, "method.model.<field>", *(f"{name}.<field>" for name in SETTINGS)]
        raise ConfigError(f"--set cannot change '{key}'; {suggest(key, allowed)}")
    return parts, value


def _write(tables: Table, parts: list[str], value: Any) -> None:
    """Set one setting in the tables of a cell."""
    place = tables
    for part in parts[:-1]:
        inside = place.setdefault(part, {})
        if isinstance(inside, str):
            inside = place[part] = {"name": inside}
        place = inside
    place[parts[-1]] = value


def _cells(
    path: Path,
    table: Table,
    axes: Table,
    changes: Sequence[tuple[list[str], Any]],
    only: str | None,
) -> tuple[list[str], list[Cell]]:
    """The names of all cells, and the cells (or the one asked for) at every seed."""
    for axis in axes:
        if axis not in AXES:
            raise ConfigError(f"{path}: unknown axis '{axis}'; {suggest(axis, AXES)}")
    seeds = axes.pop("seed", [table.get("run", {}).get("seed", 0)])
    order = [axis for axis in AXES if axis in axes]
    names, cells = [], []
    for values in itertools.product(*[axes[axis] for axis in order]):
        tables: Table = json.loads(json.dumps({k: table.get(k, {}) for k in SETTINGS}))
        if "sharing" not in table:
            tables.pop("sharing")
        labels = {a: _place(tables, a, v) for a, v in zip(order, values, strict=True)}
        names.append("/".join(labels.values()) or path.stem)
        for parts, value in changes:  # what is asked for on the command line has the last word
            _write(tables, parts, value)
        if only in (None, names[-1]):
            cells += [_cell(path, names[-1], tables, seed, labels) for seed in seeds]
    return list(dict.fromkeys(names)), cells


def _place(tables: Table, axis: str, value: Any) -> str:
    """Write one value of an axis into its table; return its label."""
    change = dict(value) if isinstance(value, Mapping) else {"name": value}
    label = str(change.pop("label", change.get("name", value)))
    for other in ("run", "sharing"):  # a ceiling is trained for one round, or sees everything
        if other in change and other != axis:
            tables.setdefault(other, {}).update(change.pop(other))
    if axis == "model":
        method = tables.setdefault("method", {})
        inside = method.get("model", {})
        inside = {"name": inside} if isinstance(inside, str) else inside
        # Another model does not take the fields of the one it replaces.
        method["model"] = change if change.get("name") != inside.get("name") else inside | change
    else:
        tables.setdefault(axis, {}).update(change)
    return label


def _cell(path: Path, name: str, tables: Table, seed: Any, labels: Mapping[str, str]) -> Cell:
    try:
        method = dict(tables.get("method", {}))
        run = {**tables.get("run", {}), "seed": seed}
        data, sharing = tables.get("data", {}), tables.get("sharing")
        guards = _settings(GuardSettings, tables.get("guards", {}))
        return Cell(
            name=name,
            data=_settings(DataSettings, data),
            sharing=None if sharing is None else _settings(SharingSettings, sharing),
            method=from_table(
                find(*METHODS, str(method.get("name", "FedAvg"))), method, {"model": MODELS}
            ),
            run=_settings(RunSettings, run),
            guards=guards if guards.guards else None,
            labels=labels,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}, cell {name}: {error}") from None


def _settings(cls: type, table: Mapping[str, Any]) -> Any:
    """Build settings; unlike a method's, a "name" here is a field (the dataset's)."""
    known = fields_of(cls)
    for key in table:
        if key not in known:
            what = cls.__name__.removesuffix("Settings").lower()
            what = "guards" if cls is GuardSettings else what
            raise ConfigError(f"[{what}] has no field '{key}'; {suggest(key, known)}")
    if cls is PlotSettings and "x" not in table:
        raise ConfigError('[plot] needs x, the setting that is swept: x = "method.negatives".')
    return cls(**{k: checked(v, known[k], f"{cls.__name__}.{k}") for k, v in table.items()})
