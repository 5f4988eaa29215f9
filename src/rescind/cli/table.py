"""`rescind table`: ours beside the paper's."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    recipe: Annotated[str, typer.Argument(help="paper/table under recipes/, or a TOML file.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Which metrics [HR@20 and NDCG@20].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Print the committed results of a recipe: mean and spread over seeds, beside the paper's."""
    from rescind.errors import ConfigError, suggest
    from rescind.recipe import locate, read
    from rescind.tables import collect, lines, markdown

    found = read(locate(recipe))
    metrics = tuple(metric) if metric else ("HR@20", "NDCG@20")
    known = {name for line in lines(found) for name in line["test"]}
    for name in metrics:
        if known and name not in known:
            raise ConfigError(f"no result has the metric '{name}'; {suggest(name, known)}")
    table = collect(found, metrics)
    if as_json:
        rows = [
            {
                "cell": e.cell,
                "metric": e.metric,
                "mean": e.mean,
                "spread": e.spread,
                "seeds": len(e.values),
                "paper": e.paper,
            }
            for e in table.entries
        ]
        typer.echo(json.dumps({"title": found.title, "entries": rows, "stale": table.stale}))
        return
    typer.echo(found.title + (f" ({found.source})" if found.source else ""))
    if as_markdown:
        typer.echo(markdown(table))
    else:
        _pretty(markdown(table))
    if table.stale:
        typer.echo(f"{table.stale} older result lines belong to other settings and are left out.")
    if not any(e.values for e in table.entries):
        typer.echo(f"Nothing was run yet. Next: rescind run {found.path}")


def _pretty(text: str) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = [line.strip("|").split("|") for line in text.splitlines()]
    head, body = rows[0], rows[2:]
    out = Table()
    for number, name in enumerate(head):
        out.add_column(name.strip(), justify="left" if number == 0 else "right")
    for row in body:
        out.add_row(*[cell.strip() for cell in row])
    Console().print(out)
