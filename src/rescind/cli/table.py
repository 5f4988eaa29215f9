"""`rescind table`: recorded results next to the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from rescind.cli.options import Json, Recipe

if TYPE_CHECKING:
    from rescind.experiments.recipe import Column
    from rescind.experiments.recipe import Recipe as CellsOfRecipe
    from rescind.experiments.significance import Difference
    from rescind.experiments.tables import ResultTable


def command(
    recipe: Recipe,
    metric: Annotated[
        list[str] | None,
        Option(
            help="A metric, verdict, or a path such as seconds.cpu; several: repeat it. Default: "
            "those of the recipe, or HR and NDCG at its lengths of lists (run.k), "
            "and the verdict of cells that forget."
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            metavar="CELL",
            help="Also print the difference of each cell to this one. "
            "--csv and --latex then have the differences alone.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also plot results over the swept setting, as .svg or .png."),
    ] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    as_csv: Annotated[bool, Option("--csv", help="Print the numbers as CSV.")] = False,
    as_latex: Annotated[bool, Option("--latex", help="Print a tabular of LaTeX.")] = False,
) -> None:
    """Print the recorded results of a recipe: mean and spread over seeds, and the paper's numbers.

    Numbers below item popularity on the same data are marked if the recipe has a cell for it.

    Example: rescind table basics/floor --against ml-100k/Popularity
    """
    from rescind.experiments.recipe_file import check, locate

    _check_form(as_json, as_markdown, as_csv, as_latex)
    path = locate(recipe)
    check(path, (), against)
    from rescind.experiments import table_forms, verdicts
    from rescind.experiments.significance import differences
    from rescind.experiments.tables import collect, remarks, without_values

    found = _read(path)
    columns = tuple(verdicts.named(name) for name in metric or ())
    _check_columns(found, columns)
    table = collect(found, columns)
    if plot is not None:
        from rescind.experiments.sweeps import draw

        draw(table, plot)
    paired = () if against is None else differences(table, against)
    if as_json:
        typer.echo(json.dumps(_plain(table, paired)))
        return
    if as_csv or as_latex:
        typer.echo(table_forms.as_csv(table) if as_csv else table_forms.latex(table))
        for remark in (*remarks(table), *filter(None, [without_values(table)])):
            typer.echo(remark, err=True)
        return
    shown = str if as_markdown else _aligned
    typer.echo(found.title + (f" ({found.source})" if found.source else ""))
    typer.echo(shown(table_forms.markdown(table)))
    for remark in remarks(table):
        typer.echo(remark)
    nothing = without_values(table)
    if against is not None and not nothing:
        _compare(paired, against, shown)
    if plot is not None:
        typer.echo(f"Written: {plot}")
    if nothing:
        typer.echo(nothing)
    elif not any(e.ran for e in table.entries) and not table.stale:
        typer.echo(f"No results are recorded yet. Next: rescind run {recipe} --record")


def _check_form(*forms: bool) -> None:
    from rescind.errors import ConfigError

    if sum(forms) > 1:
        raise ConfigError("give one of --json, --markdown, --csv and --latex.")


def _check_columns(recipe: CellsOfRecipe, columns: Sequence[Column]) -> None:
    """Refuse a column that no result has, with those that there are."""
    from rescind.errors import ConfigError, suggest
    from rescind.experiments.tables import lines
    from rescind.experiments.verdicts import VERDICT

    recorded = lines(recipe)
    for column in columns:
        if recorded and all(column.of(line) is None for line in recorded):
            known = {name for line in recorded for name in line["test"]}
            known |= {VERDICT.path for line in recorded if VERDICT.of(line) is not None}
            hint = suggest(column.path, known)
            raise ConfigError(f"no result has '{column.path}'; {hint} Other lengths: [run] k.")


def _read(path: Path) -> CellsOfRecipe:
    """Read a recipe without the code of its methods, which needs torch, where this is enough."""
    from rescind.errors import ConfigError
    from rescind.experiments import described
    from rescind.experiments.recipe import read

    try:
        return read(path, look=described.find)
    except ConfigError:  # a method of somebody's own; or a mistake, which the code itself names
        return read(path)


def _compare(paired: tuple[Difference, ...], against: str, shown: Callable[[str], str]) -> None:
    """Print paired differences and their number: some of many are significant by chance."""
    from rescind.experiments.significance import markdown_differences, on_few_seeds, remark

    if not paired:
        typer.echo(f"\nNo cell shares a seed with '{against}' on the same rows yet.")
        return
    typer.echo(f"\nDifferences to '{against}', paired by seed (the same seed is the same split)")
    typer.echo(shown(markdown_differences(paired, against)))
    for line in filter(None, (remark(paired), on_few_seeds(paired))):
        typer.echo(line)


def _plain(table: ResultTable, paired: tuple[Difference, ...]) -> dict[str, Any]:
    from rescind.experiments.significance import holm

    rows = [
        {n: getattr(e, n) for n in ("cell", "metric", "mean", "spread")}
        | {
            "words": list(e.words),
            "seeds": len(e.values or e.words),
            "paper": e.paper,
            "popularity": e.floor,
            "paper_below_popularity": e.paper_below_floor,
        }
        for e in table.entries
    ]
    compared = [
        {n: getattr(d, n) for n in ("cell", "metric", "mean", "error")}
        | {"pairs": len(d.values), "p": d.p, "adjusted": adjusted, "effect": d.effect}
        for d, adjusted in zip(paired, holm([d.p for d in paired]), strict=True)
    ]
    return {
        "title": table.recipe.title,
        "entries": rows,
        "controls": list(table.controls),
        "used": dict(table.used),
        "failed_checks": {cell: dict(one.checks) for cell, one in table.failed.items()},
        "differences": compared,
        "stale": list(table.stale),
        "mixed_data": list(table.mixed),
    }


def _aligned(text: str) -> str:
    """Return a Markdown table as plain columns: the first one to the left, the others right."""
    plain = text.replace("**", "").splitlines()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in plain]
    rows.pop(1)
    first, *others = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    head, *below = [
        "  ".join(
            [row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], others, strict=True))]
        ).rstrip()
        for row in rows
    ]
    return "\n".join([head, "-" * len(head), *below])
