"""Makes the lines of a roster in a process of its own: some milliseconds of a core for each person.

    python -m rescind.ledger.roster_worker < sum and parts > lines

Parts and seeds go in and lines come out by pipes, so nothing is written to a disk. The sum is the
one that the release used, and is hashed by itself: if it holds anything else than the parts, the
lines do not add up to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rescind.errors import DataError
from rescind.ledger import worker_io
from rescind.methods.additive._live_sum import Items, Totals, weight_of
from rescind.proof.sum_hash import LENGTH, OWNERS, Hash, hash_of, line_of

HERE = 50_000
"""Pairs of items up to which lines are made in this process: a tenth of a second."""
NICE = 10
LENT = 0
"""The domain of the sum over what is lent."""


@dataclass(frozen=True)
class Asked:
    """A sum, and the parts of it that need a line."""

    sums: Totals
    parts: tuple[Items, ...]
    seeds: tuple[bytes, ...]
    """What hides the line of each part."""
    counted: bool

    @property
    def pairs(self) -> int:
        return int(np.count_nonzero(self.sums.total)) + sum(len(p) ** 2 // 2 for p in self.parts)


@dataclass(frozen=True)
class Hashed:
    """The lines of the parts, hidden, and the hash of the sum, not hidden: it stays here."""

    lines: tuple[Hash, ...]
    sum: Hash


def hashed(asked: Asked) -> Hashed:
    lines = tuple(
        line_of(part.astype(np.int64), weight_of(len(part)), LENT, seed, asked.counted)
        for part, seed in zip(asked.parts, asked.seeds, strict=True)
    )
    halves = {LENT: asked.sums.total.astype(np.int64, copy=False)}
    return Hashed(
        lines, hash_of({**halves, OWNERS: asked.sums.owners} if asked.counted else halves)
    )


class Worker:
    """Hashes in another process if it takes long; `stop` ends that."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def hashed(self, asked: Asked) -> Hashed:
        return hashed(asked) if asked.pairs <= HERE else self._there(asked)

    def _there(self, asked: Asked) -> Hashed:
        arrays = {
            "total": asked.sums.total,
            "owners": asked.sums.owners,
            "seeds": np.frombuffer(b"".join(asked.seeds), np.uint8),
            **worker_io.joined("part", asked.parts),
        }
        how, pipe = worker_io.command(__name__), subprocess.PIPE
        self._running = subprocess.Popen(**how, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        if self._stopped:
            self._running.kill()
        out, _ = self._running.communicate(worker_io.written({"counted": asked.counted}, arrays))
        if self._running.returncode:
            raise DataError("the roster was not made: its process ended. The one before stays.")
        _, found = worker_io.read(out)
        return Hashed(tuple(_rows(found["lines"])), found["sum"])

    def stop(self) -> None:
        """End what runs; nothing runs after it."""
        self._stopped = True
        if self._running is not None:
            self._running.kill()


def _rows(table: NDArray[np.uint64]) -> Sequence[Hash]:
    return [table[n] for n in range(len(table))]


def main() -> int:
    os.nice(NICE)
    settings, arrays = worker_io.read(sys.stdin.buffer.read())
    parts = worker_io.parts_of(arrays, "part")
    seeds = arrays["seeds"].tobytes()
    asked = Asked(
        Totals(arrays["total"], arrays["owners"]),
        parts,
        tuple(seeds[32 * n : 32 * n + 32] for n in range(len(parts))),
        bool(settings["counted"]),
    )
    made = hashed(asked)
    lines = np.stack(made.lines) if made.lines else np.empty((0, LENGTH), np.uint64)
    sys.stdout.buffer.write(worker_io.written({}, {"lines": lines, "sum": made.sum}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
