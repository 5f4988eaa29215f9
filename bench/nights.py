"""Try five nights of a shop with 90,000 rows, killed at random moments, beside undisturbed ones.

    python bench/nights.py [--rows 90000] [--kills 4] [--seed 0]

A shop of its own home has its nights in peace; another one has the same rows and the same requests,
and each of its nights is killed (SIGKILL) some times, somewhere in the time that a night in peace
takes, before the same command is given again until it ends. Then both must have the same: rows,
sums of the models, lists, outcomes of requests, people who are away. Each receipt is checked by
`rescind verify`, and whoever left must be in no list, model or table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

NIGHTS = 5
TOML = """
[data]
name = "shop"
columns = { user = "customer", item = "product", time = "when" }
[new]
from = "in/*.csv"
[requests]
from = "in/requests"
[export]
to = "lists"
k = 50
"""


class Shop:
    """A folder with the file of its nights, and its own home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in/requests").mkdir(parents=True)
        (folder / "shop.toml").write_text(TOML)
        self.environment = os.environ | {"RESCIND_HOME": str(folder / "home")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command as cron does."""
        return subprocess.Popen(
            [sys.executable, "-m", "rescind.cli", *words], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environment,
        )  # fmt: skip

    def give(self, *words: str) -> tuple[int, str]:
        """Give a command and wait for its end."""
        begun = self.start(*words)
        out, _ = begun.communicate()
        return begun.returncode, out

    def killed(self, after: float) -> bool:
        """Give the night, and kill it after some seconds; return whether it was still at work."""
        begun = self.start("night", "shop.toml")
        try:
            begun.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            begun.send_signal(signal.SIGKILL)
            begun.communicate()
        return begun.returncode == -signal.SIGKILL

    def seen(self) -> dict[str, Any]:
        """Return what both shops must have, in a process with this home."""
        words = [sys.executable, __file__, "--seen", str(self.folder)]
        told = subprocess.run(words, check=True, capture_output=True, text=True,
                              env=self.environment)  # fmt: skip
        found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
        return found


def seen(folder: Path) -> dict[str, Any]:
    """Return rows, sum, lists and requests of a shop by digests, and who is where."""
    import pyarrow.parquet as pq

    from rescind.data.importing import load_imported
    from rescind.home import Ledger
    from rescind.receipts.receipt import digest
    from rescind.storage.federations import load_federation

    fed, stored = load_federation(folder / "runs/shop"), load_imported("shop")
    lists = pq.read_table(folder / "lists/top-k.parquet").to_pydict()
    with Ledger.open() as ledger:
        asked = sorted(f"{one.kind} {one.outcome}" for one in ledger.requests())
    rows = zip(stored.users[stored.user].tolist(), stored.items[stored.item].tolist(),
               stored.time.tolist(), strict=True)  # fmt: skip
    return {
        "rows": len(stored), "rows digest": digest(json.dumps(sorted(rows)).encode()),
        "model": str(fed.method.rebuilt(fed)), "lists": digest(json.dumps(lists).encode()),
        "requests": Counter(asked),
        "people": sorted({*lists["user"]} | {*map(str, fed.labels.users)}
                                                     | {*map(str, stored.users)}),
    }  # fmt: skip


def day(shops: list[Shop], night: int, rows: np.ndarray, asked: list[dict[str, Any]]) -> None:
    """Put the rows and the requests of a day into each shop."""
    lines = ["customer,product,when", *(f"c{u},p{i},{t}" for u, i, t in rows.tolist())]
    for shop in shops:
        (shop.folder / f"in/{night}.csv").write_text("\n".join(lines) + "\n")
        for number, request in enumerate(asked):
            path = shop.folder / f"in/requests/{night}-{number}.json"
            path.write_text(json.dumps(request))


def drawn(draw: Any, rows: int) -> tuple[np.ndarray, list[list[dict[str, Any]]]]:
    """Return all rows (user, item, time), and what people ask each night."""
    people, items = rows // 60, max(50, rows // 90)
    table = np.stack([
        draw.integers(0, people, rows),
        (items * draw.random(rows) ** 2).astype(np.int64),
        1_760_000_000 + np.arange(rows),
    ], axis=1)  # fmt: skip
    leaving = draw.permutation(people)[: 3 * NIGHTS].reshape(NIGHTS, 3)
    asked: list[list[dict[str, Any]]] = [[] for _ in range(NIGHTS)]
    for night in range(1, NIGHTS):
        left, emptied, again, _ = leaving[night]
        asked[night] = [{"leave": f"c{left}"}, {"erase": {"user": f"c{emptied}"}},
                        {"leave": f"c{again}"}]  # fmt: skip
        if night > 1:  # who had everything erased the night before leaves now
            asked[night].append({"leave": f"c{leaving[night - 1][1]}"})
    return table, asked


def main() -> None:
    """Have the nights, and print what was checked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=90_000)
    parser.add_argument("--kills", type=int, default=4, help="in each night")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seen", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.seen:
        print(json.dumps(seen(Path(given.seen))))
        return
    draw = np.random.default_rng(given.seed)  # noqa: TID251
    table, asked = drawn(draw, given.rows)
    kills, wrong = 0, list[str]()
    with tempfile.TemporaryDirectory() as text:
        calm, other = Shop(Path(text) / "calm"), Shop(Path(text) / "killed")
        for night, rows in enumerate(np.array_split(table, NIGHTS)):
            day([calm, other], night, rows, asked[night])
            begun = time.monotonic()
            code, _ = calm.give("night", "shop.toml")
            took = time.monotonic() - begun
            here = sum(other.killed(float(draw.uniform(0, took))) for _ in range(given.kills))
            again, _ = other.give("night", "shop.toml")
            kills += here
            one, two = calm.seen(), other.seen()
            wrong += [f"night {night}: {name}" for name in one if one[name] != two[name]]
            wrong += [f"night {night}: exit codes {code}, {again}"] * (code != 0 or again != 0)
            print(f"night {night + 1}: {one['rows']:,} rows, {took:.1f} s, killed {here} times; "
                  f"{one['requests']}", flush=True)  # fmt: skip
        gone = {request["leave"] for night in asked for request in night if "leave" in request}
        for shop in (calm, other):
            wrong += [f"{who} is still there" for who in gone & {*shop.seen()["people"]}]
            papers = sorted((shop.folder / "home/answers").glob("*.zip"))
            valid = sum(shop.give("verify", str(path))[0] == 0 for path in papers)
            print(f"{shop.folder.name}: {valid} of {len(papers)} answers are VALID")
            wrong += ["an answer is not valid"] * (valid != len(papers))
    print(f"{kills} kills; " + ("both shops are the same." if not wrong else "; ".join(wrong)))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
