"""Recipes that forget, on another machine with a GPU: torch and numpy are enough there.

    python grid.py prepare IN/carried.npz RECIPE...       where rescind and the data are
    python trials.py run IN OUT RECIPE... [--processes 6] [--seconds 540] [--only "ROW;ROW"]

IN/site may hold modules that the machine lacks, such as a copy of safetensors. Each process takes
one seed of one recipe at a time (rows that keep a log apart), since its rows share what was learnt
and retrained; rows with shadows are taken one by one. OUT/PAPER.TABLE.jsonl has a line per row, as
`rescind run` writes it; a row that fails is told and left out, one whose line stands beside the
recipe is not made again. With --seconds no row is begun that late.
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
    """Student's quantile, all that the standard audit wants of scipy."""
    import numpy as np

    def ppf(chance: float, freedom: int) -> float:
        """By the density summed over a fine grid; to seven digits for the quantiles in use."""
        at = np.linspace(0, 60, 6_000_001)
        density = (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
        area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
        beyond = 60 * density[-1] / freedom / (at[1] - at[0])  # the tail falls as x^-(df + 1)
        return float(np.interp((chance - 0.5) * 2, area / (area[-1] + beyond), at))

    stats = types.ModuleType("scipy.stats")
    stats.t = types.SimpleNamespace(ppf=ppf)  # type: ignore[attr-defined]
    return stats


def groups(recipes: list[Path], only: list[str]) -> Iterator[tuple[str, Path, list]]:
    """(name, recipe, cells) that one process does in turn."""
    from grid import unmade

    from rescind.experiments.recipe import read

    for path in recipes:
        cells = [c for _, c in unmade(read(path)) if c.forget is not None]
        label = {c.name: c.name.split("/", 1)[-1] for c in cells}
        cells = [c for c in cells if not only or label[c.name] in only]
        if only:  # the most important first
            cells.sort(key=lambda c: only.index(label[c.name]))
        logs = [c.forget.learner and (c.forget.learner.logs or c.forget.learner.individual)
                for c in cells]  # fmt: skip
        if all(c.forget.audits == "ulira" for c in cells):  # each has minutes of shadows
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


def prepared(room: Any, cells: list, data: Any) -> None:
    """What the rows of a seed share, made by two processes at once: claims say who makes what."""
    from rescind.audits.verdict import FEWEST
    from rescind.experiments import unlearning_run as trials
    from rescind.forgetting import examine

    plain = replace(cells[0], forget=None)
    room.home.mkdir(parents=True, exist_ok=True)
    if claimed(room.home / ".base"):
        base, _ = trials.learned(plain, data, room)
        (room.home / "base-is-there").touch()
    else:
        if (logger := cells[0].forget.learner) is not None:
            trials.learned(replace(plain, method=logger), data, room)
        while not (room.home / "base-is-there").exists():
            time.sleep(0.5)
        base, _ = trials.learned(plain, data, room)
    (event,) = trials.events(cells[0], base)
    light = examine._light(base)
    key, kept = examine._key(light, event), room.home / "retrains"
    seeds = examine.seeds_of(0, FEWEST)
    for seed in seeds:
        if claimed(room.home / f".retrain-{seed}"):
            examine._retrain(light, event, seed, str(kept), key)
    if claimed(room.home / ".exact"):
        trials._exact(base, event, room)
    places = [examine._place(kept, key, seed) for seed in seeds]
    while not all(any(place.glob("round-*.safetensors")) for place in places):
        time.sleep(0.5)


def claimed(path: Path) -> bool:
    """Whether it is ours to do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def work(given: argparse.Namespace, begun: float) -> None:
    """Every group whose turn it is."""
    if (given.carried / "site").is_dir():
        sys.path.append(str(given.carried / "site"))
    if importlib.util.find_spec("scipy") is None:
        sys.modules["scipy"] = types.ModuleType("scipy")
        sys.modules["scipy.stats"] = student()
    import torch
    from grid import carried, name_of

    from rescind.experiments import learning_run as experiment
    from rescind.experiments import unlearning_run as trials
    from rescind.experiments.results import append_line

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, path, cells in groups(given.recipes, given.only.split(";") if given.only else []):
        if not claimed(given.out / ".claims" / name):
            continue
        home = Path(given.room) / name.rpartition("-")[0]
        room = trials.TrialCache(home, workers=1)
        data = carried(given.carried / "carried.npz", name_of(cells[0]))
        if cells[0].forget.audits != "none":
            device = replace(cells[0].run, device=given.device)
            prepared(room, [replace(cells[0], run=device)], data)
            print(f"{name}: prepared after {time.time() - begun:.0f} s", flush=True)
        lines = given.out / f"{path.parent.name}.{path.stem}.jsonl"
        for given_cell in cells:
            cell = replace(given_cell, run=replace(given_cell.run, device=given.device))
            if time.time() - begun > given.seconds:
                print(f"{name}: out of time before {cell.name}", flush=True)
                break
            start = time.time()
            try:
                facts = trials.run_cell(cell, room.home / f"now-{os.getpid()}", room, data).facts
            except Exception:  # a row that fails must not take the others along
                print(f"{name} {cell.name}: {traceback.format_exc()[-1500:]}", flush=True)
                continue
            append_line(lines, experiment._line(facts))
            test = {k: round(v, 4) for k, v in facts["metrics"]["test"].items() if "NDCG" in k}
            told = facts["forget"].get("verdict", ""), time.time() - start
            print(f"{name} {cell.name}: {test} {told[0]} {told[1]:.0f} s", flush=True)


def main() -> None:
    """Read the words and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["run"])
    parser.add_argument("carried", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("recipes", type=Path, nargs="+")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--only", default="", help="labels of rows, with semicolons, in this order")
    parser.add_argument("--room", default=f"{gettempdir()}/trials", help="for what rows share")
    given = parser.parse_args()
    if given.commit:  # the copy that travelled knows no history
        os.environ["RESCIND_COMMIT"] = given.commit
    import torch.multiprocessing as mp

    mp.set_start_method("spawn")
    crew = [mp.Process(target=work, args=(given, time.time())) for _ in range(given.processes)]
    for member in crew:
        member.start()
    for member in crew:
        member.join()


if __name__ == "__main__":
    main()
