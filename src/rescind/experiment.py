"""Run a cell of a recipe: data, sharing, training, measuring, and everything written down."""

from __future__ import annotations

import json
import logging
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from rescind import accountant, params
from rescind.data import Dataset, k_core, load, min_user
from rescind.errors import BoundaryError, DataError
from rescind.executor import InProcess
from rescind.federation import EarlyStop, Federation, Moment
from rescind.recipe import Cell, DataSettings, Recipe
from rescind.sharing import draw_groups, draw_share
from rescind.storage import Checkpoints, resume, save_federation
from rescind.tasks.metrics import Ranking

log = logging.getLogger(__name__)

Watch = Callable[[Moment], Any]


@dataclass
class Meter:
    """Counts what a run moves and spends; goes on counting after a resume."""

    up: int = 0
    down: int = 0
    client_rounds: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    took_part: list[int] = field(default_factory=list)
    """How often each client's update went into a sum."""
    repeated: int = 0
    """Rounds that may have been made twice: everybody may have been in them once more."""
    wall: float = 0.0
    cpu: float = 0.0
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def __call__(self, moment: Moment) -> None:
        for role, total in moment.sums.items():
            if role != "host":  # the server's own clients send nothing
                self.took_part = accountant.count(self.took_part, total.who)
            self.up += total.up
            self.down += total.down
            self.client_rounds += total.clients
            for reason, count in total.refused.items():
                self.refused[reason] = self.refused.get(reason, 0) + count

    def most_often(self, ids: Tensor | None = None) -> int:
        """The most that any client, or any of these, may have taken part."""
        return accountant.most_often(self.took_part, ids) + self.repeated

    def read(self) -> dict[str, Any]:
        """The counters up to now."""
        return {
            "up": self.up,
            "down": self.down,
            "client_rounds": self.client_rounds,
            "refused": self.refused,
            "took_part": self.took_part,
            "repeated": self.repeated,
            "wall": self.wall + time.perf_counter() - self._wall,
            "cpu": self.cpu + time.process_time() - self._cpu,
        }


@dataclass(frozen=True)
class Result:
    """A finished run: the federation and what is written in run.json."""

    fed: Federation
    facts: dict[str, Any]
    folder: Path

    @property
    def metrics(self) -> dict[str, float]:
        """The final metrics on the test set."""
        return dict(self.facts["metrics"]["test"])


def prepare(settings: DataSettings) -> Dataset:
    """Load a dataset and filter it as the recipe says."""
    sizes = {n: getattr(settings, n) for n in ("users", "items", "interactions")}
    given = {n: v for n, v in sizes.items() if v is not None}
    if settings.variant is not None:
        given["variant"] = settings.variant
    dataset = load(settings.name, **given)
    if not isinstance(dataset, Dataset):
        raise BoundaryError(
            f"'{settings.name}' is a graph for node classification; this recipe ranks items. "
            f"Choose one of the interaction datasets (rescind data list)."
        )
    if settings.min_user is not None:
        dataset = min_user(dataset, settings.min_user)
    if settings.core is not None:
        dataset = k_core(dataset, settings.core)
    return dataset.compact() if settings.min_user or settings.core else dataset


def start(cell: Cell, dataset: Dataset) -> Federation:
    """A federation before its first round, with what people lend."""
    guards = cell.guards.guards if cell.guards else ()
    executor = InProcess(device=cell.run.device, guards=guards)
    fed = Federation.start(dataset, cell.method, cell.run.seed, executor)
    if cell.sharing is not None:
        ratio = cell.sharing.ratio
        groups = draw_groups(fed.world.sizes.clients, fed.clock, (ratio[0], ratio[1], ratio[2]))
        holdings = fed.now.vault.holdings
        fed = fed.apply(draw_share(holdings, groups, fed.clock, cell.sharing.part))
    return fed


def run_cell(
    cell: Cell,
    folder: Path,
    again: bool = False,
    watch: tuple[Watch, ...] = (),
    dataset: Dataset | None = None,
) -> Result:
    """Train and measure one cell; writes `folder/run.json` and `folder/model/`.

    again: go on from the newest checkpoint in the folder, if there is one
    """
    dataset = dataset or prepare(cell.data)
    fed = start(cell, dataset)
    settings, meter = cell.run, Meter()
    key = f"{cell.digest}/{settings.seed}/{dataset.digest}"
    until: EarlyStop | None = EarlyStop(
        metric=Ranking(split="valid", k=settings.k),
        value=settings.measure,
        every=settings.evaluate_every,
        patience=settings.patience,
        restore=settings.restore,
    )
    checkpoints = Checkpoints(folder / "checkpoints", settings.checkpoint_every, key, meter.read)
    _prepare_folder(folder, again)
    if not again:
        checkpoints.clear()
    found = resume(checkpoints.folder, key, fed, until) if again else None
    if found is not None:
        fed, until = replace(fed, now=found.now), found.until
        meter = Meter(**found.extra)
        meter.repeated += settings.checkpoint_every * (1 + len(found.skipped))
        checkpoints.extra = meter.read
    seen = Last(until)
    trained, stopped = _train(cell, fed, seen, meter, (meter, seen, checkpoints, *watch))
    facts = _facts(cell, dataset, trained, seen.until, meter)
    facts["privacy"]["stopped"] = stopped
    save_federation(trained, folder / "model")
    write_facts(folder, facts)
    checkpoints.clear()
    return Result(trained, facts, folder)


def _train(
    cell: Cell, fed: Federation, seen: Last, meter: Meter, watch: tuple[Watch, ...]
) -> tuple[Federation, str | None]:
    """The rounds of a cell, or as many as its budget allows and why no more."""
    guards, left = cell.guards, cell.run.rounds - fed.now.state.round
    if guards is None or guards.epsilon is None or guards.gaussian is None:
        return fed.run(left, until=seen.until, watch=watch), None
    most = accountant.rounds_within(guards.gaussian, guards.at_delta, guards.epsilon)
    trained, last = accountant.run_within(
        fed, left, seen.until, watch, lambda ids: meter.most_often(ids) < most
    )
    if last is None:
        return trained, None
    stopped = (
        f"stopped after round {last}: the next would pass the budget of epsilon "
        f"{guards.epsilon:g} at delta {guards.at_delta:g} for somebody. Allow a larger epsilon, "
        f"more noise, or fewer clients a round."
    )
    log.warning(stopped)
    return trained, stopped


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write run.json."""
    params.write_atomically(folder / "run.json", json.dumps(facts, indent=2).encode())


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote, or None if it did not finish."""
    path = folder / "run.json"
    if not path.is_file():
        return None
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}:{error.colno}: not valid JSON. Make the run again."
        ) from None
    return facts


@dataclass
class Last:
    """Remembers the stopping rule as it was after the last round."""

    until: EarlyStop | None

    def __call__(self, moment: Moment) -> None:
        self.until = moment.until


def _prepare_folder(folder: Path, again: bool) -> None:
    """A new run does not mix with what an older one left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the folder {folder}: {error.strerror}. Choose another with --out."
        ) from None
    if not again:
        (folder / "run.json").unlink(missing_ok=True)


def _facts(
    cell: Cell, dataset: Dataset, fed: Federation, until: EarlyStop | None, meter: Meter
) -> dict[str, Any]:
    counted = meter.read()
    state, vault = fed.now.state, fed.now.vault
    return {
        "cell": cell.name,
        "seed": cell.run.seed,
        "configuration": cell.configuration,
        "digest": cell.digest,
        "data": {
            "name": dataset.name,
            "digest": dataset.digest,
            "source": dataset.source,
            "users": len(dataset.users),
            "items": len(dataset.items),
            "rows": len(dataset),
        },
        "shared": len(fed.world.shared),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": until.history[-1][0] if until and until.history else state.round,
        "round": state.round,
        "per_round": [{"round": r, **v} for r, v in until.history] if until else [],
        "metrics": {split: fed.evaluate(split, cell.run.k) for split in ("valid", "test")},
        "seconds": {"wall": counted["wall"], "cpu": counted["cpu"]},
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": {"up": counted["up"], "down": counted["down"]},
        "client_rounds": counted["client_rounds"],
        "refused": counted["refused"],
        "privacy": cell.promise(meter.most_often(), fed.world.sizes.clients),
        "kept_bytes": {
            "server": params.nbytes(state.public) + params.nbytes(state.own) + state.memory.nbytes,
            "devices": vault.nbytes,
        },
        "model": {"public": params.digest(state.public), "private": params.digest(vault.private)},
    }


def versions() -> dict[str, str]:
    """What the result was made with."""
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("rescind", "torch", "numpy"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "not installed"
    out["commit"] = commit()
    return out


def commit() -> str:
    """The commit of the source tree, with a mark if it was changed since; '' outside of one."""
    here = Path(__file__).resolve().parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def append_result(recipe: Recipe, result: Result) -> None:
    """Add one line to the results beside the recipe."""
    facts = result.facts
    line = {
        "cell": facts["cell"],
        "seed": facts["seed"],
        "test": {k: round(v, 6) for k, v in facts["metrics"]["test"].items()},
        "valid": {k: round(v, 6) for k, v in facts["metrics"]["valid"].items()},
        "round": facts["round"],
        "seconds": {k: round(v, 2) for k, v in facts["seconds"].items()},
        "bytes": facts["bytes"],
        "kept_bytes": facts["kept_bytes"],
        "digest": facts["digest"],
        "data": facts["data"]["digest"],
        "versions": facts["versions"],
        "date": facts["date"],
    }
    with open(recipe.results, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
