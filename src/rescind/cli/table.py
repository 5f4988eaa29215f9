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
    typer.echo(markdown(table) if as_markdown else _aligned(markdown(table)))
    if table.stale:
        typer.echo(f"{table.stale} older result lines belong to other settings and are left out.")
    if not any(e.values for e in table.entries):
        typer.echo(f"Nothing was run yet. Next: rescind run {found.path}")


def _aligned(text: str) -> str:
    """A Markdown table as plain columns."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    rows.pop(1)
    wide = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    out = []
    for row in rows:
        first, *others = (
            c.ljust(w) if n == 0 else c.rjust(w)
            for n, (c, w) in enumerate(zip(row, wide, strict=True))
        )
        out.append("  ".join([first, *others]).rstrip())
    return "\n".join([out[0], "-" * len(out[0]), *out[1:]])
