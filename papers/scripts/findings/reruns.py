"""Run committed result lines again: `python papers/scripts/findings/reruns.py` (half an hour).

Twelve lines are drawn at random from the results of all recipes and run again on this machine. Left
out: lines of other settings than today's, lines made by scripts of papers/remote (shadow models),
and rows with noise, which is drawn from the operating system. A row says whether the headline
measures agree in the four digits that tables show, and whether every number agrees; times and
versions are no results.
"""

from __future__ import annotations

import json
import platform
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from writing import write

from rescind.experiments.cell import Cell
from rescind.experiments.learning_run import append_facts
from rescind.experiments.recipe import Recipe
from rescind.experiments.tables import newest_lines
from rescind.experiments.unlearning_run import TrialCache, run_one
from rescind_papers.index import Shelf

RECIPES = Path(__file__).parents[3] / "recipes"
SHADOWS = ("fedgcv/ulira", "fedgcv/virtual", "unlearning/ulira")
HEADLINES = ("NDCG@20", "HR@20", "accuracy")
NO_RESULT = ("seconds", "versions", "date", "settings", "cell")
LINES = 12


def candidates() -> list[tuple[str, Recipe, Cell, dict[str, Any]]]:
    """Return the lines that can be run again, each with its recipe and cell."""
    shelf, out = Shelf(RECIPES), []
    for path in sorted(RECIPES.glob("*/*.toml")):
        name = f"{path.parent.name}/{path.stem}"
        if name in SHADOWS or not path.with_suffix(".jsonl").is_file():
            continue
        recipe = shelf.recipe(name)
        newest, _ = newest_lines(recipe)
        cells = {(cell.name, cell.run.seed): cell for cell in recipe.cells}
        out += [
            (name, recipe, cells[key], line)
            for key, line in newest.items()
            if key in cells and cells[key].guards is None
        ]
    return out


def again(recipe: Recipe, cell: Cell) -> dict[str, Any]:
    """Run a cell and return its result line."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        facts = run_one(cell, home / "run", TrialCache(home / "cache", workers=1)).facts
        made = replace(recipe, path=home / "line.toml")
        append_facts(made, facts)
        line: dict[str, Any] = json.loads(made.results.read_text(encoding="utf-8"))
        return line


def numbers(line: Any, path: str = "") -> dict[str, Any]:
    """Return every number and word of a line by its path."""
    if isinstance(line, dict):
        kept = {k: v for k, v in line.items() if k not in NO_RESULT}
        return {
            p: v for k, inside in kept.items() for p, v in numbers(inside, f"{path}.{k}").items()
        }
    if isinstance(line, list):
        return {p: v for n, one in enumerate(line) for p, v in numbers(one, f"{path}.{n}").items()}
    return {path: line}


def compared(name: str, cell: Cell, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a line that was run again."""
    shown = [m for m in HEADLINES if m in old["test"]]
    then, now = numbers(old), numbers(new)
    both = then.keys() & now.keys()  # newer code may write more
    apart = [p for p in both if then[p] != now[p]]
    return {
        "recipe": name,
        "cell": cell.name,
        "seed": cell.run.seed,
        "made on": old["versions"]["machine"],
        "run again on": platform.machine(),
        "made with torch": old["versions"]["torch"].partition("+")[0],
        "run again with": new["versions"]["torch"].partition("+")[0],
        "headline digits": all(f"{old['test'][m]:.4f}" == f"{new['test'][m]:.4f}" for m in shown),
        "every number": not apart,
        "numbers": len(both),
        "other numbers": len(apart),
    }


def _hash(*parts: object) -> str:
    return sha256("/".join(map(str, parts)).encode()).hexdigest()


def found(draw: int = 0) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the data and a row per line."""
    digests, rows = {}, []
    order = sorted(candidates(), key=lambda c: _hash(draw, c[0], c[2].name, c[2].run.seed))
    for name, recipe, cell, line in order[:LINES]:
        rows.append(compared(name, cell, line, again(recipe, cell)))
        digests[cell.data.name] = line["data"]
        print(rows[-1], flush=True)
    return digests, rows


if __name__ == "__main__":
    write("reruns", *found())
