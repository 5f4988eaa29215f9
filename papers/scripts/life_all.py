"""Run all cells of the lifecycle benchmark on many cores, then collect their lines.

    python papers/scripts/life_all.py --jobs 16 --datasets ml-100k ml-1m --out DIR
    python papers/scripts/life_all.py --collect DIR

A cell is one row with one seed. Each writes its line when it is finished, so that a killed run goes
on where it stopped: cells that have a line are skipped. Needs numpy, scipy, numba, pyarrow and
torch; the second command also matplotlib.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "src"))

from rescind.life.cells import Job, cells_of, collect, file_of, longest_first, run_job  # noqa: E402


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--datasets", nargs="+", default=["ml-100k"])
    parser.add_argument("--rows", nargs="+", help="Default: all that fit the dataset.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/life"))
    parser.add_argument("--collect", type=Path, metavar="DIR", help="Write results from lines.")
    given = parser.parse_args()
    if given.collect:
        print("\n".join(collect(given.collect, HOME)))
        return
    seeds = range(given.seeds)
    jobs = [
        Job(cell, given.out) for cell in cells_of(given.datasets, seeds, given.blocks, given.rows)
    ]
    todo = longest_first([job for job in jobs if not file_of(job).is_file()])
    print(f"{len(jobs)} cells, {len(jobs) - len(todo)} of them done before", flush=True)
    run_all(todo, given.jobs)


def run_all(todo: list[Job], jobs: int) -> None:
    """Run cells in processes of one thread each; a failed cell does not stop the others."""
    begin, failed = time.time(), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = {pool.submit(run_job, job): job for job in todo}
        for number, done in enumerate(as_completed(running), 1):
            job = running[done]
            try:
                says = f"{done.result():.0f} CPU s"
            except Exception as error:  # the line of this cell is missing; the next call runs it
                says, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
            took = time.time() - begin
            print(f"[{number}/{len(todo)}, {took:.0f} s] {job.cell.name} {job.cell.seed}: {says}",
                  flush=True)  # fmt: skip
    if failed:
        sys.exit(f"{failed} cells failed. Give the command again to run them.")


if __name__ == "__main__":
    main()
