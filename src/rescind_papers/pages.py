"""Fill the tables of the documentation from results. Needs a checkout.

    python -m rescind_papers.pages docs/fedshare.md      fill the tables of a page
    python -m rescind_papers.pages --all                 of every page, and the departures

A page holds lines like these, and `<!-- end -->` after each:

    <!-- table PAPER/TABLE [valid] [cells PATTERN; ...] [of COLUMN, ...] [against CELL] -->

The text between them is made from the committed results of that recipe, and a test fails if it is
out of date. `cells` selects rows, `of` some of the recipe's columns by title. Other blocks:

    <!-- exhibits PAPER -->        every table and figure of a paper, with our numbers
    <!-- rows PAPER/TABLE cells PATTERN -->        some rows of one of them
    <!-- first-page -->            four tasks: who does best, and what forgetting costs
    <!-- first-page small -->      the same in few columns, for README.md
    <!-- summary -->               what a reader needs, in five lines
    <!-- verdicts -->              the count of each word
    <!-- meanings -->              the meaning of the words
    <!-- leaderboard TASK -->      every method on every dataset
    <!-- found NAME -->            the rows of recipes/findings/NAME.json
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, RescindError, suggest
from rescind.experiments.recipe import Column, Recipe
from rescind.experiments.recipe_file import RECIPES
from rescind.experiments.results import only_numbers
from rescind.experiments.significance import differences, markdown_differences, remark
from rescind.experiments.table_forms import markdown, rows_as_markdown
from rescind.experiments.tables import ResultTable, collect, lines
from rescind_papers import departures, exhibits, figures, first_page, leaderboard, tally, verdicts
from rescind_papers.index import MAP, Exhibit, Part, Shelf, chosen, finding
from rescind_papers.index import shown as cells_that_fit

BLOCK = re.compile(
    r"(?P<head><!-- table (?P<name>\S+?)(?P<valid> valid)?(?: cells (?P<cells>.+?))?"
    r"(?: of (?P<of>.+?))?"
    r"(?: against (?P<against>.+?))? -->\n).*?(?P<end><!-- end -->)",
    re.S,
)


MADE = re.compile(
    r"(?P<head><!-- (?P<kind>exhibits|rows|first-page|summary|verdicts|meanings|leaderboard|found)"
    r"(?: (?P<name>\S+))?(?: cells (?P<cells>.+?))? -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.S,
)
IMAGES = "images"
"""The folder of pictures, next to the pages that show them."""


def has_blocks(text: str) -> bool:
    """Return whether a page has blocks made from results."""
    return bool(BLOCK.search(text) or MADE.search(text))


def with_block(text: str, name: str, body: str) -> str:
    """Return the page with `body` between `<!-- name -->` and `<!-- end -->`."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    new, count = block.subn(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", text)
    if count != 1:
        raise ConfigError(f"the page has {count} blocks '<!-- {name} -->'; it must have one.")
    return new


def write_block(page: Path, name: str, body: str) -> None:
    """Write the output of a script into its block on a page."""
    if not page.is_file():
        raise ConfigError(f"there is no {page}. Change to the top folder of a checkout.")
    page.write_text(with_block(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def filled(text: str, shelf: Shelf) -> str:
    """Return the page with every block filled from results."""

    def table(found: re.Match[str]) -> str:
        recipe, against = shelf.recipe(found["name"]), found["against"]
        shown = _chosen(recipe, found["of"])
        whole = _some(collect(recipe, shown, shelf.newest(found["name"])), found["cells"])
        if shown:  # chosen columns without a published number have no "paper"
            whole = replace(whole, recipe=replace(whole.recipe, columns=shown))
        body = on_validation(recipe) if found["valid"] else markdown(whole)
        if against:
            apart = differences(whole, against)
            body += f"\n\nPaired by seed:\n\n{markdown_differences(apart, against)}"
            body += f"\n\n{remark(apart)}"
        return f"{found['head']}\n{body}\n\n{found['end']}"

    def made(found: re.Match[str]) -> str:
        body = _made(found["kind"], found["name"], shelf, found["cells"])
        return f"{found['head']}\n{body}\n\n{found['end']}"

    return MADE.sub(made, BLOCK.sub(table, text))


def _some(table: ResultTable, patterns: str | None) -> ResultTable:
    """Return the rows of cells that match one of the patterns; all without patterns."""
    if patterns is None:
        return table
    part = Part("", cells=tuple(patterns.split("; ")))
    names = tuple(cell.name for cell in cells_that_fit(table.recipe, part))
    kept = tuple(e for e in table.entries if e.cell in names)
    return replace(table, recipe=replace(table.recipe, names=names), entries=kept)


def _made(kind: str, name: str | None, shelf: Shelf, cells: str | None = None) -> str:
    if kind == "found":
        rows = finding(shelf.folder, name or "")
        return rows_as_markdown([list(rows[0]), *([str(v) for v in row.values()] for row in rows)])
    if kind == "leaderboard":
        return leaderboard.markdown(name or "", shelf)
    if kind == "first-page":
        return first_page.small(shelf) if name == "small" else first_page.markdown(shelf)
    if kind == "verdicts":
        return tally.table(chosen(shelf.folder, None), shelf)
    if kind == "summary":
        return tally.five_lines(chosen(shelf.folder, None), shelf)
    if kind == "meanings":
        said = [["word", "means"], *([k, v] for k, v in verdicts.MEANINGS.items())]
        return rows_as_markdown(said)
    every = chosen(shelf.folder, name)
    if kind == "rows":
        found = [row for one in every for row in exhibits.rows(one, shelf)]
        return exhibits.short([r for r in found if fnmatchcase(r.entry.cell, cells or "*")])
    return "\n\n".join(_exhibit(one, shelf) for one in every)


def _exhibit(one: Exhibit, shelf: Shelf) -> str:
    found = exhibits.rows(one, shelf)
    said = [f'<a id="{one.name}"></a>', f"## {one.title}", exhibits.markdown(one, found)]
    drawn = [f"![{one.title}]({IMAGES}/{n}.png)" for n in figures.drawable(one, found).values()]
    said += (
        [*drawn, "Drawn: means, and bars of one standard deviation over seeds."] if drawn else []
    )
    return "\n\n".join([*said, *filter(None, [exhibits.compared(one, shelf)])])


def _chosen(recipe: Recipe, titles: str | None) -> tuple[Column, ...] | None:
    """Return the columns of these titles, in order; None for all."""
    if titles is None:
        return None
    known = {column.name: column for column in recipe.shown}
    for title in titles.split(", "):
        if title not in known:
            raise ConfigError(f"{recipe.path} has no column '{title}'; {suggest(title, known)}")
    return tuple(known[title] for title in titles.split(", "))


def on_validation(recipe: Recipe) -> str:
    """Return validation results of each cell. Only these may choose settings."""
    cells = {cell.name: cell for cell in recipe.cells}
    made = [line for line in lines(recipe) if line["cell"] in cells]
    metrics = [c.path for c in recipe.shown if "." not in c.path]
    rows = [f"| cell | {' | '.join(f'validation {m}' for m in metrics)} |"]
    rows.append("|" + " --- |" * (1 + len(metrics)))
    for name in recipe.names:
        mine = [x["valid"] for x in made if x["cell"] == name and cells[name].made(x)]
        known = [only_numbers(values) for values in mine]
        found = [[values[m] for values in known if m in values] for m in metrics]
        missing = "no validation rows" if mine else "not run"
        means = [f"{statistics.fmean(values):.4f}" if values else missing for values in found]
        rows.append(f"| {name} | {' | '.join(means)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> None:
    """Fill the given pages, or all of them (--all)."""
    words = argparse.ArgumentParser("rescind_papers.pages", description=main.__doc__)
    words.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="such as docs/leak.md")
    words.add_argument("--all", action="store_true", help="every page, picture and departure")
    given = words.parse_args(arguments)
    if given.all == bool(given.pages):
        words.error("name pages, or give --all.")
    if not (RECIPES / MAP).is_file() or not Path("docs").is_dir():
        raise ConfigError("pages are written at the top of a checkout of rescind. Change to it.")
    shelf = Shelf(RECIPES)
    every = [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]
    for path in every if given.all else given.pages:
        text = _read(path)
        made = filled(text, shelf)
        if made != text:
            write_atomically(path, made.encode())
            print(f"written: {path}")
    if given.all:
        draw(shelf, Path("docs/results") / IMAGES)
        departures.main(["docs/departures.md"])


def _read(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no page {path}. Name pages from the top of a checkout.")
    return path.read_text(encoding="utf-8")


def draw(shelf: Shelf, folder: Path) -> None:
    """Draw the pictures that are missing or show other numbers than the results."""
    picture = first_page.PICTURE
    if not picture.is_file() or first_page.about(shelf) not in picture.read_text("utf-8"):
        first_page.draw(shelf, picture)
        print(f"drawn: {picture}")
    for one in chosen(shelf.folder, None):
        found = exhibits.rows(one, shelf) if one.figure else []
        stale = [
            name
            for part, name in figures.drawable(one, found).items()
            if figures.stored_note(folder / f"{name}.png") != figures.about(one, part, found)
        ]
        for path in figures.draw(one, shelf, found, folder, ("png",)) if stale else ():
            print(f"drawn: {path}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RescindError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
