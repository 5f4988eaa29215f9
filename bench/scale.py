"""Time single changes in federations of several sizes (`rescind_papers.bench.scale`).

python bench/scale.py --people 10000 100000 1000000      # a million needs 6 GB
python bench/scale.py --write                            # into docs/performance.md
python bench/scale.py --write --peers peers/bin/python   # and other libraries (bench/beside.py)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from beside import write as write_beside

from rescind_papers.bench.scale import bound, exponent, measured

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- scale: python bench/scale.py --write -->\n", "<!-- end of scale -->\n"


def table(people: list[int]) -> str:
    """Measure at each size; return a table with CPU milliseconds, growth and bounds."""
    torch.set_num_threads(1)
    measured(1000)  # compile, and allocate once
    figures = [measured(size) for size in people]
    sizes = " | ".join(f"{size:,} people" for size in people)
    lines = [f"| CPU ms | {sizes} | growth | at most |", "|---|" + "---|" * (len(people) + 2)]
    for name in figures[0]:
        took = [figure[name] for figure in figures]
        cells = " | ".join(f"{1000 * seconds:,.1f}" for seconds in took)
        lines.append(f"| {name} | {cells} | {exponent(took, people):.2f} | {bound(name)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--peers", help="a Python with the libraries that bench/beside.py names")
    given = parser.parse_args()
    made = table(given.people)
    print(made)
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        text = before + BEGIN + made + END + rest.split(END)[1]
        PAGE.write_text(text, encoding="utf-8")
    if given.peers:
        write_beside([*given.people, 10 * given.people[-1]], given.peers, given.write)


if __name__ == "__main__":
    main()
