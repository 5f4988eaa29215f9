"""Pages whose tables are written by the results themselves.

    python -m rescind_papers.pages docs/fedshare.md      fills the tables of a page anew
    python -m rescind_papers.pages --all                 those of every page, and the departures

A page holds lines like these, and `<!-- end -->` after each:

    <!-- table PAPER/TABLE [valid] [cells PATTERN; ...] [of COLUMN, ...] [against CELL] -->

What stands between them is made from the committed results of that recipe, and a test fails when it
is stale. `of` picks some of the recipe's columns by their titles. Other blocks:

    <!-- exhibits PAPER -->        every table and figure of a paper, ours beside it
    <!-- verdicts -->              how often each verdict was given
    <!-- meanings -->              what the verdicts mean
    <!-- leaderboard TASK -->      every method on every dataset
    <!-- found NAME -->            what a script of recipes/findings/ wrote down
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, RescindError, suggest
from rescind.experiments.recipe import COLUMNS, Column, Recipe
from rescind.experiments.recipe_file import RECIPES
from rescind.experiments.significance import differences, markdown_differences, remark
from rescind.experiments.tables import ResultTable, collect, lines, markdown, rows_as_markdown
from rescind_papers import departures, exhibits, figures, leaderboard
from rescind_papers.index import MAP, Exhibit, Part, Shelf, chosen, finding
from rescind_papers.index import shown as cells_that_fit

BLOCK = re.compile(
    r"(?P<head><!-- table (?P<name>\S+?)(?P<valid> valid)?(?: cells (?P<cells>.+?))?"
    r"(?: of (?P<of>.+?))?"
    r"(?: against (?P<against>.+?))? -->\n).*?(?P<end><!-- end -->)",
    re.S,
)


MADE = re.compile(
    r"(?P<head><!-- (?P<kind>exhibits|verdicts|meanings|leaderboard|found)"
    r"(?: (?P<name>\S+))? -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.S,
)
IMAGES = "images"
"""The folder of pictures beside the pages that show them."""


def has_blocks(text: str) -> bool:
    """Whether anything on a page is made from results."""
    return bool(BLOCK.search(text) or MADE.search(text))


def with_block(text: str, name: str, body: str) -> str:
    """The page with what a benchmark printed, between `<!-- name -->` and `<!-- end -->`."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    new, many = block.subn(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", text)
    if many != 1:
        raise ConfigError(f"the page holds {many} places '<!-- {name} -->'; one is needed.")
    return new


def write_block(page: Path, name: str, body: str) -> None:
    """Put what a script printed into its place on a page."""
    if not page.is_file():
        raise ConfigError(f"there is no {page}. Change to the top folder of a checkout.")
    page.write_text(with_block(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def filled(text: str, shelf: Shelf) -> str:
    """The page with every table made anew."""

    def table(found: re.Match[str]) -> str:
        recipe, against = shelf.recipe(found["name"]), found["against"]
        shown = _chosen(recipe, found["of"])
        whole = _some(collect(recipe, shown), found["cells"])
        body = on_validation(recipe) if found["valid"] else markdown(whole)
        if against:
            apart = differences(whole, against)
            body += f"\n\nPaired by seed:\n\n{markdown_differences(apart, against)}"
            body += f"\n\n{remark(apart)}"
        return f"{found['head']}\n{body}\n\n{found['end']}"

    def made(found: re.Match[str]) -> str:
        return f"{found['head']}\n{_made(found['kind'], found['name'], shelf)}\n\n{found['end']}"

    return MADE.sub(made, BLOCK.sub(table, text))


def _some(table: ResultTable, patterns: str | None) -> ResultTable:
    """The rows whose cells fit one of the patterns; all where there are none."""
    if patterns is None:
        return table
    part = Part("", cells=tuple(patterns.split("; ")))
    names = tuple(cell.name for cell in cells_that_fit(table.recipe, part))
    kept = tuple(e for e in table.entries if e.cell in names)
    return replace(table, recipe=replace(table.recipe, names=names), entries=kept)


def _made(kind: str, name: str | None, shelf: Shelf) -> str:
    """What a block other than a table holds."""
    if kind == "found":
        rows = finding(shelf.folder, name or "")
        return rows_as_markdown([list(rows[0]), *([str(v) for v in row.values()] for row in rows)])
    if kind == "leaderboard":
        return leaderboard.markdown(name or "", shelf)
    if kind == "verdicts":
        return exhibits.summary(chosen(shelf.folder, None), shelf)
    if kind == "meanings":
        said = [["verdict", "means"], *([k, v] for k, v in exhibits.VERDICTS.items())]
        return rows_as_markdown(said)
    return "\n\n".join(_exhibit(one, shelf) for one in chosen(shelf.folder, name))


def _exhibit(one: Exhibit, shelf: Shelf) -> str:
    """A table or figure under its heading, with its pictures and what differs."""
    found = exhibits.rows(one, shelf)
    said = [f'<a id="{one.name}"></a>', f"## {one.title}", exhibits.markdown(one, found)]
    drawn = [f"![{one.title}]({IMAGES}/{n}.png)" for n in figures.drawable(one, found).values()]
    said += (
        [*drawn, "Drawn: means, and bars of one standard deviation over seeds."] if drawn else []
    )
    return "\n\n".join([*said, *filter(None, [exhibits.compared(one, shelf)])])


def _chosen(recipe: Recipe, titles: str | None) -> tuple[Column, ...] | None:
    """The columns of these titles, in their order; None for all."""
    if titles is None:
        return None
    known = {column.name: column for column in recipe.columns or COLUMNS}
    for title in titles.split(", "):
        if title not in known:
            raise ConfigError(f"{recipe.path} has no column '{title}'; {suggest(title, known)}")
    return tuple(known[title] for title in titles.split(", "))


def on_validation(recipe: Recipe) -> str:
    """What validation said of each cell: the only part that may choose settings."""
    cells = {cell.name: cell for cell in recipe.cells}
    made = [line for line in lines(recipe) if line["cell"] in cells]
    asked = [c.path for c in recipe.columns or COLUMNS if "." not in c.path]
    rows = [f"| cell | {' | '.join(f'validation {m}' for m in asked)} |"]
    rows.append("|" + " --- |" * (1 + len(asked)))
    for name in recipe.names:
        mine = [x["valid"] for x in made if x["cell"] == name and cells[name].made(x)]
        means = [f"{statistics.fmean(v[m] for v in mine):.4f}" if mine else "not run"
                 for m in asked]  # fmt: skip
        rows.append(f"| {name} | {' | '.join(means)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> None:
    """Fill the pages that are named, or all of them."""
    if not (RECIPES / MAP).is_file() or not Path("docs").is_dir():
        raise ConfigError(
            "pages are written in a checkout of rescind, from its recipes/ into its docs/. Change "
            "to the top folder of a checkout."
        )
    every, shelf = list(arguments) == ["--all"], Shelf(RECIPES)
    pages = sorted(Path("docs").rglob("*.md")) if every else [Path(name) for name in arguments]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        made = filled(text, shelf)
        if made != text:
            write_atomically(path, made.encode())
            print(f"written: {path}")
    if every:
        draw(shelf, Path("docs/results") / IMAGES)
        departures.main(["docs/departures.md"])


def draw(shelf: Shelf, folder: Path) -> None:
    """The pictures of the pages that are not there or show other numbers than the results have."""
    for one in chosen(shelf.folder, None):
        found = exhibits.rows(one, shelf) if one.figure else []
        stale = [
            name
            for part, name in figures.drawable(one, found).items()
            if figures.told(folder / f"{name}.png") != figures.about(one, part, found)
        ]
        for path in figures.draw(one, shelf, found, folder, ("png",)) if stale else ():
            print(f"drawn: {path}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RescindError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
