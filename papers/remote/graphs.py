"""Run recipes on graphs on another machine, which needs only torch and numpy.

    python graphs.py prepare IN RECIPE...            on the machine with rescind and the graphs
    python graphs.py run IN OUT RECIPE... [--processes 12] [--device cuda] [--commit C]
    python graphs.py time IN OUT                     fifty runs of FedGCV on Cora

`run` writes OUT/PAPER.TABLE.jsonl, a line per cell and seed as `rescind run` does; cells that
already have a line in the .jsonl of the recipe are skipped, and a cell of two recipes is run once.
A process runs some rows of a (data, seed), which share the trained model; all processes share the
retrains. Append the lines to the .jsonl of the recipe. For cells with `audits = "ulira"` use
`papers/remote/shadows.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from grid import missing_cells

from rescind import Federation, Withdraw
from rescind.core.method import Method
from rescind.data import GraphDataset
from rescind.experiments import learning_run as experiment
from rescind.experiments import unlearning_run as trials
from rescind.experiments.cell import Cell
from rescind.experiments.prepared_data import prepare_graph
from rescind.experiments.recipe import read
from rescind.experiments.validation import stopping

Key = tuple[Any, ...]


# -- packed graphs --------------------------------------------------------------------------------


def prepare(folder: Path, recipes: list[Path]) -> None:
    """Pack the graphs of the recipes."""
    from rescind.data.partition import _entries

    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(c.data.name for r in recipes for c in read(r).cells):
        cell = next(c for r in recipes for c in read(r).cells if c.data.name == name)
        graph = prepare_graph(cell.data)
        node, feature, value = _entries(graph.features)
        path = folder / f"{name}.npz"
        np.savez_compressed(
            path,
            edge=graph.edge_index.astype(np.int32),
            y=graph.y.astype(np.int16),
            node=node.astype(np.int32),
            feature=feature.astype(np.int32),
            value=value,
            shape=np.asarray(graph.features.shape),
            classes=graph.num_classes,
            digest=graph.digest,
        )
        print(f"{path}: {len(graph)} nodes, {path.stat().st_size} bytes, {graph.digest[:20]}")


def load_graph(folder: Path, name: str) -> GraphDataset:
    """Load a graph that `prepare` packed, with the digest of the original."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        features = np.zeros(tuple(file["shape"]), dtype=np.float32)
        features[file["node"], file["feature"]] = file["value"]
        y = file["y"].astype(np.int64)
        none = np.zeros(len(y), dtype=np.bool_)
        edge, classes = file["edge"].astype(np.int64), int(file["classes"])
        graph = GraphDataset(name, edge, features, y, none, none, none, classes)
        vars(graph)["digest"] = str(file["digest"])  # the features are the same, only dense
        return graph


# -- shared by the rows of one (data, seed), in memory --------------------------------------------


class Shared:
    """Cache of the trained federations of one process."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.kept = given, dict[Key, Any]()

    def cached(self, key: Key, make: Callable[[], Any]) -> Any:
        """Return the cached value, or compute it."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def learned(self, cell: Cell, method: Method) -> tuple[Federation, dict[str, Any]]:
        """Return a trained federation and the facts of its run."""
        cell = replace(cell, method=method, forget=None)

        def make() -> tuple[Federation, dict[str, Any]]:
            graph = load_graph(self.given.folder, cell.data.name)
            meter = experiment.Meter()
            fed = experiment.start(cell, graph)
            fed = fed.run(cell.run.rounds, until=stopping(cell, fed), watch=(meter,))
            return fed, experiment._facts(cell, graph, fed, None, meter)

        found: tuple[Federation, dict[str, Any]] = self.cached(("learned", cell.digest), make)
        return found


def line_of(shared: Shared, cell: Cell) -> dict[str, Any]:
    """Run one row of a recipe and return its line."""
    base, facts = shared.learned(cell, cell.method)
    if cell.forget is None:
        return experiment._line(facts)
    before = base
    if cell.forget.learner is not None:
        before, facts = shared.learned(cell, cell.forget.learner)
    cache = trials.TrialCache(shared.given.out / ".room", workers=1)  # shared by all processes
    return experiment._line(trials.answered(cell, before, base, facts, cache)[1])


# -- all rows -------------------------------------------------------------------------------------


def units(given: argparse.Namespace) -> Iterator[tuple[str, Path, list[Cell]]]:
    """Yield (name, recipe, cells); one process runs all cells of a unit."""
    device = {"device": given.device, "keep_every": None}
    seen: set[Key] = set()
    for path in given.recipes:
        found = [c for _, c in missing_cells(read(path))]
        cells = [c for c in found if c.forget is None or c.forget.audits == "none"]
        cells = [c for c in cells if not given.data or c.data.name in given.data]
        cells = [c for c in cells if (c.digest, c.run.seed) not in seen]
        seen |= {(c.digest, c.run.seed) for c in cells}
        cells = [replace(c, run=replace(c.run, **device)) for c in cells]
        groups: dict[Key, list[Cell]] = {}
        for cell in cells:
            where = (str(cell.method), cell.run.rounds, cell.data.name, cell.run.seed)
            groups.setdefault(where, []).append(cell)
        most = max(
            (len(c) for c in groups.values()), default=0
        )  # the first rows of all groups come first
        rows = [
            c[i : i + given.rows]
            for i in range(0, most, given.rows)
            for c in groups.values()
            if c[i:]
        ]
        for place, mine in enumerate(rows):
            yield f"run-{path.parent.name}.{path.stem}-{place}", path, mine


def work(given: argparse.Namespace, start: float) -> None:
    """Run every unit that no other process has claimed."""
    if importlib.util.find_spec("scipy") is None:
        from trials import student  # papers/remote/trials.py

        sys.modules["scipy"], sys.modules["scipy.stats"] = types.ModuleType("scipy"), student()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    shared = Shared(given)
    for name, path, cells in units(given):
        try:
            os.close(os.open(given.out / ".claims" / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        shared.kept.clear()
        for cell in cells:
            if time.time() - start > given.seconds:
                print(f"{name}: out of time before {cell.name}", flush=True)
                break
            out = given.out / f"{path.parent.name}.{path.stem}.jsonl"
            written(out, lambda c=cell: line_of(shared, c), f"{name} {cell.name}")


def written(path: Path, make: Callable[[], Any], name: str) -> None:
    """Append a line; print an error instead of stopping the other rows."""
    try:
        line = make()
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except Exception:
        print(f"{name}: {traceback.format_exc(limit=-5)}", flush=True)


def fifty(given: argparse.Namespace, start: float) -> None:
    """Time FedGCV on Cora: per seed, train once and let every client leave."""
    torch.set_num_threads(1)
    cells = [c for c in read(given.recipes[0]).cells if c.name == "cora/FedGCV"]
    for given_cell in cells:
        cell = replace(given_cell, run=replace(given_cell.run, device=given.device))
        try:
            os.close(
                os.open(given.out / ".claims" / f"time-{cell.run.seed}", os.O_CREAT | os.O_EXCL)
            )
        except FileExistsError:
            continue
        assert cell.forget is not None
        assert cell.forget.unlearner is not None
        graph = load_graph(given.folder, "cora")
        fed = experiment.start(cell, graph).run(cell.run.rounds)
        for client in cell.forget.clients:
            cell.forget.unlearner.unlearn(fed, Withdraw(client))
        spent = round(time.time() - start, 1), round(time.process_time(), 1)
        print(f"seed {cell.run.seed}: ten clients left; {spent[0]} s wall, {spent[1]} CPU s of "
              f"this process so far", flush=True)  # fmt: skip


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["prepare", "run", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", type=Path, nargs="+")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    parser.add_argument("--rows", type=int, default=4, help="rows of one (data, seed) in a unit")
    parser.add_argument("--data", nargs="+", default=[], help="only these graphs")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no row after this time")
    given = parser.parse_args()
    if given.verb == "prepare":
        prepare(given.folder, given.rest)
        return
    if given.commit:  # a copy has no git history
        os.environ["RESCIND_COMMIT"] = given.commit
    given.out, given.recipes = given.rest[0], given.rest[1:] or [Path("recipes/fedgcv/table1.toml")]
    (given.out / ".claims").mkdir(parents=True, exist_ok=True)
    import torch.multiprocessing as mp

    start, target = time.time(), fifty if given.verb == "time" else work
    context = mp.get_context("spawn")
    workers = [context.Process(target=target, args=(given, start)) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(
        f"{given.verb}: {time.time() - start:.1f} s on {given.device}, {given.processes} processes"
    )


if __name__ == "__main__":
    main()
