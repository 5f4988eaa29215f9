"""Leaderboards: every method on every dataset, from the committed results of all recipes.

A new method has a row as soon as a recipe with it has results. Searches for settings (recipes
named tun...) and sweeps of one setting are left out: their cells are variants of one method.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rescind.core.settings import classes
from rescind.errors import ConfigError, suggest
from rescind.experiments.cell import NO_OP, Cell, DataSettings
from rescind.experiments.recipe import Column
from rescind.experiments.table_forms import rows_as_markdown
from rescind.experiments.tables import cells_by_name
from rescind.storage.kinds import METHODS
from rescind_papers import costs
from rescind_papers.index import Shelf

MB = 1e6
LEARNS = (
    Column("NDCG@20"), Column("HR@20"), Column("accuracy"),
    Column("seconds.cpu", "CPU s", 1),
    Column("kept_bytes.server", "MB kept by the server", 1, MB),
    Column("kept_bytes.devices", "MB kept on devices", 1, MB),
    Column("bytes.up", "MB up", 0, MB), Column("bytes.down", "MB down", 0, MB),
)  # fmt: skip
STREAMS = (
    Column("NDCG@20"), Column("Recall@20"),
    Column("retention NDCG@20", "NDCG@20 left of all blocks"), *LEARNS[3:],
)  # fmt: skip
FORGETS = (
    Column("NDCG@20"), Column("accuracy"),
    Column("forget.verdict", "audit"), Column("forget.distance", "distance", 2),
    Column("forget.leaver.MIA gap", "MIA - retrain", 3),
    Column("seconds.cpu", "CPU s", 1),
    Column("forget.kept.server + forget.kept.client", "MB kept to forget", 1, MB),
    Column("forget.client_rounds", "client-rounds", 0),
    Column("forget.online.others", "others online", 0),
)  # fmt: skip
NEXT = (Column("NDCG@10"), Column("HR@10"), *LEARNS[3:])
TASKS = {"learning": LEARNS, "sequences": NEXT, "continual": STREAMS, "unlearning": FORGETS}
"""Columns of each task: utility, forgetting, time, storage, communication."""


@dataclass(frozen=True)
class Standing:
    """One method of a recipe on one dataset."""

    task: str
    data: str
    method: str
    """The class that learns, or that forgets."""
    learner: str
    """The class that learns."""
    label: str
    recipe: str
    exact: bool
    """Whether it forgets exactly."""
    cost: costs.Cost
    values: tuple[str, ...]
    seeds: int
    utility: float

    @property
    def forgets(self) -> tuple[str, ...]:
        """Return what the table says about forgetting."""
        exact = "yes" if self.exact else "no"
        return (exact,) if self.task == "unlearning" else self.cost.shown


def task_of(cell: Cell) -> str:
    """Return the task of a cell."""
    if cell.forget is not None:
        return "unlearning"
    if cell.data.split == "last":
        return "sequences"
    return "continual" if cell.data.variant else "learning"


def standings(shelf: Shelf) -> list[Standing]:
    """Return every cell with results, of all recipes except searches and sweeps.

    The same settings in two recipes give one row, the one with more seeds.
    """
    found: dict[tuple[str, str], Standing] = {}
    known = costs.measured(shelf.folder)
    for name, cell, mine in with_results(shelf):
        one = _standing(cell, name, mine, known)
        other = found.get((one.task, cell.digest))
        if other is None or one.seeds > other.seeds:
            found[one.task, cell.digest] = one
    order = {task: n for n, task in enumerate(TASKS)}
    return sorted(found.values(), key=lambda s: (order[s.task], s.data, -s.utility, s.label))


def with_results(shelf: Shelf) -> Iterator[tuple[str, Cell, list[dict[str, Any]]]]:
    """Yield the recipe, the cell and the newest line of each seed, without searches and sweeps."""
    for path in sorted(shelf.folder.glob("*/*.toml")):
        if path.stem.startswith("tun") or not path.with_suffix(".jsonl").is_file():
            continue
        name = f"{path.parent.name}/{path.stem}"
        recipe = shelf.recipe(name)
        if recipe.plot is not None and not recipe.plot.bars:
            continue
        newest, _ = shelf.newest(name)
        for cell in cells_by_name(recipe).values():
            mine = [line for (of, _), line in sorted(newest.items()) if of == cell.name]
            if mine:
                yield name, cell, mine


def _standing(
    cell: Cell, recipe: str, mine: Sequence[dict[str, Any]], known: costs.Measured
) -> Standing:
    task = task_of(cell)
    forget = cell.forget
    doer: Any = cell.method if forget is None else forget.unlearner or cell.method
    control = forget is not None and forget.unlearner is None and forget.name != "own"
    name = forget.name if control and forget is not None else type(doer).__name__
    first = "accuracy" if cell.method.model.task == "nodes" else TASKS[task][0].path
    utility = [v for v in (Column(first).of(line) for line in mine) if isinstance(v, float | int)]
    return Standing(
        task=task,
        data=data_label(cell.data),
        method=name,
        learner=type(cell.method).__name__,
        label=label(cell),
        recipe=recipe,
        exact=not control and bool(doer.exact),
        cost=costs.cost_of(cell, mine, known),
        values=tuple(_shown(column, mine) for column in TASKS[task]),
        seeds=len(mine),
        utility=statistics.fmean(utility) if utility else 0.0,
    )


def data_label(data: DataSettings) -> str:
    """Return the name of a dataset with its filters and splits."""
    plain = DataSettings()
    done = [
        str(value) if f.name in ("variant", "split", "parts") else f"{f.name} {value}"
        for f in fields(data)
        if f.name != "name" and (value := getattr(data, f.name)) != getattr(plain, f.name)
    ]
    return data.name + (f" ({', '.join(done)})" if done else "")


def label(cell: Cell) -> str:
    """Return the labels along the axes other than data, or the method if there are none."""
    labels = [label for axis, label in cell.labels.items() if axis != "data"]
    return "/".join(labels) or type(cell.method).__name__


def _shown(column: Column, lines: Sequence[dict[str, Any]]) -> str:
    """Return the mean over seeds, or the words with their counts."""
    found = [v for v in map(column.of, lines) if v is not None]
    words = [v for v in found if isinstance(v, str)]
    if words:
        counts = {word: words.count(word) for word in words}
        return ", ".join(f"{w} {n}" if len(counts) > 1 else w for w, n in counts.items())
    numbers = [v for v in found if not isinstance(v, str)]
    return f"{statistics.fmean(numbers):.{column.digits}f}" if numbers else ""


SCRIPT = """<script>
document.querySelectorAll("table").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    head.style.cursor = "pointer";
    head.title = "sort by this column";
    head.addEventListener("click", function () {
      var down = head.dataset.down !== "yes", body = table.tBodies[0];
      head.dataset.down = down ? "yes" : "no";
      Array.from(body.rows).map(function (row) {
        var text = row.cells[column].textContent.trim();
        var number = text === "" ? NaN : Number(text.split(" ")[0].replace(/,/g, ""));
        return { row: row, text: text, number: number };
      }).sort(function (a, b) {
        if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;
        var order = isNaN(a.number) ? a.text.localeCompare(b.text) : a.number - b.number;
        return down ? -order : order;
      }).forEach(function (entry) { body.appendChild(entry.row); });
    });
  });
});
</script>"""
"""Sorts by a click on a heading, without network; numbers before words, empty cells last."""


def markdown(task: str, shelf: Shelf) -> str:
    """Return the table of one task, and the methods that have no row yet."""
    if task not in TASKS:
        raise ConfigError(f"there is no leaderboard '{task}'; {suggest(task, TASKS)}")
    every = standings(shelf)
    mine = [s for s in every if s.task == task]
    used = [n for n in range(len(TASKS[task])) if any(s.values[n] for s in mine)]
    # All learners forget exactly, so what it costs tells them apart; unlearners differ in both.
    forgets = ("exact",) if task == "unlearning" else costs.HEAD
    head = ["data", "row", "method", *forgets, "seeds", *(TASKS[task][n].name for n in used)]
    rows = [
        [s.data, s.label, s.method, *s.forgets, str(s.seeds),
         *(s.values[n] for n in used), s.recipe]
        for s in mine
    ]  # fmt: skip
    there = {name for s in every for name in (s.method, s.learner)}
    named = {"Nothing": NO_OP}  # trials have it as a control, under another name
    there |= {"AutoGram"}  # it becomes one of two others before it learns
    without = [name for name in classes(*METHODS) if named.get(name, name) not in there]
    said = [rows_as_markdown([[*head, "recipe"], *rows]), SCRIPT, *_empty(mine)]
    said.append(f"Methods without a result in any recipe: {', '.join(without) or 'none'}.")
    return "\n\n".join(said)


def _empty(mine: Sequence[Standing]) -> list[str]:
    """Return why costs are missing, with the rows."""
    reasons: dict[str, list[str]] = {}
    for s in mine:
        if s.cost.why and s.task != "unlearning":
            reasons.setdefault(s.cost.why, []).append(f"{s.recipe}: {s.label}")
    return [f"Empty cells: {why}: {', '.join(rows)}." for why, rows in reasons.items()]
