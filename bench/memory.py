"""Measure the memory of methods on made data of several sizes: the constants of experiments/needs.

    python bench/memory.py [METHOD ...]

Each case runs in a process of its own: two rounds, an evaluation and a save, as `rescind run` does.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

METHODS = ("Popularity", "FedAvg", "FedShare", "LocalGram", "Gram", "KernelGram", "SeqGram")
SIZES = ((1_000, 1_000, 20_000), (20_000, 1_000, 400_000), (1_000, 12_000, 20_000),
         (20_000, 12_000, 800_000))  # fmt: skip


def one(method: str, users: int, items: int, rows: int) -> int:
    """Return the peak of this process in bytes."""
    from rescind.core.settings import find
    from rescind.experiments.cell import Cell, DataSettings, RunSettings, SharingSettings
    from rescind.experiments.learning_run import run_cell
    from rescind.storage.federations import METHODS as KNOWN

    data = DataSettings(name="synthetic", users=users, items=items, interactions=rows)
    settings = RunSettings(rounds=2, evaluate_every=1)
    cell = Cell(method, data, SharingSettings(), find(*KNOWN, method)(), settings)
    with TemporaryDirectory() as folder:
        run_cell(cell, Path(folder))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print one line per method and size."""
    if sys.argv[1:2] == ["--one"]:
        print(one(sys.argv[2], *map(int, sys.argv[3:])))
        return
    for method in sys.argv[1:] or METHODS:
        for users, items, rows in SIZES:
            words = [sys.executable, __file__, "--one", method, str(users), str(items), str(rows)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            peak = int(done.stdout) if done.returncode == 0 else None
            line = {"method": method, "users": users, "items": items, "rows": rows, "peak": peak}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
