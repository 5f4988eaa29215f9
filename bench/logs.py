"""Time `rs.Gram().fit` on logs in Parquet files, and engines side by side.

    python bench/logs.py --rows 1000000 10000000 100000000 --write    # this process, out of core
    python bench/logs.py --engines --rows 20000000 --write     # Dask, Ray, DuckDB, Polars

A log is made in a temporary folder (about 12 MB per million rows) and removed: 20 rows per user in
no order, some of them twice, of 2,000 items by a power law. Each fit runs in a process of its own.
CPU is that of the process and its workers. Memory is the largest sum of their private pages,
sampled twice a second (Linux). An engine's start and imports count; compiled code is cached on
disk. `--write` fills docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from apart import answer_of

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
EACH, ITEMS, GROUP, FILE = 20, 2000, 2**20, 10_000_000
Row = dict[str, Any]


# -- the log ---------------------------------------------------------------------------------------


def write_log(folder: Path, rows: int) -> None:
    """Write rows in no order, in files of ten million."""
    import pyarrow
    import pyarrow.parquet

    draw = np.random.default_rng(rows)  # noqa: TID251
    users = max(rows // EACH, 1)
    for begin in range(0, rows, FILE):
        size = min(FILE, rows - begin)
        path = folder / f"part-{begin // FILE:04d}.parquet"
        schema = pyarrow.schema([("user", pyarrow.int64()), ("item", pyarrow.int32())])
        with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=False) as out:
            for start in range(0, size, GROUP):
                some = min(GROUP, size - start)
                user = draw.integers(0, users, some)
                item = (draw.random(some) ** 3 * ITEMS).astype(np.int32)
                out.write_table(pyarrow.table([user, item], schema=schema))


# -- measuring -------------------------------------------------------------------------------------


def family() -> list[int]:
    """Return this process and all below it (Linux)."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    below = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= new
    return sorted(below)


def private_bytes(pid: int) -> int:
    """Return the resident pages of a process that are not files (Linux)."""
    with suppress(OSError):
        fields = dict(x.split(":", 1) for x in Path(f"/proc/{pid}/status").read_text().splitlines())
        kinds = ("RssAnon", "RssShmem")
        return sum(1024 * int(fields[kind].split()[0]) for kind in kinds if kind in fields)
    return 0


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds of a process; its children are asked themselves (Linux)."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def watched() -> Iterator[Row]:
    """Measure CPU seconds, wall seconds and memory of this process and its workers."""
    found: Row = {"peak": 0}
    over = threading.Event()
    last: dict[int, float] = {}
    before = {pid: cpu_seconds(pid) for pid in family()}

    def look() -> None:
        while not over.wait(0.5):
            pids = family()
            last.update({pid: cpu_seconds(pid) for pid in pids})
            found["peak"] = max(found["peak"], sum(map(private_bytes, pids)))
            found["looking"] = time.thread_time()

    start = sum(map(private_bytes, family()))
    begin, thread = time.perf_counter(), threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        found["wall"] = time.perf_counter() - begin
        last.update({pid: cpu_seconds(pid) for pid in family()})
        over.set()
        thread.join()
        ended = {pid: max(spent - before.get(pid, 0.0), 0.0) for pid, spent in last.items()}
        found["cpu"] = sum(ended.values()) - found.get("looking", 0.0)
        found["start"] = start


# -- engines ---------------------------------------------------------------------------------------


def fitted(log: Path, engine: Any = None) -> str:
    """Fit and return the digest."""
    import rescind as rs

    return rs.Gram().fit(log, engine=engine, spill=log.parent).digest()


def in_process(log: Path) -> Row:
    """Fit in this process, after a small fit that compiles."""
    with tempfile.TemporaryDirectory() as name:
        write_log(Path(name), 1000)
        fitted(Path(name))
    with watched() as found:
        digest = fitted(log)
    return {**found, "digest": digest}


def dask(log: Path, kill: bool = False) -> Row:
    """Fit on two Dask workers of one thread each. kill: end one of them half-way, by SIGKILL"""
    from distributed import Client, LocalCluster

    killed: list[int] = []
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    options["host"] = "127.0.0.1"
    with watched() as found, LocalCluster(**options) as cluster, Client(cluster) as client:
        if kill:
            _kill_later(list(client.run(os.getpid).values()), log, killed)
        digest = fitted(log, client)
    return {**found, "digest": digest, "killed": len(killed)}


def _kill_later(workers: list[int], log: Path, killed: list[int]) -> None:
    """End one worker while pieces are written, and another one while parts are summed."""
    rows = sum(1 for _ in log.glob("*.parquet")) * FILE
    folder = log.parent  # where `fitted` has its temporary files

    def wait_and_kill() -> None:
        for pid, name, many in (
            (workers[0], "rescind-*/piece-*.arrow", max(rows // 2**22, 1)),
            (workers[1], "rescind-*/items.arrow", 1),
        ):
            while len(list(folder.glob(name))) < many:
                time.sleep(0.05)
            os.kill(pid, 9)
            killed.append(pid)

    threading.Thread(target=wait_and_kill, daemon=True).start()


def ray(log: Path) -> Row:
    """Fit on two Ray workers, through the executor below."""
    import logging
    from concurrent.futures import Executor, Future

    import ray as engine

    class OnRay(Executor):
        def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
            return engine.remote(max_retries=3)(work).remote(*given, **named).future()

    with watched() as found:
        engine.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR,
                    _node_ip_address="127.0.0.1")  # fmt: skip
        digest = fitted(log, OnRay())
        engine.shutdown()
    return {**found, "digest": digest}


PAIRS = """
with each as (select distinct "user", item from {table}),
     weighed as (select *, cast(round(4096 / sqrt(count(*) over (partition by "user"))) as bigint)
                 as w from each)
select a.item as i, b.item as j, sum(a.w) as total from weighed a join weighed b
on a."user" = b."user" and a.item >= b.item group by i, j
"""


def duckdb(log: Path) -> Row:
    """Count all pairs by one query with a join; two threads."""
    import duckdb as engine

    with watched() as found:
        link = engine.connect(config={"threads": 2, "memory_limit": "8GB"})
        table = f"read_parquet('{log}/*.parquet')"
        sums = link.sql(PAIRS.format(table=table)).arrow()
        sums = sums.read_all() if hasattr(sums, "read_all") else sums
    return {**found, "digest": digest_of(sums)}


def polars(log: Path) -> Row:
    """Count all pairs by a lazy query with a join, on the streaming engine; two threads."""
    os.environ["POLARS_MAX_THREADS"] = "2"
    import polars as pl

    with watched() as found:
        each = pl.scan_parquet(f"{log}/*.parquet").unique()
        weight = (4096 / pl.len().over("user").sqrt()).round().cast(pl.Int64).alias("w")
        weighed = each.with_columns(weight)
        both = weighed.join(each, on="user", suffix="_low").filter(
            pl.col("item") >= pl.col("item_low")
        )
        sums = both.group_by(i="item", j="item_low").agg(total=pl.col("w").sum())
        table = sums.collect(engine="streaming").to_arrow()
    return {**found, "digest": digest_of(table)}


def digest_of(sums: Any) -> str:
    """Return the digest that rescind gives to the same sum."""
    import torch

    from rescind.core import params
    from rescind.core.saved import ids_as_bytes

    i, j, total = (np.asarray(sums[name]).astype(np.int64) for name in ("i", "j", "total"))
    items = np.unique(i)
    high, low = np.searchsorted(items, i), np.searchsorted(items, j)
    half = np.zeros(len(items) * (len(items) + 1) // 2, np.int64)
    half[high * (high + 1) // 2 + low] = total
    return params.digest({"items": ids_as_bytes(items.tolist()), "Gram": torch.from_numpy(half)})


HERE = "this process"
ENGINES: dict[str, Callable[[Path], Row]] = {
    HERE: in_process, "Dask, 2 workers": dask, "Ray, 2 workers": ray,
    "DuckDB, 2 threads": duckdb, "Polars, 2 threads": polars,
}  # fmt: skip
KILLED = "Dask, both workers killed"


# -- tables ----------------------------------------------------------------------------------------


def apart(name: str, log: Path, patience: float) -> Row:
    """Measure one engine in a process of its own; a failure is a row, too."""
    answer = log.parent / "answer.json"
    return answer_of(
        [sys.executable, __file__, "--one", name, str(log), str(answer)], answer, patience
    )


def sizes(counts: list[int], patience: float) -> str:
    """Measure fits in this process at each size; say what ten times the largest would take."""
    head = "| rows | users | CPU s | CPU us a row | wall s | memory added, MB | log, MB |"
    lines, found = [head, "|---" * 7 + "|"], {}
    for rows in counts:
        with tempfile.TemporaryDirectory() as name:
            log = Path(name) / "log"
            log.mkdir()
            write_log(log, rows)
            size = sum(path.stat().st_size for path in log.iterdir())
            row = found[rows] = apart(HERE, log, patience)
        if "failed" in row:
            lines.append(f"| {rows:,} | {rows // EACH:,} | {row['failed']} | | | | |")
            continue
        lines.append(
            f"| {rows:,} | {rows // EACH:,} | {row['cpu']:,.1f} | {1e6 * row['cpu'] / rows:.2f} | "
            f"{row['wall']:,.1f} | {(row['peak'] - row['start']) / 1e6:,.0f} | {size / 1e6:,.0f} |"
        )
        print(lines[-1], flush=True)
    some = [rows for rows in counts if "failed" not in found[rows]]
    if len(some) > 1:
        small, large = some[-2:]
        slope = (found[large]["cpu"] - found[small]["cpu"]) / (large - small)
        next_ = 10 * large
        fixed = found[large]["cpu"] - slope * large
        lines.append(
            f"| {next_:,}, on paper | {next_ // EACH:,} | {fixed + slope * next_:,.0f} | "
            f"{1e6 * slope:.2f} | | | |"
        )
    return "\n".join(lines)


def engines(rows: int, names: list[str], patience: float) -> Iterator[tuple[str, str]]:
    """Measure engines on one log; yield name and row. The digest tells whether sums are equal."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        log.mkdir()
        write_log(log, rows)
        first = apart(HERE, log, patience)
        for engine in names:
            row = first if engine == HERE else apart(engine, log, patience)
            if "failed" in row:
                made = f"| {engine} | {row['failed']} | | | |"
            else:
                told = f"; {row['killed']} killed" if row.get("killed") else ""
                made = (
                    f"| {engine} | {row['cpu']:,.1f} | {row['wall']:,.1f} | "
                    f"{(row['peak'] - row['start']) / 1e6:,.0f} | "
                    f"{'yes' if row['digest'] == first['digest'] else 'NO'}{told} |"
                )
            print(made, flush=True)
            yield engine, made


def write_engines(rows: int, names: list[str], patience: float, page: bool) -> None:
    """Measure engines; put each row on the page when it is there. Other engines' rows stay."""
    from rescind_papers.pages import write_block

    block = "bench/logs.py --engines"
    head = ["| engine | CPU s | wall s | memory added, MB | same sum |", "|---" * 5 + "|"]
    where = f"{rows:,} rows, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d', time.gmtime())}."
    for name, row in engines(rows, names, patience):
        if page:
            text = PAGE.read_text(encoding="utf-8").split(f"<!-- {block} -->\n")[1]
            old = text.split("<!-- end -->")[0].splitlines() if where in text else []
            known = {engine: line for engine in [*ENGINES, KILLED] for line in old
                     if line.startswith(f"| {engine} |")}  # fmt: skip
            known[name] = row
            lines = [known[engine] for engine in [*ENGINES, KILLED] if engine in known]
            write_block(PAGE, block, "\n".join([*head, *lines, "", where]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--engines", action="store_true", help="compare engines at the first size")
    every = [*ENGINES, KILLED]
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="some engines")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for one fit")
    parser.add_argument("--write", action="store_true", help="fill the page")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, log, answer = given.one
        made = dask(Path(log), kill=True) if name == KILLED else ENGINES[name](Path(log))
        Path(answer).write_text(json.dumps(made), encoding="utf-8")
        return
    if given.engines:
        write_engines(given.rows[0], given.only, given.patience, given.write)
        return
    body = sizes(given.rows, given.patience)
    body += f"\n\nMeasured on {os.cpu_count()} cores, {time.strftime('%Y-%m-%d', time.gmtime())}."
    if given.write:
        from rescind_papers.pages import write_block

        write_block(PAGE, "bench/logs.py", body)


if __name__ == "__main__":
    main()
