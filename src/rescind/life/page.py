"""The page of results: tables and curves from the committed lines. No number is written by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.life.adapters import PEERS
from rescind.life.nodes_audit import ACCURACY
from rescind.life.nodes_rows import NODE_ROWS
from rescind.life.quality import K
from rescind.life.rows import ROWS
from rescind.life.run import BACK, LATER
from rescind.life.summary import main

Line = Mapping[str, Any]
Lines = Sequence[Line]
PAGE, IMAGES = "docs/results/life.md", "docs/results/images"
NDCG = f"NDCG@{K}"
HEAD = """# LIFE: results

Written by `papers/scripts/life_all.py --collect` from the lines in `recipes/life/`. What the
columns mean and how to enter is in [the benchmark's page](../life.md). Each line can be run again
and compared: `rescind life verify LINE`.

"""


def write_page(home: Path) -> None:
    """Write the page and its figures from recipes/life/*.jsonl."""
    parts = [HEAD]
    for path in sorted((home / "recipes" / "life").glob("*.jsonl")):
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        parts.append(section(path.stem, lines))
        draw(path.stem, lines, home / IMAGES)
    write_atomically(home / PAGE, "\n".join(parts).encode())


def section(dataset: str, lines: Lines) -> str:
    """Return the tables of a dataset."""
    rows = by_row(lines)
    first = lines[0]
    seeds = sorted({line["seed"] for line in lines})
    about = (
        f"{first['blocks']} blocks, {first['summary']['steps']} requests in seed {first['seed']}; "
        f"means over seeds {', '.join(map(str, seeds))}. Story of seed {first['seed']}: "
        f"`{first['story'][:23]}`, data `{first['data'][:23]}`."
    )
    return "\n".join(
        [
            f"## {dataset}\n", about, "",
            "### Quality and forgetting\n", table(rows, forgetting(first["task"])), "",
            "### Costs\n", table(rows, COSTS), "",
            f"![Quality and what is left, block by block](images/life-{dataset}.svg)", "",
        ]
    )  # fmt: skip


def by_row(lines: Lines) -> dict[str, list[Line]]:
    """Return the lines of each row, in the order of the benchmark; strangers come last."""
    names = [*(n for n in ROWS | PEERS | NODE_ROWS if any(line["row"] == n for line in lines))]
    names += sorted({str(line["row"]) for line in lines} - set(names))
    return {name: [line for line in lines if line["row"] == name] for name in names}


Column = Callable[[Lines], str]


def table(rows: Mapping[str, Lines], columns: Mapping[str, Column]) -> str:
    """Return a table in Markdown."""
    head = f"| method | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    body = [
        f"| {name} | {' | '.join(column(lines) for column in columns.values())} |"
        for name, lines in rows.items()
    ]
    return "\n".join([head, *body])


def mean(*path: str, digits: int = 4, per: float = 1.0) -> Column:
    """Return a column with the mean over seeds, and its spread."""

    def column(lines: Lines) -> str:
        values = [v for line in lines if (v := _at(line["summary"], path)) is not None]
        if not values:
            return "–"
        spread = f" ± {statistics.stdev(values) / per:.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values) / per:,.{digits}f}{spread}"

    return column


def _at(facts: Any, path: Sequence[str]) -> Any:
    for name in path:
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts


def equal(lines: Lines) -> str:
    """Return how many requests left exactly what a life without the records has."""
    same, steps = (sum(line["summary"][n] for line in lines) for n in ("equal", "steps"))
    return f"{same} of {steps}"


def verdicts(*path: str) -> Column:
    """Return a column that counts verdicts over blocks and seeds."""

    def column(lines: Lines) -> str:
        found: dict[str, int] = {}
        for line in lines:
            for word, count in (_at(line["summary"], path) or {}).items():
                found[word] = found.get(word, 0) + count
        order = [w for w in ("EQUAL", "PASS", BACK, "FAIL", "POWERLESS") if w in found]
        return ", ".join(f"{word} {found[word]}" for word in order) or "–"

    return column


FORGETTING: dict[str, Column] = {
    f"new block, {NDCG}": mean("new"),
    f"old blocks, {NDCG}": mean("old"),
    "digests equal": equal,
    "distance": mean("distance", digits=3),
    "never-there, by block": verdicts("never_there"),
    **{f"back after {n}": verdicts("back", str(n)) for n in LATER},
    "answered in time": mean("in_time", digits=2),
}


def metric_of(task: str) -> str:
    """Return what quality is measured in."""
    return ACCURACY if task == "nodes" else NDCG


def forgetting(task: str) -> dict[str, Column]:
    """Return the columns about quality and forgetting, as they are called for a task."""
    return {name.replace(NDCG, metric_of(task)): made for name, made in FORGETTING.items()}


COSTS: dict[str, Column] = {
    "CPU s to learn": mean("cpu", "learn", digits=1),
    "CPU s to forget": mean("cpu", "forget", digits=1),
    "client-rounds to learn": mean("client_rounds", "learn", digits=0),
    "client-rounds to forget": mean("client_rounds", "forget", digits=0),
    "others online per request": mean("online", digits=1),
    "MB to learn": mean("mb", "learn", digits=1),
    "MB to forget": mean("mb", "forget", digits=1),
}


def draw(dataset: str, lines: Lines, folder: Path) -> None:
    """Draw curves over blocks: quality on the new block, on old blocks, and what is left."""
    from rescind.reporting import charts

    made, axes = charts.figure(3, width=4.6)
    metric = metric_of(lines[0]["task"])
    titles = (f"{metric}, new block", f"{metric}, old blocks", "share of influence left")
    for ax, title, read in zip(axes, titles, (_new, _old, _left), strict=True):
        for number, (name, mine) in enumerate(by_row(lines).items()):
            curve = [
                (b, v) for b in range(mine[0]["blocks"]) if (v := over(mine, b, read)) is not None
            ]
            if curve:
                style = STYLES[number % len(STYLES)]
                ax.plot(*zip(*curve, strict=True), label=name, linewidth=1.4, **style)
        ax.set_xlabel("block", fontsize=11)
        ax.set_title(title, fontsize=11)
    axes[0].legend(fontsize=6, ncol=2, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    charts.write(made, folder / f"life-{dataset}.svg")


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#777777")
STYLES: tuple[dict[str, Any], ...] = tuple(
    {"color": colour, "linestyle": dashes} for dashes in ("-", "--") for colour in COLOURS
)
Read = Callable[[Mapping[str, Any]], float | None]


def over(lines: Lines, block: int, read: Read) -> float | None:
    """Return the mean of a value in a block over seeds; None if no seed has it."""
    values = [v for line in lines if (v := read(line["measured"][block])) is not None]
    return statistics.fmean(values) if values else None


def _new(block: Mapping[str, Any]) -> float | None:
    return main(block.get("new", {}))


def _old(block: Mapping[str, Any]) -> float | None:
    return main(block.get("old", {}))


def _left(block: Mapping[str, Any]) -> float | None:
    verdict = block["verdict"]
    return 0.0 if verdict["verdict"] == "EQUAL" else verdict.get("left")
