"""Run a cell of a recipe: data, sharing, training, measuring, and everything written down."""

from __future__ import annotations

import json
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

from rescind import params
from rescind.data import Dataset, k_core, load, min_user
from rescind.errors import BoundaryError, DataError
from rescind.executor import InProcess
from rescind.federation import EarlyStop, Federation, Moment
from rescind.recipe import Cell, DataSettings, Recipe
from rescind.sharing import draw_groups, draw_share
from rescind.storage import Checkpoints, resume, save_federation
from rescind.tasks.metrics import Ranking

Watch = Callable[[Moment], Any]


@dataclass
class Meter:
    """Counts what a run moves and spends; goes on counting after a resume."""

    up: int = 0
    down: int = 0
    client_rounds: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    wall: float = 0.0
    cpu: float = 0.0
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def __call__(self, moment: Moment) -> None:
        for total in moment.sums.values():
            self.up += total.up
            self.down += total.down
            self.client_rounds += total.clients
            for reason, count in total.refused.items():
                self.refused[reason] = self.refused.get(reason, 0) + count

    def read(self) -> dict[str, Any]:
        """The counters up to now."""
        return {
            "up": self.up,
            "down": self.down,
            "client_rounds": self.client_rounds,
            "refused": self.refused,
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
    executor = InProcess(device=cell.run.device)
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
        checkpoints.extra = meter.read
    seen = Last(until)
    left = settings.rounds - fed.now.state.round
    trained = fed.run(left, until=until, watch=(meter, seen, checkpoints, *watch))
    facts = _facts(cell, dataset, trained, seen.until, meter)
    save_federation(trained, folder / "model")
    write_facts(folder, facts)
    checkpoints.clear()
    return Result(trained, facts, folder)


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
