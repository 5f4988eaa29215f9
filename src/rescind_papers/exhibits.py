"""Tables of the papers and our numbers, each with a verdict, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rescind.experiments.cell import DataSettings
from rescind.experiments.significance import Difference, differences, markdown_differences, remark
from rescind.experiments.tables import (
    RANKING,
    Entry,
    ResultTable,
    cells_by_name,
    rows_as_markdown,
)
from rescind_papers.index import Exhibit, Part, Shelf, finding, picked

EXCEEDED, REACHED, MISSED = "exceeded", "reached", "not reached"
TRIVIAL, ABSENT = "paper below a trivial baseline", "data not at hand"
LATER, ALONE = "not run yet", "no number printed"
QUICK = "quick, not judged"
ONE_SEED = " (one seed)"
VERDICTS = {
    EXCEEDED: "ours is better by more than two standard errors over seeds",
    REACHED: "ours is within two standard errors (one seed: within 1 %, and it says so)",
    MISSED: "ours is worse by more than that",
    TRIVIAL: "the paper's number is one that a predictor without learning exceeds here",
    ABSENT: "the publisher's files cannot be had here",
    LATER: "the recipe or its row is waiting for a run",
    ALONE: "the paper prints no number here (a control of ours, or a figure that is only drawn), "
    "so ours is held against nothing",
}
"""Every verdict and its meaning."""
CLOSE = 0.01
"""With one seed there is no standard error: this relative difference counts as reached."""


@dataclass(frozen=True)
class Row:
    """One number of a table or figure."""

    part: Part
    entry: Entry
    verdict: str
    quick: str = ""
    """What was made smaller, if it is a quick run."""

    @property
    def ours(self) -> str:
        """Return our number as text. Quick ones are marked."""
        return f"{self.entry.ours()} (quick)" if self.quick else self.entry.ours()


def rows(exhibit: Exhibit, shelf: Shelf, quick: Mapping[str, str] | None = None) -> list[Row]:
    """Return every number of a table or figure, in order.

    quick: by recipe and cell ("paper/table: cell"), what was made smaller
    """
    tables = [(part, shelf.table(part)) for part in exhibit.parts]
    if exhibit.derive:
        tables = [(part, _gains(table)) for part, table in tables]
    floor_tables = [
        shelf.table(Part(name, columns=part.columns))
        for part in exhibit.parts
        for name in part.floors
        if not exhibit.derive
    ]
    floors = _floors([*floor_tables, *(table for _, table in tables)])
    out = []
    for part, table in tables:
        shown = picked(table.recipe, part)
        lower = {c.name for c in shown if c.path in part.lower}
        ranked = {c.name for c in shown if RANKING.search(c.path)}
        largest = _largest_class(part, table, shelf)
        for entry in table.entries:
            data = _data(table, entry.cell)
            counts = entry.metric in ranked and entry.cell not in table.floors
            if entry.floor is None and data is not None and counts:
                entry = replace(entry, floor=floors.get((data, entry.metric)))  # noqa: PLW2901
            if data is not None and (data.name, entry.metric) in largest:
                floor = largest[data.name, entry.metric]
                entry = replace(entry, floor=floor, floor_name="the largest class")  # noqa: PLW2901
            name = entry.cell.split("/", maxsplit=1)[0] if data is None else data.name
            how = "" if quick is None else quick.get(f"{part.recipe}: {entry.cell}", "quick")
            found = verdict(entry, entry.metric in lower, name in exhibit.absent)
            judged = found if not how or found in (ABSENT, LATER) else QUICK
            out.append(Row(part, entry, judged, how if entry.values or entry.words else ""))
    return out


def _largest_class(part: Part, table: ResultTable, shelf: Shelf) -> dict[tuple[str, str], float]:
    """Return the accuracy of always answering the largest class, by graph and column title.

    It is the minimum over leaving clients: only the others are measured, and the paper does not
    always say which client leaves.
    """
    if not part.floor:
        return {}
    titles = [c.name for c in picked(table.recipe, part) if c.path == "accuracy"]
    rows = finding(shelf.folder, part.floor)
    return {(row["graph"], title): row["when one leaves"] for row in rows for title in titles}


def _data(table: ResultTable, name: str) -> DataSettings | None:
    """Return the data of a cell; for a cell that is only printed, of cells with the same label."""
    cells = cells_by_name(table.recipe)
    if name in cells:
        return cells[name].data
    label = name.split("/", maxsplit=1)[0]
    same = [c.data for c in cells.values() if c.labels.get("data") == label]
    return same[0] if same else None


def _floors(tables: Sequence[ResultTable]) -> dict[tuple[DataSettings, str], float]:
    """Return the values of predictors without learning, by data and metric."""
    return {
        (cells_by_name(table.recipe)[e.cell].data, e.metric): e.mean
        for table in tables
        for e in table.entries
        if e.cell in table.floors and e.mean is not None
    }


def verdict(entry: Entry, lower: bool = False, absent: bool = False) -> str:
    """Compare ours with the paper's number, by the rules of `VERDICTS`.

    lower: lower is better
    """
    if entry.mean is None and not entry.words:
        return ABSENT if absent else LATER
    if entry.paper is None or entry.mean is None:
        return ALONE
    if entry.paper_below_floor and not lower:
        return TRIVIAL
    better = (entry.paper - entry.mean) if lower else (entry.mean - entry.paper)
    if entry.spread is None:
        near, mark = CLOSE * abs(entry.paper), ONE_SEED
    else:
        near, mark = 2 * entry.spread / len(entry.values) ** 0.5, ""
    return (EXCEEDED if better > near else MISSED if better < -near else REACHED) + mark


def _gains(table: ResultTable) -> ResultTable:
    """Return the gains of F3CRec and the second best over fine-tuning in percent (its Fig. 3)."""
    out = []
    found = {e.cell: e for e in table.entries}
    groups = dict.fromkeys(e.cell.rsplit("/", 1)[0] for e in table.entries)
    for group in groups:
        mine = {c.rsplit("/", 1)[1]: e for c, e in found.items() if c.startswith(f"{group}/")}
        base = mine.pop("FT", None)
        if base is None:
            continue
        others = {n: e for n, e in mine.items() if n != "F3CRec"}
        second = max(others, key=lambda n: others[n].mean or 0.0)
        printed = max(others, key=lambda n: others[n].paper or 0.0)
        ran = others[second].values and all(e.values for e in others.values())
        for label, ours, theirs in (
            ("F3CRec", mine["F3CRec"], mine["F3CRec"]),
            ("second best", others[second] if ran else replace(base, values=(), seeds=()),
             others[printed]),
        ):  # fmt: skip
            gained = _gain(ours, base)
            paper = None
            if theirs.paper is not None and base.paper is not None:
                paper = 100 * (theirs.paper / base.paper - 1)
            seeds = tuple(s for s in ours.seeds if s in base.seeds)
            cell = f"{group}/{label}"
            out.append(Entry(cell, "% over FT", gained, paper, seeds, digits=1))
    return replace(table, entries=tuple(out), floors=())


def _gain(mine: Entry, base: Entry) -> tuple[float, ...]:
    """Return the gain by seed, in percent."""
    under = dict(zip(base.seeds, base.values, strict=True))
    pairs = zip(mine.seeds, mine.values, strict=True)
    return tuple(100 * (value / under[seed] - 1) for seed, value in pairs if seed in under)


# -- formats --------------------------------------------------------------------------------------

HEAD = ("cell", "measure", "paper", "ours", "seeds", "verdict")


def _printed(row: Row) -> list[str]:
    entry = row.entry
    seeds = str(len(entry.values or entry.words) or "")
    ours = "" if not seeds else row.ours
    return [entry.cell, entry.metric, entry.published(), ours, seeds, row.verdict]


def markdown(exhibit: Exhibit, found: Sequence[Row]) -> str:
    """Return every part as a Markdown table below the name of its recipe."""
    said = [exhibit.notes] if exhibit.notes else []
    if exhibit.says:
        said.insert(0, f"The paper: {exhibit.says}")
    said = [" ".join(said)] if said else []
    for part in exhibit.parts:
        mine = [row for row in found if row.part == part]
        said.append(f"**{part.title}** (`rescind run {part.recipe}`)")
        said.append(rows_as_markdown([list(HEAD), *(_printed(row) for row in mine)]))
    return "\n\n".join(said)


def legend(found: Sequence[Row]) -> str:
    """Return the meaning of the verdicts of these rows, as a Markdown list."""
    given = dict.fromkeys(row.verdict.removesuffix(ONE_SEED) for row in found)
    return "\n".join(f"- *{one}*: {VERDICTS[one]}." for one in given if one in VERDICTS)


def compared(exhibit: Exhibit, shelf: Shelf) -> str:
    """Return differences between rows, paired by seed and corrected, as Markdown."""
    said = []
    for part in exhibit.parts if not exhibit.derive else ():
        table = shelf.table(part)
        for base in part.against:
            if base in table.recipe.names:
                apart: tuple[Difference, ...] = differences(table, base, table.recipe.names)
                if any(d.p is not None for d in apart):
                    said.append(f"**{part.title}**, paired by seed:")
                    said += [markdown_differences(apart, base), remark(apart)]
    return "\n\n".join(said)


def as_csv(exhibit: Exhibit, found: Iterable[Row]) -> str:
    """Return the numbers as CSV, a line per number."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(
        ["exhibit", "part", "recipe", "cell", "measure", "paper", "mean", "spread", "seeds",
         "words", "verdict", "quick"]
    )  # fmt: skip
    for row in found:
        e = row.entry
        write.writerow(
            [exhibit.place, row.part.title, row.part.recipe, e.cell, e.metric, _plain(e.paper),
             _plain(e.mean), _plain(e.spread), len(e.values or e.words), "; ".join(e.words),
             row.verdict, row.quick]
        )  # fmt: skip
    return out.getvalue()


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "$": r"\$"}


def latex(exhibit: Exhibit, found: Sequence[Row]) -> str:
    """Return every part as a plain LaTeX tabular."""
    said = [f"% {exhibit.place}: {exhibit.title}. {exhibit.source}"]
    for part in exhibit.parts:
        mine = [list(HEAD), *(_printed(row) for row in found if row.part == part)]
        said += [
            f"% {part.title}; rescind run {part.recipe}",
            r"\begin{tabular}{llrrrl}",
            r"\hline",
        ]
        lines = [" & ".join(_escaped(text) for text in row) + r" \\" for row in mine]
        said += [lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}", ""]
    return "\n".join(said)


def _escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def summary(every: Sequence[Exhibit], shelf: Shelf) -> str:
    """Return the count of each verdict by table and figure, as Markdown."""
    kinds = [EXCEEDED, REACHED, MISSED, TRIVIAL, ABSENT, LATER]
    out = [["table or figure", "numbers printed", *kinds]]
    for exhibit in every:
        found = [r for r in rows(exhibit, shelf) if r.entry.paper is not None]
        verdicts = [r.verdict.removesuffix(ONE_SEED) for r in found]
        page = f"[{exhibit.paper} {exhibit.title.split(':')[0]}]({exhibit.paper}.md#{exhibit.name})"
        out.append([page, str(len(found)), *(str(verdicts.count(kind) or "") for kind in kinds)])
    totals = [sum(int(row[n] or 0) for row in out[1:]) for n in range(1, len(out[0]))]
    return rows_as_markdown([*out, ["all", *map(str, totals)]])
