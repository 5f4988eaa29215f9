"""Run cells of recipes on another machine, for example one with a GPU or with many cores.

    python grid.py prepare carried.npz RECIPE...            on the machine with rescind and the data
    python grid.py run carried.npz OUT RECIPE... [--processes 16] [--device cuda] [--commit C]
        [--only CELL] [--without CELL] [--seconds 570]
    python grid.py merge OUT/lines.jsonl...                 back on the first machine

`prepare` packs the datasets of the recipes; `run` needs torch and numpy, and numba to be fast. It
runs every cell at every seed, the longest first, and writes a line per finished run to
OUT/lines.jsonl; `merge` adds them to the results of their recipes. Runs that have a line there are
skipped, so that a call which was stopped (by `--seconds`, too) loses only the runs it was in:
merge, and call again. Recipes with blocks run as streams; learners that train the first block in
the same way share it (`FirstBlocks`), and each line counts the time of the whole run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rescind.core.executor import Executor
from rescind.core.federation import Federation
from rescind.core.model import private_names
from rescind.core.run_state import EarlyStop, RoundResult, RunState
from rescind.core.settings import chosen
from rescind.core.tasks.metrics import Ranking
from rescind.data import Dataset
from rescind.experiments import learning_run as experiment
from rescind.experiments import prepared_data
from rescind.experiments import stream_run as stream_cell
from rescind.experiments.recipe import Cell, Recipe, read
from rescind.experiments.results import append_line
from rescind.experiments.streams import StreamCheckpoints
from rescind.experiments.tables import lines
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import KD
from rescind.methods.continual.reg import Reg
from rescind.methods.continual.spp import SPP

COLUMNS = [f.name for f in fields(Dataset)]
RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def name_of(cell: Cell) -> str:
    """Return the name of the data of a cell, with its filters."""
    return json.dumps({**chosen(cell.data), "name": cell.data.name}, sort_keys=True, default=str)


def prepare(path: Path, recipes: list[Path]) -> None:
    """Pack every dataset of the recipes."""
    packed: dict[str, Any] = {}
    names = list({name_of(c): c for r in recipes for c in read(r).cells}.items())
    for number, (name, cell) in enumerate(names):
        data = prepared_data.prepare(cell.data)
        for column in COLUMNS:
            value = getattr(data, column)
            if value is not None and column != "titles":
                packed[f"{number}/{column}"] = np.asarray(value)
        print(f"{name}: {len(data)} rows, {data.digest}")
    packed["names"] = np.array([name for name, _ in names])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **packed)
    print(f"written: {path} ({path.stat().st_size} bytes)")


def load_dataset(path: Path, name: str) -> Dataset:
    """Load a dataset that `prepare` packed."""
    with np.load(path, allow_pickle=False) as file:
        number = file["names"].tolist().index(name)
        found = {c: file[f"{number}/{c}"] for c in COLUMNS if f"{number}/{c}" in file}
    plain = {c: v.item() if v.ndim == 0 else v for c, v in found.items()}
    return Dataset(**{**{"rating": None}, **plain})


class FirstBlocks(StreamCheckpoints):
    """First blocks of finished streams, for streams whose first block would be the same.

    Only values that `FineTune` trains are taken over; what a learner has besides starts as it does.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[EarlyStop, RunState, dict[str, Any]]] = {}
        self.meter = experiment.Meter()
        self.executor: Executor | None = None
        self.key: Hashable = None

    def of(self, cell: Cell) -> FirstBlocks:
        """Return this store, ready for a run of the cell."""
        self.key, self.meter = first_block(cell), experiment.Meter()
        return self

    def inside(
        self, fed: Federation, until: EarlyStop
    ) -> tuple[Federation, EarlyStop, tuple[Callable[[RoundResult], None], ...]]:
        """Return the end of the first block if it is known; else keep it when it comes."""
        if self.key is None or fed.now.vault.holdings.now != 0:
            return fed, until, ()
        if self.key not in self.known:
            return fed, until, (self._keep,)
        stopped, last, meter = self.known[self.key]
        vars(self.meter).update(vars(experiment.Meter(**deepcopy(meter))))
        best = stopped.best and _taken_over(fed, stopped.best)
        return (
            replace(fed, now=_taken_over(fed, last)),
            replace(stopped, metric=until.metric, best=best),
            (),
        )

    def _keep(self, moment: RoundResult) -> None:
        assert moment.until is not None
        self.known[self.key] = moment.until, moment.now, deepcopy(self.meter.read())


def _taken_over(fed: Federation, trained: RunState) -> RunState:
    """Return the start of a learner with the trained values of another."""
    vault, method = fed.now.vault, fed.method
    names = private_names(method.model) if type(method) in ALIKE else tuple(vault.private)
    private = {**vault.private, **{name: trained.vault.private[name] for name in names}}
    return RunState(trained.state, replace(vault, private=private))


ALIKE = (FineTune, Reg, KD, SPP, F3CRec)
"""Learners whose first block is plain training; the others share it with themselves only."""
LATER = ("carry", "reset_private", "mask")
"""Settings that are first read when a block ends."""


def first_block(cell: Cell) -> Hashable:
    """Return what the first block of a stream depends on; None if it cannot be shared."""
    method = cell.method
    if cell.guards is not None or not isinstance(method, FineTune):
        return None
    kind = FineTune if type(method) in ALIKE else type(method)
    own = tuple((f.name, getattr(method, f.name)) for f in fields(kind) if f.name not in LATER)
    return (kind.__name__, own, name_of(cell), repr(cell.run))


def one(
    cell: Cell, data: Dataset, device: str, firsts: FirstBlocks | None = None
) -> dict[str, Any]:
    """Run one cell and return its line."""
    cell = replace(cell, run=replace(cell.run, device=device, keep_every=None))
    if data.block is not None:
        halts: Any = firsts.of(cell) if firsts else None
        return experiment._line(stream_cell.measured(cell, data, halts=halts)[1])
    settings, meter = cell.run, experiment.Meter()
    fed = experiment.start(cell, data)
    until = EarlyStop(
        metric=Ranking(split="valid", k=settings.k),
        value=settings.measure,
        every=settings.evaluate_every,
        patience=settings.patience,
        restore=settings.restore,
        users=settings.valid_users,
    )
    seen = experiment.Last(until)
    fed = fed.run(settings.rounds, until=until, watch=(meter, seen))
    facts = experiment._facts(cell, data, fed, seen.until, meter)
    return experiment._line(facts)


def missing_cells(recipe: Recipe) -> list[tuple[int, Cell]]:
    """Return the cells without a result line, with their index in the recipe."""
    made: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines(recipe):
        made.setdefault((line["cell"], line["seed"]), []).append(line)
    return [
        (place, cell)
        for place, cell in enumerate(recipe.cells)
        if not any(cell.made(line) for line in made.get((cell.name, cell.run.seed), []))
    ]


Task = tuple[Path, Cell]


def groups(
    recipes: Sequence[Path], wanted: Callable[[str], bool] = lambda _: True
) -> list[list[Task]]:
    """Return the runs to make, those with the same first block together, the longest first."""
    planned: set[tuple[Path, str, int]] = set()
    together: dict[Hashable, list[Task]] = {}
    for path in recipes:
        recipe = read(path)
        for place, cell in missing_cells(recipe):
            run = cell.digest, cell.run.seed
            if not wanted(cell.name) or any((other, *run) in planned for other in recipe.also):
                continue
            planned.add((recipe.results, *run))
            together.setdefault(first_block(cell) or (path, place), []).append((path, cell))
    return sorted(together.values(), key=lambda tasks: -sum(cost(cell) for _, cell in tasks))


def cost(cell: Cell) -> float:
    """Return a rough guess of how long a run takes, to start the longest first."""
    slow = {"ReLoop2": 4.0, "SPP": 1.5}.get(type(cell.method).__name__, 1.0)
    return cell.run.rounds * slow * (8.0 if cell.guards else 1.0)


def work(carried: Path, out: Path, device: str, until: float, todo: Any) -> None:
    """Run groups of cells until there are none or time is up."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    known: dict[str, Dataset] = {}
    while (tasks := todo.get()) is not None:
        firsts = FirstBlocks()
        for path, cell in tasks:
            if time.time() > until:
                return
            label, name = f"{path.parent.name}/{path.stem}", name_of(cell)
            try:
                if name not in known:
                    known[name] = load_dataset(carried, name)
                line = one(cell, known[name], device, firsts)
            except Exception as error:  # a failed cell must not stop the others
                print(f"{label} {cell.name} {cell.run.seed}: {error!r}", flush=True)
                continue
            write_line(out, label, line)
            test, valid = line["test"], line["valid"]
            print(
                f"{label} {cell.name} {cell.run.seed}: valid {valid['NDCG@20']:.4f} "
                f"test {test['HR@20']:.4f} {test['NDCG@20']:.4f} {line['seconds']['cpu']:.0f} s",
                flush=True,
            )


def write_line(out: Path, label: str, line: dict[str, Any]) -> None:
    """Append a line in one call, so that lines of several processes do not mix."""
    text = json.dumps({"recipe": label, "line": line}) + "\n"
    file = os.open(out / "lines.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, text.encode())
    os.close(file)


def merge(found: Sequence[Path], recipes: Path = RECIPES) -> int:
    """Add lines to the results of their recipes; a last line that was cut off is left out."""
    texts = [t for path in found for t in path.read_text("utf-8").splitlines(keepends=True)]
    entries = [json.loads(text) for text in texts if text.endswith("\n")]
    added = 0
    for label in dict.fromkeys(entry["recipe"] for entry in entries):
        recipe = read(recipes / f"{label}.toml")
        missing = {(cell.digest, cell.run.seed) for _, cell in missing_cells(recipe)}
        for line in (entry["line"] for entry in entries if entry["recipe"] == label):
            if (line["digest"], line["seed"]) in missing:
                append_line(recipe.results, line)
                missing.remove((line["digest"], line["seed"]))
                added += 1
    return added


def run(given: argparse.Namespace, out: Path, recipes: list[Path]) -> None:
    """Start the processes, and end them when time is up."""
    import torch.multiprocessing as mp

    mp.set_start_method("spawn")
    out.mkdir(parents=True, exist_ok=True)
    until = time.time() + given.seconds
    plan = groups(
        recipes,
        lambda name: given.only in name and not (given.without and given.without in name),
    )
    todo: Any = mp.Queue()
    for tasks in (*plan, *[None] * given.processes):
        todo.put(tasks)
    print(f"{sum(map(len, plan))} runs in {len(plan)} groups", flush=True)
    args = (given.carried, out, given.device, until, todo)
    workers = [mp.Process(target=work, args=args) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, until - time.time()))
    for worker in workers:
        worker.terminate()
    todo.cancel_join_thread()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["prepare", "run", "merge"])
    parser.add_argument("carried", type=Path)
    parser.add_argument("rest", type=Path, nargs="*")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--without", default="", help="skip cells whose name contains this")
    parser.add_argument("--seconds", type=float, default=1e6, help="end after this time")
    given = parser.parse_args()
    if given.verb == "prepare":
        prepare(given.carried, given.rest)
    elif given.verb == "merge":
        print(f"{merge([given.carried, *given.rest])} lines added")
    else:
        if given.commit:  # a copy has no git history
            os.environ["RESCIND_COMMIT"] = given.commit
        out, *recipes = given.rest
        run(given, out, recipes)


if __name__ == "__main__":
    main()
