"""Many cells: which there are, how long they take, and the files that hold their lines."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescind.core.files import write_atomically
from rescind.errors import ConfigError
from rescind.life.adapters import PEERS
from rescind.life.find import file_digest, find, rows_of
from rescind.life.lines import Cell, read_line, run_cell
from rescind.life.nodes_rows import NODE_ROWS
from rescind.life.rows import ROWS
from rescind.life.run import Progress

DATASETS = {
    "ml-100k": "ranking",
    "ml-1m": "ranking",
    "lastfm-2k": "ranking",
    "amazon-video-games-2018-5core": "next",
    "cora": "nodes",
}
"""Datasets of the benchmark, and the task on each."""
SLOW = ("FRU", "FedEraser", "FedShare + unlearner", "SeqGram", "FedShare + retraining", "Gram")
"""Rows that take longest come first."""


@dataclass(frozen=True)
class Job:
    """A cell, and the folder for its line."""

    cell: Cell
    out: Path


def cells_of(
    datasets: Sequence[str],
    seeds: Iterable[int],
    blocks: int = 12,
    rows: Sequence[str] | None = None,
) -> list[Cell]:
    """Return the cells of some datasets: all rows, or these."""
    return [
        Cell(name, dataset, DATASETS.get(dataset, "ranking"), seed, blocks)
        for dataset in datasets
        for seed in seeds
        for name in rows or _default(DATASETS.get(dataset, "ranking"))
    ]


def _default(task: str) -> Iterable[str]:
    """Return the rows that are played if none is named: not those of other libraries."""
    return [name for name in rows_of(task) if name not in PEERS]


def file_of(job: Job) -> Path:
    """Return the file of a cell's line."""
    cell = job.cell
    row = Path(cell.row).stem if cell.row.endswith(".py") else cell.row
    name = re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")
    return job.out / cell.dataset / f"{name}-seed-{cell.seed}-of-{cell.blocks}.json"


def finished(job: Job) -> bool:
    """Return whether a cell has a line, and of the code that its method has now.

    Lines of this package's own rows stay true when its code changes; tests hold them to it.
    """
    path, row = file_of(job), Path(job.cell.row)
    if not path.is_file():
        return False
    code = read_line(path.read_text(encoding="utf-8"))["code"]
    if row.suffix == ".py":
        return not row.is_file() or file_digest(row) == code
    found = find(job.cell.row, job.cell.task)
    return found.ours or found.code == code


def run_job(job: Job, progress: Progress = lambda *_: None) -> float:
    """Run a cell unless it is finished; write its line. Return the CPU seconds it took."""
    import torch

    torch.set_num_threads(1)  # so that sums have one order
    path, begin = file_of(job), time.process_time()
    if not finished(job):
        line = run_cell(job.cell, progress=progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        line["cpu"] = round(time.process_time() - begin, 1)
        write_atomically(path, (json.dumps(line) + "\n").encode())
    return time.process_time() - begin


def lines_in(folder: Path) -> list[dict]:
    """Return the lines of all finished cells below a folder."""
    return [read_line(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.json"))]


def collect(folder: Path, home: Path) -> list[str]:
    """Write recipes/life/*.jsonl and docs/results/life.md from the lines below a folder."""
    from rescind.life.page import write_page

    lines = lines_in(folder)
    if not lines:
        raise ConfigError(f"there is no finished cell below {folder}. Run some with --out first.")
    written = []
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        mine = [line for line in lines if line["dataset"] == dataset]
        path = home / "recipes" / "life" / f"{dataset}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        place = {name: number for number, name in enumerate(ROWS | PEERS | NODE_ROWS)}
        mine.sort(key=lambda one: (place.get(one["row"], len(place)), one["row"], one["seed"]))
        text = "".join(json.dumps(line) + "\n" for line in mine)
        write_atomically(path, text.encode())
        written.append(f"{path.relative_to(home)}: {len(mine)} lines")
    write_page(home)
    return [*written, "docs/results/life.md"]
