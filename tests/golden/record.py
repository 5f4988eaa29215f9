"""Play every cell and write what comes of it: `python -m tests.golden.record [MOUTH ...]`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from tests.golden.cases import CASES
from tests.golden.matrix import KINDS, STATES, play
from tests.golden.mouths import MOUTHS

RECORDED = Path(__file__).parent / "recorded.json"
Cell = tuple[str, ...]
"""Mouth, state and kind; or "cases", and the name of one beside the matrix."""


def cells(mouths: Collection[str]) -> Iterator[Cell]:
    """Yield every cell of some mouths."""
    for mouth in MOUTHS:
        for state in STATES if mouth in mouths else ():
            for kind in KINDS:
                yield mouth, state, kind
    for case in CASES if "cases" in mouths else ():
        yield "cases", case


def played(cell: Cell) -> dict[str, Any]:
    """Play one cell; return it as it is read from the file."""
    if cell[0] == "cases":
        found = CASES[cell[1]]()
    else:
        mouth, state, kind = cell
        found = play(MOUTHS[mouth], state, kind)
    known: dict[str, Any] = json.loads(json.dumps(found))
    return known


def name_of(cell: Cell) -> str:
    """Return the name of a cell in the file."""
    return " / ".join(cell)


def read() -> dict[str, Any]:
    """Return what was recorded."""
    known: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return known


def write(known: dict[str, Any]) -> None:
    """Write the file: sorted, a line for each cell."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(known[name], sort_keys=True)}" for name in sorted(known)
    )
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(mouths: list[str]) -> None:
    """Play the cells of some mouths (or "cases"), or of all, and write them down."""
    logging.disable(logging.CRITICAL)
    known = read() if mouths and RECORDED.is_file() else {}
    for cell in cells(mouths or [*MOUTHS, "cases"]):
        begun = perf_counter()
        known[name_of(cell)] = found = played(cell)
        print(f"{perf_counter() - begun:5.1f} s  {name_of(cell)}: {found.get('outcome', '')}")
    write(known)


if __name__ == "__main__":
    main(sys.argv[1:])
