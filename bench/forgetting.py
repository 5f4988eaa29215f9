"""Measure what it costs to forget one contributor, for the rows of the leaderboards.

    python bench/forgetting.py [PART ...]     rows whose "recipe: cell" has one of these parts
        --again     also rows that are measured already
        --first     only the rows of the first page (recipes/first_page.toml)

Writes recipes/findings/forgetting.json row by row, cheap ones first; run it again to go on.
Learners that subtract: contributors leave one after the other. Measured are CPU milliseconds of one
thread until the model can be asked again, the devices that had to be online, and the bytes that
moved; at the end the digest of the sum is compared with that of a run that they left before it
began. Learners that retrain: the devices that a run asks are drawn, not trained; its time and its
bytes are in the results.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from rescind.core.federation import Federation
from rescind.core.records import Withdraw
from rescind.data import Dataset
from rescind.experiments.cell import Cell
from rescind.experiments.learning_run import Meter, start
from rescind.experiments.prepared_data import AnyData, obtained
from rescind.experiments.streams import Blocks, Stream, run_stream
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.receipts.claims import sum_digest
from rescind.storage.provenance import versions
from rescind_papers import costs, first_page
from rescind_papers.index import Shelf
from rescind_papers.leaderboard import data_label, task_of, with_results

RECIPES = Path(__file__).parent.parent / "recipes"
FILE = RECIPES / "findings" / f"{costs.NAME}.json"
LEAVE = 9
"""Contributors that leave in turn; the first one is not counted, because it compiles."""
MOST = 6e9
"""Bytes of a server state that this machine can hold twice; larger rows are left out."""
Row = dict[str, Any]


def learnt(cell: Cell, data: AnyData, without: Sequence[int] = ()) -> Federation:
    """Return the federation of a cell after learning; some contributors leave before it begins."""
    if cell.data.variant:
        assert isinstance(data, Dataset)
        stream = Stream.of(_left(data, without), cell.run.seed)
        run = cell.run
        how = Blocks(run.rounds, run.patience, run.evaluate_every, run.measure, run.k)
        return run_stream(stream, cell.method, cell.run.seed, how).fed
    fed = start(cell, data)
    for client in without:
        fed = fed.apply(Withdraw(client))
    return fed.run(cell.run.rounds)


def _left(data: Dataset, without: Sequence[int]) -> Dataset:
    """Return a dataset without the rows of some people; the others keep their numbers."""
    gone = torch.isin(torch.tensor(data.user), torch.tensor(list(without), dtype=torch.int64))
    return data.select((~gone).numpy())


def leavers(fed: Federation) -> list[int]:
    """Return contributors that were counted, spread over all; lenders where no device is asked."""
    known = fed.now.state.own.get("counted", fed.world.available)
    ids = (known >= 0 if known.dtype != torch.bool else known).nonzero().squeeze(1)
    ids = ids if len(ids) else torch.unique(fed.world.shared.client)
    few = min(LEAVE, len(ids) // 2)
    return ids[:: max(len(ids) // few, 1)][:few].tolist()


def each(fed: Federation, cell: Cell, people: Sequence[int], apart: bool) -> tuple[Federation, Row]:
    """Let contributors leave, one after the other or each alone; return the last and the costs."""
    taken, online, moved, after = [], [], [], fed
    by = cell.forget.unlearner if cell.forget is not None else None
    for client in people:
        meter, before = Meter(), fed if apart else after
        request = before.request(Withdraw(client))
        begun = time.process_time()
        done = unlearn_and_purge(before, request, by, (meter,))
        after = done.fed
        for name in after.now.state.public:
            after.now.state.public[name]  # weights are solved when they are read
        taken.append(time.process_time() - begun)
        online.append(sum(done.cost.online(request).values()))
        moved.append(meter.up + meter.down)
    low, _, high = quantiles(_ms(taken), n=4)
    return after, {
        "contributors": len(people) - 1,
        "CPU ms": _few(median(_ms(taken))),
        "CPU ms, quartiles": [_few(low), _few(high)],
        "devices": median(online[1:]),
        "MB": _few(median(moved[1:]) / 1e6),
    }


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds[1:]]


def _few(value: float) -> float:
    return float(f"{value:.4g}")


def subtracted(cell: Cell, data: AnyData) -> Row:
    """Measure a learner that subtracts."""
    fed = learnt(cell, data)
    people = leavers(fed)
    after, row = each(fed, cell, people, apart=False)
    never = learnt(replace(cell, forget=None), data, people)
    same = sum_digest(after.now.state.own) == sum_digest(never.now.state.own)
    return {"way": "subtract", **row, "as never there": same}


def unlearnt(cell: Cell, data: AnyData) -> Row:
    """Measure an unlearner of a paper; each contributor leaves alone."""
    assert cell.forget is not None
    fed = learnt(replace(cell, forget=None), data)
    _, row = each(fed, cell, leavers(fed), apart=True)
    return {"way": cell.forget.name, **row, "as never there": False}


def drawn(cell: Cell, data: AnyData) -> Row:
    """Count the devices that a run asks, without one that left."""
    if cell.data.variant:
        assert isinstance(data, Dataset)
        stream = Stream.of(data, cell.run.seed)
        blocks = [stream.first.records[stream.first.split == 0].client]
        blocks += [b.records.client[b.split == 0] for b in stream.later]
        asked = set(torch.cat(blocks).tolist())
    else:
        fed, asked = start(cell, data), set[int]()
        for number in range(1, cell.run.rounds + 1):
            clock = fed.clock.at(number)
            asked |= set(cell.method.server_sample(fed.now.state, fed.world, clock).tolist())
    return {"way": "retrain", "devices": max(len(asked) - 1, 0)}


def measured(cell: Cell, lines: Sequence[Row], data: AnyData) -> Row:
    """Return the row of a cell."""
    subtracts = costs.only_subtracts(cell.method)
    size = max(line["kept_bytes"]["server"] for line in lines)
    if subtracts and size > MOST:
        why = f"the server state has {size / 1e9:.0f} GB, more than the machine of this benchmark"
        return {"way": "subtract", "why": why}
    if cell.data.clients == 1 or cell.data.parts == "whole":
        return {
            "way": "subtract" if subtracts else "retrain",
            "why": "one client holds all the data",
        }
    if cell.forget is not None and cell.forget.unlearner is not None:
        return unlearnt(cell, data)
    return subtracted(cell, data) if subtracts else drawn(cell, data)


def wanted(
    shelf: Shelf, parts: Sequence[str], first: bool
) -> Iterator[tuple[str, Cell, list[Row]]]:
    """Yield the rows to measure, each settings once."""
    shown = first_page.places(shelf) if first else set()
    seen = set[str]()
    for recipe, cell, lines in with_results(shelf):
        place = f"{recipe}: {cell.name}"
        board = task_of(cell) != "unlearning" and not first
        if cell.digest in seen or not (board or place in shown):
            continue
        if not parts or any(part in place for part in parts):
            seen.add(cell.digest)
            yield recipe, cell, lines


def expected(row: tuple[str, Cell, Sequence[Row]]) -> tuple[float, str]:
    """Return a key that sorts cheap rows first, and equal data together."""
    _, cell, lines = row
    runs = costs.only_subtracts(cell.method) or cell.forget is not None
    return (lines[0]["seconds"]["cpu"] if runs else 0.0, data_label(cell.data))


def main() -> None:
    """Measure rows and write them one by one."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("parts", nargs="*", metavar="PART", help="part of 'recipe: cell'")
    words.add_argument("--again", action="store_true", help="also rows that are measured already")
    words.add_argument("--first", action="store_true", help="the rows of the first page only")
    given = words.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {"rows": [], "data": {}}
    rows = {row["digest"]: row for row in stored["rows"]}
    prepared: tuple[Any, Any] = (None, None)
    found = [
        (recipe, replace(cell, run=replace(cell.run, seed=lines[0]["seed"])), lines)
        for recipe, cell, lines in wanted(Shelf(RECIPES), given.parts, given.first)
        if given.again or cell.digest not in rows
    ]
    for recipe, cell, lines in sorted(found, key=expected):
        if prepared[0] != cell.data:
            prepared = (cell.data, obtained(cell))
        row = measured(cell, lines, prepared[1])
        rows[cell.digest] = {"recipe": recipe, "cell": cell.name, **row, "digest": cell.digest}
        print(f"{recipe}: {cell.name}: {row}", flush=True)
        stored["data"][data_label(cell.data)] = prepared[1].digest
        facts = {
            "rows": sorted(rows.values(), key=lambda r: (r["recipe"], r["cell"])),
            "data": stored["data"],
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        FILE.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"most memory: {peak:.1f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
