"""Tables of the papers beside our numbers, each with a word, as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rescind.experiments.significance import Difference, differences, markdown_differences, remark
from rescind.experiments.table_forms import escaped, rows_as_csv, rows_as_markdown
from rescind.experiments.tables import Entry, ResultTable
from rescind_papers import verdicts
from rescind_papers.index import Exhibit, Part, Shelf
from rescind_papers.judging import Judge, Row, floors_of

__all__ = ["Row", "as_csv", "compared", "latex", "legend", "markdown", "rows"]


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
    floors = floors_of([*floor_tables, *(table for _, table in tables)])
    out = []
    for part, table in tables:
        judge = Judge(exhibit, shelf, part, table, floors)
        found = [judge.row(entry) for entry in table.entries]
        out += found if quick is None else [_quick(row, quick) for row in found]
    return out


def _quick(row: Row, quick: Mapping[str, str]) -> Row:
    """Return the row of a quick run, which is not judged."""
    how = quick.get(f"{row.part.recipe}: {row.entry.cell}", "quick")
    waits = row.verdict in (verdicts.ABSENT, verdicts.LATER)
    return replace(
        row,
        verdict=row.verdict if waits else verdicts.QUICK,
        quick=how if row.entry.values or row.entry.words else "",
    )


def _gains(table: ResultTable) -> ResultTable:
    """Return the gains of F3CRec and the second best over fine-tuning in percent (its Fig. 3).

    The second best is one of the paper's learners; controls of ours do not count.
    """
    out = []
    learners = {cell.rsplit("/", 1)[1] for cell in table.recipe.paper}
    found = {e.cell: e for e in table.entries if e.cell.rsplit("/", 1)[1] in learners}
    groups = dict.fromkeys(cell.rsplit("/", 1)[0] for cell in found)
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
    under = dict(zip(base.seeds, base.values, strict=True))
    pairs = zip(mine.seeds, mine.values, strict=True)
    return tuple(100 * (value / under[seed] - 1) for seed, value in pairs if seed in under)


# -- formats --------------------------------------------------------------------------------------

HEAD = ("cell", "measure", "paper", "authors' method here", "ours", "runs", "word")


def _printed(row: Row) -> list[str]:
    entry = row.entry
    runs = str(len(entry.values or entry.words) or "")
    ours = "" if not runs else row.ours
    theirs = "" if row.authors is None or row.authors.mean is None else row.authors.ours()
    word = "" if row.verdict == verdicts.ALONE else row.verdict
    return [entry.cell, entry.metric, entry.published(), theirs, ours, runs, word]


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
        said += filter(None, [_bounds(mine), _reasons(mine)])
    return "\n\n".join(said)


def short(found: Sequence[Row]) -> str:
    """Return rows of several parts as one Markdown table."""
    return rows_as_markdown([["part", *HEAD], *([r.part.title, *_printed(r)] for r in found)])


def _bounds(found: Sequence[Row]) -> str:
    """Return the printed pairs that exclude each other, with the bound, as Markdown."""
    pairs = {row.entry.cell: row.bound for row in found if row.bound}
    if not pairs:
        return ""
    head = ["cell", "printed HR@20", "printed NDCG@20", "least NDCG@20 with this HR@20"]
    lines = [[cell, *(f"{number:.4f}" for number in pair)] for cell, pair in pairs.items()]
    why = (
        "These pairs exclude each other: a list that hits a user has an NDCG@20 of at least that "
        "of one hit at place 20, and with the test items of the users here the least mean is:"
    )
    return f"{why}\n\n{rows_as_markdown([head, *lines])}"


def _reasons(found: Sequence[Row]) -> str:
    """Return why numbers are worse, or another quantity, as a Markdown list."""
    known = dict.fromkeys(row.reason for row in found if row.reason)
    rest = "all others" if len(known) > 1 else "all of them"
    lines = [f"- {rest if cells == '*' else f'`{cells}`'}: {why}" for cells, why in known]
    return "\n".join(["Why worse, or not comparable:", "", *lines]) if lines else ""


def legend(found: Sequence[Row]) -> str:
    """Return the meaning of the words of these rows, as a Markdown list."""
    known, given = verdicts.MEANINGS, dict.fromkeys(row.verdict for row in found)
    return "\n".join(f"- *{one}*: {known[one]}." for one in given if one in known)


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
    head = (
        "exhibit,part,recipe,cell,measure,paper,authors here,mean,spread,runs,words,verdict,reason"
    )
    rows: list[list[object]] = [[*head.split(","), "quick"]]
    for row in found:
        e = row.entry
        rows.append([
            exhibit.place, row.part.title, row.part.recipe, e.cell, e.metric, e.paper,
            row.authors.mean if row.authors else None, e.mean, e.spread,
            len(e.values or e.words), "; ".join(e.words), row.verdict,
            row.reason[1] if row.reason else "", row.quick,
        ])  # fmt: skip
    return rows_as_csv(rows) + "\n"


def latex(exhibit: Exhibit, found: Sequence[Row]) -> str:
    """Return every part as a plain LaTeX tabular."""
    said = [f"% {exhibit.place}: {exhibit.title}. {exhibit.source}"]
    for part in exhibit.parts:
        mine = [list(HEAD), *(_printed(row) for row in found if row.part == part)]
        said += [
            f"% {part.title}; rescind run {part.recipe}",
            r"\begin{tabular}{llrrrrl}",
            r"\hline",
        ]
        lines = [" & ".join(map(escaped, row)) + r" \\" for row in mine]
        said += [lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}", ""]
    return "\n".join(said)
