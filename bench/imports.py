"""Time `import_file` against what Arrow needs to read the same file, and measure its memory.

    python bench/imports.py [--rows 2e6] [--turns 3]
    python bench/imports.py --rows 2e7 --write          writes recipes/findings/imports.json

CPU seconds of one thread, the median of the turns. Each file is imported by a process of its own,
which also times Arrow, so that other load on the machine affects both. The rows are in no order,
the worst case: an import sorts them by user and time. The memory is what the process needs at most,
less what it needed before; the columns are those of the dataset it returns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet

from rescind.core.clock import Clock
from rescind.data import import_file

ROOT = Path(__file__).resolve().parents[1]
AT_MOST = 3
FILES = {
    "CSV": "numbers.csv",
    "CSV, ids as text": "texts.csv",
    "Parquet": "numbers.parquet",
    "Parquet, ids as text": "texts.parquet",
}


def make(path: Path, rows: int) -> None:
    """Write a table of ratings of rows // 100 people."""
    draw = partial(Clock(0).uniform, ids=torch.arange(rows))
    item = 300 / (1 - draw("item").numpy()) - 300  # few items have most of the rows
    columns: dict[str, Any] = {
        "user": (rows // 100 * draw("user")).long().numpy(),
        "item": np.minimum(item, rows // 200).astype(np.int64),
        "rating": (1 + (10 * draw("rating")).floor().numpy()) / 2,
        "time": 1_400_000_000 + (10**8 * draw("time")).long().numpy(),
    }
    if path.stem == "texts":
        for name, first in (("user", "A"), ("item", "B0")):
            distinct = pa.array([f"{first}{n:09}" for n in range(columns[name].max() + 1)])
            coded = pa.DictionaryArray.from_arrays(pa.array(columns[name]), distinct)
            columns[name] = coded.dictionary_decode()
    if path.suffix == ".csv":
        csv.write_csv(pa.table(columns), path, csv.WriteOptions(quoting_style="none"))
    else:
        parquet.write_table(pa.table(columns), path)


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak() -> int:
    """Return the most bytes that this process has held. (`getrusage` counts its parent's.)"""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure(path: Path, turns: int) -> dict[str, float]:
    """Import a file, and read it with Arrow."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    read = csv.read_csv if path.suffix == ".csv" else parquet.read_table
    small = path.with_name(f"small{path.suffix}")
    make(small, 1000)
    import_file(small, "small", replace=True)  # loads what a first import loads
    before = peak()
    kept = []

    def import_it() -> None:
        kept[:] = [import_file(path, "timed", replace=True)]

    first = seconds(import_it)
    held = peak() - before
    columns = [kept[0].user, kept[0].item, kept[0].rating, kept[0].time]
    size = sum(column.nbytes for column in columns)
    kept.clear()
    arrow, ours = [seconds(lambda: read(path))], [first]
    for _ in range(turns - 1):  # by turns, so that other load on the machine affects both
        ours.append(seconds(import_it))
        arrow.append(seconds(lambda: read(path)))
    return {"arrow": median(arrow), "rescind": median(ours), "memory": held / size}


def in_own_process(path: Path, turns: int) -> dict[str, float]:
    """Measure with an empty cache, in a process that has done nothing else."""
    here = {"RESCIND_CACHE": str(path.parent / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", str(path), "--turns", str(turns)]
    done = subprocess.run(command, env=os.environ | here, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--rows", type=float, default=2e6)
    words.add_argument("--turns", type=int, default=3)
    words.add_argument("--write", action="store_true", help="write recipes/findings/imports.json")
    words.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.turns)))
        return
    rows = []
    for form, name in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / name, int(given.rows))
            found = in_own_process(Path(folder) / name, given.turns)
        row = {
            f"import of {int(given.rows):,} rows": form,
            "Arrow reads it in": f"{found['arrow']:.2f} CPU s",
            "rescind imports it in": f"{found['rescind']:.2f} CPU s",
            "times Arrow": f"{found['rescind'] / found['arrow']:.1f}",
            "memory, times the columns": f"{found['memory']:.1f}",
            "at most": str(AT_MOST),
        }
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
    if given.write:
        sys.path.insert(0, str(ROOT / "papers" / "scripts" / "findings"))
        from writing import write

        write("imports", {}, rows)


if __name__ == "__main__":
    main()
