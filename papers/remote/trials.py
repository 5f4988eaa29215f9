"""Run unlearning recipes on another machine with a GPU, which needs only torch and numpy.

    python grid.py prepare IN/carried.npz RECIPE...       on the machine with rescind and the data
    python trials.py run IN OUT RECIPE... [--processes 6] [--seconds 540] [--only "ROW;ROW"]

IN/site may hold missing modules, such as a copy of safetensors. Each process takes one seed of one
recipe at a time (rows that keep a log separately), since these rows share trained and retrained
models; rows with shadows are taken one by one. OUT/PAPER.TABLE.jsonl has a line per row, as
`rescind run` writes it; a failed row is printed and skipped, a row that already has a line in the
.jsonl of the recipe is skipped. After --seconds no row is started.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import traceback
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "src"), str(Path(__file__).parent)]


def student() -> types.ModuleType:
    """Return a replacement of scipy.stats with Student's quantile, for the standard audit."""
    import numpy as np

    def ppf(chance: float, freedom: int) -> float:
        """Integrate the density on a fine grid; seven correct digits for the quantiles used."""
        at = np.linspace(0, 60, 6_000_001)
        density = (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
        area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
        beyond = 60 * density[-1] / freedom / (at[1] - at[0])  # the tail falls as x^-(df + 1)
        return float(np.interp((chance - 0.5) * 2, area / (area[-1] + beyond), at))

    stats = types.ModuleType("scipy.stats")
    stats.t = types.SimpleNamespace(ppf=ppf)  # type: ignore[attr-defined]
    return stats


def groups(recipes: list[Path], only: list[str]) -> Iterator[tuple[str, Path, list]]:
    """Yield (name, recipe, cells); one process runs all cells of a group."""
    from grid import missing_cells

    from rescind.experiments.recipe import read

    for path in recipes:
        cells = [c for _, c in missing_cells(read(path)) if c.forget is not None]
        label = {c.name: c.name.split("/", 1)[-1] for c in cells}
        cells = [c for c in cells if not only or label[c.name] in only]
        if only:  # the most important first
            cells.sort(key=lambda c: only.index(label[c.name]))
        logs = [c.forget.learner and (c.forget.learner.logs or c.forget.learner.individual)
                for c in cells]  # fmt: skip
        if all(c.forget.audits == "ulira" for c in cells):  # shadows take minutes per row
            for c in cells:
                name = f"{path.parent.name}.{path.stem}-{c.run.seed}-{label[c.name]}"
                yield name, path, [c]
            continue
        for seed in dict.fromkeys(c.run.seed for c in cells):
            for heavy in (False, True):
                mine = [c for c, log in zip(cells, logs, strict=True)
                        if c.run.seed == seed and bool(log) == heavy]  # fmt: skip
                if mine:
                    name = f"{path.parent.name}.{path.stem}-{seed}-{'logs' if heavy else 'plain'}"
                    yield name, path, mine


def prepare_shared(cache: Any, cells: list, data: Any) -> None:
    """Train what the rows of a seed share, with two processes that claim parts by files."""
    from rescind.audits.verdict import FEWEST
    from rescind.experiments import unlearning_run as trials
    from rescind.forgetting import examine

    plain = replace(cells[0], forget=None)
    cache.home.mkdir(parents=True, exist_ok=True)
    if claimed(cache.home / ".base"):
        base, _ = trials.learned(plain, data, cache)
        (cache.home / "base-is-there").touch()
    else:
        if (logger := cells[0].forget.learner) is not None:
            trials.learned(replace(plain, method=logger), data, cache)
        while not (cache.home / "base-is-there").exists():
            time.sleep(0.5)
        base, _ = trials.learned(plain, data, cache)
    (event,) = trials.events(cells[0], base)
    light = examine._light(base)
    key, kept = examine._key(light, event), cache.home / "retrains"
    seeds = examine.seeds_of(0, FEWEST)
    for seed in seeds:
        if claimed(cache.home / f".retrain-{seed}"):
            examine._retrain(light, event, seed, str(kept), key)
    if claimed(cache.home / ".exact"):
        trials._exact(base, event, cache)
    places = [examine._place(kept, key, seed) for seed in seeds]
    while not all(any(place.glob("round-*.safetensors")) for place in places):
        time.sleep(0.5)


def claimed(path: Path) -> bool:
    """Create a claim file. Return False if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def work(given: argparse.Namespace, began: float) -> None:
    """Run every group that no other process has claimed."""
    if (given.carried / "site").is_dir():
        sys.path.append(str(given.carried / "site"))
    if importlib.util.find_spec("scipy") is None:
        sys.modules["scipy"] = types.ModuleType("scipy")
        sys.modules["scipy.stats"] = student()
    import torch
    from grid import load_dataset, name_of

    from rescind.experiments import learning_run as experiment
    from rescind.experiments import unlearning_run as trials
    from rescind.experiments.results import append_line

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, path, cells in groups(given.recipes, given.only.split(";") if given.only else []):
        if not claimed(given.out / ".claims" / name):
            continue
        home = Path(given.room) / name.rpartition("-")[0]
        cache = trials.TrialCache(home, workers=1)
        data = load_dataset(given.carried / "carried.npz", name_of(cells[0]))
        if cells[0].forget.audits != "none":
            device = replace(cells[0].run, device=given.device)
            prepare_shared(cache, [replace(cells[0], run=device)], data)
            print(f"{name}: prepared after {time.time() - began:.0f} s", flush=True)
        lines = given.out / f"{path.parent.name}.{path.stem}.jsonl"
        for given_cell in cells:
            cell = replace(given_cell, run=replace(given_cell.run, device=given.device))
            if time.time() - began > given.seconds:
                print(f"{name}: out of time before {cell.name}", flush=True)
                break
            start = time.time()
            try:
                facts = trials.run_cell(cell, cache.home / f"now-{os.getpid()}", cache, data).facts
            except Exception:  # a failed row must not stop the others
                print(f"{name} {cell.name}: {traceback.format_exc()[-1500:]}", flush=True)
                continue
            append_line(lines, experiment._line(facts))
            test = {k: round(v, 4) for k, v in facts["metrics"]["test"].items() if "NDCG" in k}
            verdict, took = facts["forget"].get("verdict", ""), time.time() - start
            print(f"{name} {cell.name}: {test} {verdict} {took:.0f} s", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["run"])
    parser.add_argument("carried", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("recipes", type=Path, nargs="+")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument(
        "--only", default="", help="labels of rows, separated by semicolons, in order"
    )
    parser.add_argument(
        "--room", default=f"{gettempdir()}/trials", help="folder of models that rows share"
    )
    given = parser.parse_args()
    if given.commit:  # a copy has no git history
        os.environ["RESCIND_COMMIT"] = given.commit
    import torch.multiprocessing as mp

    mp.set_start_method("spawn")
    workers = [mp.Process(target=work, args=(given, time.time())) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
