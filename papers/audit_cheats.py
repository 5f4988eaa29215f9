"""Audit cheats and true retrainings over fresh seeds: `python papers/audit_cheats.py RESULTS`.

For each dataset and seed a federation learns with FedAvg, 30 % of its users erase all they have,
and each subject answers the request: a true retraining (`retrain`), the cheats of
tests/helpers/cheats.py, and deletion alone for single people (`one person`). The goal: a cheat
never PASSes, a retraining never FAILs and is INCONCLUSIVE at most once in ten seeds.

One JSON line per dataset, seed and subject is appended to RESULTS; lines that are there are not
measured again. `--table` prints the verdicts in RESULTS, as docs/results/audit-power.md shows them.
It needs torch and numpy. With `--prepare FOLDER` the datasets are written as npz files (this needs
pyarrow), and `--data FOLDER` reads them on a machine without it. Without numba the plain PyTorch
form is used, without scipy a numerical Student quantile.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers")]
if find_spec("rescind") is None:
    sys.path[:0] = [str(ROOT / "src")]

DATASETS = ("ml-100k", "ml-1m", "amazon-video-games-2018-5core")
ROUNDS = {"ml-100k": 60, "ml-1m": 200, "amazon-video-games-2018-5core": 100}
"""Short, and deletion alone is clearly seen."""
REGRET = 0.3
RETRAIN, ONE = "retrain", "one person"


def without_scipy() -> None:
    """Stand in for the two quantiles of scipy that a verdict needs."""

    def student(q: float, freedom: int) -> float:
        x = torch.linspace(0, 60, 600_001, dtype=torch.float64)
        density = (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        area = torch.cumulative_trapezoid(density, x)
        return float(x[1 + int(torch.searchsorted(area / area[-1], 2 * q - 1))])

    def normal(q: float) -> float:
        return float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))

    stats = ModuleType("scipy.stats")
    stats.t, stats.norm = SimpleNamespace(ppf=student), SimpleNamespace(ppf=normal)
    sys.modules |= {"scipy": ModuleType("scipy"), "scipy.stats": stats}


def prepare(names: list[str], folder: Path) -> None:
    """Write the columns of datasets as npz files."""
    import rescind as rs

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        data = rs.load(name)
        sizes = np.array([len(data.users), len(data.items)])
        columns = {"user": data.user, "item": data.item, "time": data.time, "sizes": sizes}
        np.savez_compressed(folder / f"{name}.npz", **columns)
        print(f"written: {folder / name}.npz")


def read(name: str, folder: Path | None) -> Any:
    """Read a dataset from an npz file, or as everywhere."""
    import rescind as rs
    from rescind.data.dataset import Dataset

    if folder is None:
        return rs.load(name)
    with np.load(folder / f"{name}.npz") as file:
        users, items = (np.array([str(i) for i in range(n)]) for n in file["sizes"].tolist())
        return Dataset(name, file["user"], file["item"], None, file["time"], users, items)


class Story:
    """A trained federation, its request, and the models to compare with, made once per seed."""

    def __init__(self, name: str, seed: int, rounds: int, folder: Path | None) -> None:
        from rescind.core.federation import Federation
        from rescind.core.holdings import TRAIN
        from rescind.core.records import Erase
        from rescind.data.simulated_lending import draw_regret
        from rescind.methods.baselines.fedavg import FedAvg

        self.fed = Federation.start(read(name, folder), FedAvg(), seed=seed).run(rounds)
        held, self.seed = self.fed.now.vault.holdings, seed
        self.trained = held.records[held.split == TRAIN]
        self.event = Erase(draw_regret(self.trained, self.fed.clock, REGRET))
        self.case: Any = None  # of the request; the models to compare with are measured once

    def report(self, subject: str, number: int = 0) -> Any:
        """Audit one subject, with a new attack by lot."""
        from cheats import CHEATS
        from rescind.audits.case import Case
        from rescind.core.records import Withdraw
        from rescind.forgetting.examine import examine_case, forgotten, retrain, seeds_of
        from rescind.methods.unlearning.retrain import Retrain

        event, by = self.event, Retrain()
        if subject == ONE:
            people = torch.unique(self.trained.client)
            at = int(self.fed.clock.integers("one person", torch.tensor(number), 0, len(people)))
            event, by = Withdraw(int(people[at])), CHEATS["purge only"]()
        elif subject != RETRAIN:
            by = CHEATS[subject]()
        if subject == ONE or self.case is None:
            refs = [retrain(self.fed, event, s) for s in seeds_of(self.seed, 5)]
            case = Case.of(self.fed, event, self.seed, refs)
            self.case = self.case if subject == ONE else case
        else:
            case = self.case
        return examine_case(case, forgotten(by, self.fed, event), by)


def table(lines: list[str]) -> str:
    """Return the verdicts by dataset and subject, as Markdown."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for line in map(json.loads, lines):
        found.setdefault((line["dataset"], line["subject"]), Counter())[line["verdict"]] += 1
    verdicts = ("PASS", "INCONCLUSIVE", "FAIL", "VOID")
    rows = [f"| data | subject | {' | '.join(verdicts)} |", "|---" * 6 + "|"]
    for (name, subject), counts in found.items():
        rows.append(f"| {name} | {subject} | {' | '.join(str(counts[v]) for v in verdicts)} |")
    return "\n".join(rows)


def main() -> None:
    """Measure what is missing in the file of results."""
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("results", nargs="?", type=Path)
    given.add_argument("--datasets", nargs="+", default=list(DATASETS))
    given.add_argument("--seeds", nargs="+", type=int, default=list(range(200, 210)))
    given.add_argument("--cheats", nargs="+", help="subjects; default: all")
    given.add_argument("--rounds", type=int)
    given.add_argument("--data", type=Path, help="folder with npz files of --prepare")
    given.add_argument("--prepare", type=Path, metavar="FOLDER")
    given.add_argument("--table", action="store_true", help="print the verdicts in RESULTS")
    asked = given.parse_args()
    torch.set_num_threads(1)
    if find_spec("scipy") is None:
        without_scipy()
    if asked.prepare:
        prepare(asked.datasets, asked.prepare)
        return
    if asked.results is None:
        given.error("give the file of results, or --prepare FOLDER")
    if asked.table:
        print(table(asked.results.read_text().splitlines()))
        return
    from cheats import CHEATS

    subjects = asked.cheats or [RETRAIN, *CHEATS, ONE]
    lines = asked.results.read_text().splitlines() if asked.results.is_file() else []
    done = {tuple(json.loads(line)[k] for k in ("dataset", "seed", "subject")) for line in lines}
    for name in asked.datasets:
        for seed in asked.seeds:
            todo = [s for s in subjects if (name, seed, s) not in done]
            rounds = asked.rounds or ROUNDS.get(name, 100)
            story = Story(name, seed, rounds, asked.data) if todo else None
            for subject in todo:
                begun = time.process_time()
                report = story.report(subject, seed)
                found = [f for f in report.findings if f.value is not None]
                line = {
                    "dataset": name, "seed": seed, "subject": subject, "rounds": rounds,
                    "verdict": report.verdict, "why": report.why,
                    "controls": dict(report.subjects),
                    "verdicts": {f.check: f.verdict for f in found},
                    "values": {f.check: round(f.value, 5) for f in found},
                    "retrains": {f.check: round(f.reference, 5) for f in found if f.reference},
                    "cpu": round(time.process_time() - begun, 1),
                }  # fmt: skip
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(name, seed, subject, report.verdict, report.why, flush=True)


if __name__ == "__main__":
    main()
