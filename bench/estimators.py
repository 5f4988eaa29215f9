"""Time `fit`, `add`, `forget` on ML-1M as a caller measures them, and `rs.forget` of a federation.

    python bench/estimators.py [--write]      --write: the table of docs/results/additive-details.md

CPU seconds of one thread. A refit is a fit without the person on the same records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from additive import PAGE, REQUESTS, Figure, timed

import rescind as rs
from rescind_papers.pages import write_block


def each(calls: list[Callable[[], object]]) -> list[float]:
    """Return the milliseconds of every call."""
    return [1e3 * timed(call)[1] for call in calls]


def estimator() -> list[Figure]:
    """Measure `rs.Gram`."""
    data = rs.load("ml-1m")
    model = rs.Gram().fit(data)
    _, fitting = timed(lambda: model.fit(data))
    _, solving = timed(lambda: model.recommend("1"))
    kept = data.select(data.users[data.user] != "1")
    again, refit = timed(lambda: rs.Gram().fit(kept))
    model.forget(users=["1"])
    assert model.digest() == again.digest(), "not exact"
    users = model.users[:: len(model.users) // REQUESTS][:REQUESTS]
    person = each([lambda user=user: model.forget(users=[user]) for user in users])
    rows = data.select(data.users[data.user] == model.users[0])
    first = [(model.users[0], str(data.items[item])) for item in rows.item[:20]]
    record = each([lambda pair=pair: model.forget(records=[pair]) for pair in first])
    row = f"{REQUESTS} in a row"
    return [
        Figure("`rs.Gram().fit(frame)`, 1,000,209 records", fitting, "s"),
        Figure("the first recommendation after a change, which solves", solving, "s"),
        Figure(f"`forget(users=[...])`, median of {row}", median(person), "ms", 15),
        Figure("the slowest of them", max(person), "ms"),
        Figure("times faster than a refit without the person", 1e3 * refit / median(person), "x"),
        Figure("`forget(records=[...])`, median of 20 in a row", median(record), "ms", 15),
    ]


def federation() -> list[Figure]:
    """Measure `rs.forget` with `rs.methods.Gram`."""
    fed = rs.Federation.start(rs.load("ml-1m"), rs.methods.Gram(), seed=0)
    fed = rs.simulate_lending(fed).run(1)
    fed = rs.forget(fed, rs.Withdraw(3), audits="none")[0]  # the first one makes what others use
    taken, evidence = [], None
    for client in range(5, 5 + 20 * 40, 40):
        start = time.process_time()
        fed, evidence = rs.forget(fed, rs.Withdraw(client), audits="none")
        taken.append(1e3 * (time.process_time() - start))
    assert evidence is not None
    _, receipt = timed(lambda: evidence.receipt)
    return [
        Figure(
            '`rs.forget(fed, ..., audits="none")`, a person of a federation of 6,040 leaves, '
            "median of 20 in a row",
            median(taken),
            "ms",
            50,
        ),
        Figure("its receipt, when it is read: digests, and the sum added up again", receipt, "s"),
    ]


def main() -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    figures = [*estimator(), *federation()]
    table = "\n".join(["| | measured | at most |", "|---|---|---|", *(f.row for f in figures)])
    print(table)
    if "--write" in sys.argv[1:]:
        write_block(PAGE, "bench/estimators.py", table)


if __name__ == "__main__":
    main()
