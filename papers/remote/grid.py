"""Run cells of recipes on another machine, for example with a GPU; it needs only torch and numpy.

    python grid.py prepare carried.npz RECIPE...            on the machine with rescind and the data
    python grid.py run carried.npz OUT RECIPE... [--processes 6] [--device cuda] [--commit C]
        [--only CELL] [--without CELL]

`prepare` packs the datasets of the recipes. `run` runs every cell at every seed and writes
OUT/PAPER.TABLE.jsonl, a line per run as `rescind run` does; runs that already have a line in the
.jsonl of the recipe are skipped. Append the new lines there. Recipes with blocks run as streams.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rescind.core.run_state import EarlyStop
from rescind.core.settings import chosen
from rescind.core.tasks.metrics import Ranking
from rescind.data import Dataset
from rescind.experiments import learning_run as experiment
from rescind.experiments import stream_run as stream_cell
from rescind.experiments.recipe import Cell, Recipe, read
from rescind.experiments.tables import lines

COLUMNS = [f.name for f in fields(Dataset)]


def name_of(cell: Cell) -> str:
    """Return the name of the data of a cell, with its filters."""
    return json.dumps({**chosen(cell.data), "name": cell.data.name}, sort_keys=True, default=str)


def prepare(path: Path, recipes: list[Path]) -> None:
    """Pack every dataset of the recipes."""
    packed: dict[str, Any] = {}
    names = list({name_of(c): c for r in recipes for c in read(r).cells}.items())
    for number, (name, cell) in enumerate(names):
        data = experiment.prepare(cell.data)
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


def one(cell: Cell, data: Dataset, device: str) -> dict[str, Any]:
    """Run one cell and return its line."""
    cell = replace(cell, run=replace(cell.run, device=device, keep_every=None))
    if data.block is not None:
        return experiment._line(stream_cell.measured(cell, data)[1])
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


def work(path: Path, out: Path, recipes: list[Path], device: str, only: str, without: str) -> None:
    """Run every cell that no other process has claimed."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    todo = [
        (recipe, place, cell)
        for recipe in recipes
        for place, cell in missing_cells(read(recipe))
        if only in cell.name and (not without or without not in cell.name)
    ]
    known: dict[str, Dataset] = {}
    for recipe, place, cell in todo:
        file = out / f"{recipe.parent.name}.{recipe.stem}.jsonl"
        claim = out / ".claims" / f"{recipe.parent.name}.{recipe.stem}-{place}"
        try:
            claim.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        name = name_of(cell)
        try:
            if name not in known:
                known[name] = load_dataset(path, name)
            line = one(cell, known[name], device)
        except Exception as error:  # a failed cell must not stop the others
            print(f"{recipe.stem} {cell.name} {cell.run.seed}: {error!r}", flush=True)
            continue
        with open(file, "a", encoding="utf-8") as out_file:
            out_file.write(json.dumps(line) + "\n")
        test, valid = line["test"], line["valid"]
        print(
            f"{recipe.stem} {cell.name} {cell.run.seed}: valid {valid['NDCG@20']:.4f} "
            f"test {test['HR@20']:.4f} {test['NDCG@20']:.4f} {line['seconds']['wall']:.0f} s",
            flush=True,
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["prepare", "run"])
    parser.add_argument("carried", type=Path)
    parser.add_argument("rest", type=Path, nargs="+")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--without", default="", help="skip cells whose name contains this")
    given = parser.parse_args()
    if given.verb == "prepare":
        prepare(given.carried, given.rest)
        return
    if given.commit:  # a copy has no git history
        os.environ["RESCIND_COMMIT"] = given.commit
    import torch.multiprocessing as mp

    mp.set_start_method("spawn")
    out, *recipes = given.rest
    args = (given.carried, out, recipes, given.device, given.only, given.without)
    workers = [mp.Process(target=work, args=args) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
