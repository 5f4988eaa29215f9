"""Fit the same records with rescind and with other libraries while the number of people grows.

    python -m venv peers
    peers/bin/pip install -e . implicit 'flwr[simulation]' pfl
    python bench/beside.py --peers peers/bin/python --write        # into docs/performance.md

People have 20 records each, of 2,000 items by a power law, as in bench/scale.py. Every figure is
measured in a process of its own, with one thread: CPU seconds, with those of worker processes if it
has any, and the most memory that the process itself held. What takes too long is
measured with fewer people and multiplied, which is marked; what cannot run says why. `--only` some
of them: the other lines of the page stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from apart import answer_of

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PEOPLE = (10_000, 100_000, 1_000_000)
AT_ONCE = 1_000_000
"""People whose records are drawn at a time."""
Found = dict[str, Any]


def records(people: int) -> tuple[np.ndarray, np.ndarray]:
    """Return users and items of the records, in the order of users."""
    from rescind_papers.bench.scale import federation

    held = federation(people).records
    return held.client.numpy(), held.item.numpy()


def write_log(folder: Path, people: int) -> None:
    """Write the records of any number of people as Parquet, a million people at a time."""
    import pyarrow
    import pyarrow.parquet

    for begin in range(0, people, AT_ONCE):
        user, item = records(min(AT_ONCE, people - begin))
        table = pyarrow.table({"user": user + begin, "item": item.astype(np.int32)})
        pyarrow.parquet.write_table(table, folder / f"{begin:012d}.parquet", row_group_size=2**20)


# -- what is measured ------------------------------------------------------------------------------


def clocked(work: Callable[[], Any]) -> Found:
    """Return CPU seconds of some work."""
    begin = time.process_time()
    work()
    return {"seconds": time.process_time() - begin}


def gram(path: Path) -> Found:
    """Fit `rs.Gram` on records in memory, and solve."""
    import rescind as rs

    user, item = np.load(path / "records.npy", mmap_mode="r")
    rs.Gram().fit({"user": [1, 1], "item": [1, 2]}).recommend(1)  # compiles
    return clocked(lambda: rs.Gram().fit({"user": user, "item": item}).recommend(history=[0]))


def gram_log(path: Path) -> Found:
    """Fit `rs.Gram` on a log in Parquet files, out of core, and solve."""
    import rescind as rs

    rs.Gram().fit({"user": [1, 1], "item": [1, 2]}).recommend(1)
    return clocked(lambda: rs.Gram().fit(path / "log").recommend(history=[0]))


def matrix(path: Path) -> Any:
    """Return the records as a sparse matrix of users by items."""
    from scipy.sparse import csr_matrix

    user, item = np.load(path / "records.npy")
    return csr_matrix((np.ones(len(user), np.float32), (user, item)))


def ease(path: Path) -> Found:
    """Solve EASE as its paper prints it: scipy's product, numpy's inverse."""
    owns = matrix(path)

    def fit() -> None:
        total = (owns.T @ owns).toarray().astype(np.float64)
        total[np.diag_indices(len(total))] += 200.0
        inverse = np.linalg.inv(total)
        weights = inverse / -np.diag(inverse)
        weights[np.diag_indices(len(weights))] = 0

    return clocked(fit)


def als(path: Path) -> Found:
    """Fit implicit's ALS, 32 factors, 15 iterations."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from implicit.als import AlternatingLeastSquares

    owns = matrix(path)
    model = AlternatingLeastSquares(
        factors=32, iterations=15, num_threads=1, use_gpu=False, random_state=0
    )
    return clocked(lambda: model.fit(owns, show_progress=False))


def item_item(path: Path) -> Found:
    """Fit implicit's item-item neighbours by cosine, 20 each."""
    from implicit.nearest_neighbours import CosineRecommender

    owns = matrix(path)
    model = CosineRecommender(K=20, num_threads=1)
    return clocked(lambda: model.fit(owns, show_progress=False))


def round_of(name: str) -> Callable[[Path], Found]:
    """Return a measurement of one FedMF round of everybody by a framework of bench/peers.py."""

    def measure(path: Path) -> Found:
        import peers
        import torch
        from logs import watched

        torch.set_num_threads(1)
        spent = []
        for rounds in (1, 1, 3):  # the first compiles; the difference of the others is two rounds
            with watched() as found:
                peers.PARTIES[name](path / "world.npz", rounds)
            spent.append(found["cpu"])
        return {"seconds": max(spent[2] - spent[1], 0.01) / 2}  # the system counts in 0.01 s

    return measure


@dataclass(frozen=True)
class Party:
    """A line of the table."""

    name: str
    measure: Callable[[Path], Found]
    needs: str
    """What it reads: records, log or world."""
    most: int = 1_000_000
    """People it is measured with; more are on paper, if `scaled`."""
    scaled: bool = False
    note: str = ""


PARTIES = {
    "gram": Party("rescind, `Gram`, fit and solve", gram, "records"),
    "gram_log": Party(
        "rescind, `Gram` on a Parquet log, out of core", gram_log, "log", scaled=True
    ),
    "ease": Party("plain EASE: scipy and numpy", ease, "records"),
    "als": Party("implicit, ALS, 32 factors, 15 iterations", als, "records", 100_000, scaled=True),
    "item_item": Party("implicit, item-item by cosine, 20 neighbours", item_item, "records"),
    "rescind": Party(
        "rescind, a round of FedMF", round_of("rescind"), "world", 100_000, scaled=True
    ),
    "pfl": Party("pfl, the same round", round_of("pfl"), "world", 1000, scaled=True),
    "flower": Party(
        "Flower, one node per user, the same round", round_of("flower"), "world", 100, scaled=True
    ),
}


def peak_memory() -> int:
    """Return the most memory this process has held (Linux; `getrusage` includes the parent's)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


# -- the table -------------------------------------------------------------------------------------


def prepare(path: Path, needs: str, people: int) -> None:
    """Write what a party reads."""
    if needs == "log":
        (path / "log").mkdir()
        write_log(path / "log", people)
        return
    user, item = records(people)
    if needs == "records":
        np.save(path / "records.npy", np.stack([user, item]).astype(np.int32))
        return
    import peers
    import torch

    from rescind_papers.bench.scale import ITEMS

    both = (torch.from_numpy(each.astype(np.int64)) for each in (user, item))
    peers.write(path / "world.npz", *both, people, ITEMS)


def apart(key: str, people: int, python: str, patience: float) -> Found:
    """Measure one party in a process group of its own, which is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="rescind-") as name:
        path = Path(name)
        prepare(path, PARTIES[key].needs, people)
        answer = path / "answer.json"
        return answer_of([python, __file__, "--one", key, name, str(answer)], answer, patience)


def line(key: str, people: list[int], python: str, patience: float) -> str:
    """Measure one party at every size it can do; return its row."""
    from rescind_papers.bench.scale import exponent

    party, cells, took, peak = PARTIES[key], [], [], ""
    for size in people:
        if size > party.most and not party.scaled:
            cells.append("not run")
            continue
        at = min(size, party.most)
        found = apart(key, at, python, patience) if at not in dict(took) else {}
        if "failed" in found:
            cells.append(found["failed"])
            continue
        if found:
            took.append((at, found["seconds"]))
            peak = f"{found['peak'] / 1e6:,.0f} MB"
        seconds = dict(took)[at] * size / at
        cells.append(f"{seconds:,.2f}" if at == size else f"{seconds:,.0f} on paper, from {at:,}")
    growth = ""
    if len(took) > 1:
        growth = f"{exponent([s for _, s in took], [n for n, _ in took]):.2f}"
    made = f"| {party.name} | {' | '.join(cells)} | {growth} | {peak} |"
    print(made, flush=True)
    return made


def table(people: list[int], rows: dict[str, str]) -> str:
    """Return the table of rows by party, in the order of the parties."""
    sizes = " | ".join(f"{size:,} people" for size in people)
    lines = [f"| seconds | {sizes} | growth | memory |", "|---" * (len(people) + 3) + "|"]
    return "\n".join([*lines, *(rows[key] for key in PARTIES if key in rows)])


def kept(people: list[int]) -> dict[str, str]:
    """Return the rows that stand on the page, if they have the same columns."""
    page = PAGE.read_text(encoding="utf-8")
    lines = (
        page.split("<!-- bench/beside.py -->\n")[1].split("<!-- end -->")[0].strip().splitlines()
    )
    same = lines[:2] == table(people, {}).splitlines()
    found = {key: f"| {party.name} |" for key, party in PARTIES.items()}
    return {k: row for row in lines for k, head in found.items() if same and row.startswith(head)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, help="Python with the other libraries")
    parser.add_argument("--people", type=int, nargs="+", default=[*PEOPLE, 10**7])
    parser.add_argument("--only", nargs="+", choices=PARTIES, default=list(PARTIES))
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for one figure")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        key, path, answer = given.one
        found = PARTIES[key].measure(Path(path))
        found["peak"] = peak_memory()
        Path(answer).write_text(json.dumps(found), encoding="utf-8")
        return
    write(given.people, given.peers, given.write, given.patience, given.only)


def write(
    people: list[int], python: str, page: bool, patience: float = 600.0, only: Iterable[str] = ()
) -> None:
    """Measure, and write the table into the page if `page`. only: some parties, else all"""
    from rescind_papers.pages import write_block

    rows = {key: line(key, people, python, patience) for key in only or PARTIES}
    if page:
        write_block(PAGE, "bench/beside.py", table(people, {**kept(people), **rows}))


if __name__ == "__main__":
    main()
