"""A table of results as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

from rescind.experiments.tables import ResultTable

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "$": r"\$", "<": "$<$"}


def markdown(table: ResultTable) -> str:
    """Return the table in Markdown: a row per cell, ours and the paper's for each metric."""
    return rows_as_markdown(_rows(table))


def latex(table: ResultTable) -> str:
    """Return the same table as a plain tabular of LaTeX."""
    return rows_as_latex(_rows(table))


def rows_as_latex(rows: list[list[str]]) -> str:
    """Return rows as a tabular. The first row is the heading; **bold** stays bold."""
    head, *rest = [" & ".join(map(_bold, row)) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * head.count(' & ')}}}"
    return "\n".join([begin, r"\hline", head, r"\hline", *rest, r"\hline", r"\end{tabular}"])


def as_csv(table: ResultTable) -> str:
    """Return the numbers as CSV, a line per cell and metric."""
    rows: list[list[object]] = [["cell", "metric", "mean", "spread", "seeds", "paper", "words"]]
    for e in table.entries:
        seeds = len(e.values or e.words)
        rows.append([e.cell, e.metric, e.mean, e.spread, seeds, e.paper, "; ".join(e.words)])
    return rows_as_csv(rows)


def rows_as_csv(rows: list[list[object]]) -> str:
    """Return rows as CSV: numbers with six digits, None as an empty cell."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerows([f"{c:.6g}" if isinstance(c, float) else c for c in row] for row in rows)
    return out.getvalue().rstrip("\n")


def _bold(text: str) -> str:
    inside = text.removeprefix("**").removesuffix("**")
    return escaped(text) if inside == text else rf"\textbf{{{escaped(inside)}}}"


def escaped(text: str) -> str:
    """Return a text for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _rows(table: ResultTable) -> list[list[str]]:
    """Return the rows of a printed table, the heading first.

    If the recipe names its columns or has no paper, those without a published number have no
    "paper".
    """
    metrics = tuple(dict.fromkeys(e.metric for e in table.entries))
    of_paper = bool(table.recipe.paper) and not table.recipe.columns
    printed = {e.metric for e in table.entries if e.paper is not None or of_paper}
    head = ["cell", "seeds"]
    for metric in metrics:
        head += [f"{metric} ours", f"{metric} paper"] if metric in printed else [metric]
    rows = [head]
    for name in table.recipe.names:
        mine = [e for e in table.entries if e.cell == name]
        shown = f"{name}: {table.used[name]}" if name in table.used else name
        row = [shown, str(max((len(e.values or e.words) for e in mine), default=0))]
        for entry in mine:
            row += [entry.ours(), entry.published()] if entry.metric in printed else [entry.ours()]
        rows.append(row)
    return rows


def rows_as_markdown(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table. The first row is the heading."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
