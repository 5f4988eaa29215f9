from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.data_describe import (
    Json,
    Name,
    describe_dataset,
    in_words,
    print_json,
    problems,
    repeated,
    rows_of_split,
    size,
    titled,
)
from rescind.cli.data_show import show_rows
from rescind.core.words import count_of

app = typer.Typer(
    help="Datasets: list, describe, get, import, append, show.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,
)

ColumnName = Annotated[str | None, Option(help="Name of this column, if unusual.")]
Separator = Annotated[str | None, Option(help="The character between cells.")]
NoHeader = Annotated[
    bool, Option("--no-header", help="The first line is data; columns are named 1, 2, 3.")
]
TextIds = Annotated[
    bool, Option("--text-ids", help="Keep ids as text, also if they look like numbers.")
]
Ignore = Annotated[
    list[str] | None, Option(metavar="COLUMN", help="Leave this column out; repeatable.")
]
DropBadRows = Annotated[
    bool, Option("--drop-bad-rows", help="Leave out rows with an invalid cell, and say which.")
]
_AGAIN = "To begin again, give the same command."
_MAX_ROWS = "Most rows to read. Default: 50 million, and of Parquet 20 a byte."
_TIME_UNIT = "Of whole numbers: s, ms, us or ns. Of dates: how they are written, such as %d/%m/%Y."


@app.command("list")
def list_datasets(json: Json = False) -> None:
    """List the datasets: your own, then the public ones.

    Example: rescind data list
    """
    from rescind.data import describe, names

    rows = sorted((describe(name) for name in names()), key=lambda row: row["kind"] != "imported")
    if json:
        print_json({"datasets": rows})
        return
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("name", no_wrap=True), "what", "size", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["title"], size(row))
    Console().print(table)
    typer.echo("\nNext: rescind data describe NAME, or rescind data get NAME")


@app.command("get")
def get_dataset(
    name: Name,
    given: Annotated[
        Path | None, Option("--from", help="The publisher's archive or folder, if you have it.")
    ] = None,
    json: Json = False,
) -> None:
    """Obtain a dataset, check it, and print where it is.

    Example: rescind data get ml-1m
    """
    from rescind.data import load
    from rescind.data.obtain import where

    data = _with_status(f"looking for {name}", lambda say: load(name, say=say, given=given))
    result = {
        "name": name,
        "rows": len(data),
        "source": data.source,
        "place": where(name, data.source),
        "digest": data.digest,
        "terms": data.terms,
    }
    if json:
        print_json(result)
        return
    what = "nodes" if hasattr(data, "edge_index") else "rows"
    typer.echo(f"{name}: {len(data):,} {what}, found in: {data.source}")
    if result["place"]:
        typer.echo(f"  place   {result['place']}")
    typer.echo(f"  digest  {data.digest}\n  terms   {data.terms}")
    typer.echo(f"\nNext: rescind data describe {name}")


@app.command("import")
def import_dataset(
    file: Annotated[
        Path, Argument(help="A .csv, .tsv, .inter (RecBole), .txt (sequences) or .parquet file.")
    ],
    name: Annotated[str, Option(help="Name of the new dataset.")],
    user: ColumnName = None,
    item: ColumnName = None,
    rating: ColumnName = None,
    time: ColumnName = None,
    split: ColumnName = None,
    separator: Separator = None,
    no_header: NoHeader = False,
    encoding: Annotated[str, Option(help="Encoding of a text file.")] = "utf-8",
    time_unit: Annotated[str, Option(help=_TIME_UNIT)] = "s",
    text_ids: TextIds = False,
    terms: Annotated[str, Option(help="Terms of use, shown with the data.")] = "",
    replace: Annotated[bool, Option("--replace", help="Overwrite an earlier import.")] = False,
    max_rows: Annotated[int | None, Option(min=1, help=_MAX_ROWS)] = None,
    title: Annotated[str | None, Option(help="Column with the name of an item.")] = None,
    genres: Annotated[
        str | None, Option(help="Columns of words about an item: genre,brand.")
    ] = None,
    items: Annotated[
        Path | None, Option(metavar="FILE", help="A table about items: item, title, genres, ...")
    ] = None,
    ignore: Ignore = None,
    drop_bad_rows: DropBadRows = False,
    json: Json = False,
) -> None:
    """Import interactions from your own file. Nothing is stored if a cell is invalid.

    A rating or time column without any value is taken as absent, with one line that says so.

    Example: rescind data import ratings.csv --name mine --user customer --item product
    """
    from rescind.data import import_file

    roles = {"user": user, "item": item, "rating": rating, "time": time, "split": split}
    roles |= {"title": title, "genres": genres}
    settings: dict[str, Any] = {
        "columns": {role: column for role, column in roles.items() if column is not None},
        "separator": separator,
        "header": not no_header,
        "encoding": encoding,
        "time_unit": time_unit,
        "text_ids": text_ids,
        "terms": terms,
        "replace": replace,
        "max_rows": max_rows,
        "ignore": ignore or (),
        "drop_bad_rows": drop_bad_rows,
        "items": items,
        "tell": lambda text: typer.echo(text, err=True),
    }
    data = _with_status(f"reading {file.name}", lambda _: import_file(file, name, **settings))
    _report_import(data, file, json)


@app.command("append")
def append_rows(
    name: Annotated[str, Argument(help="An imported dataset.")],
    file: Annotated[Path, Argument(help="New interactions, in a file as for import.")],
    user: ColumnName = None,
    item: ColumnName = None,
    rating: ColumnName = None,
    time: ColumnName = None,
    separator: Separator = None,
    no_header: NoHeader = False,
    time_unit: Annotated[str | None, Option(help=_TIME_UNIT)] = None,
    text_ids: TextIds = False,
    ignore: Ignore = None,
    drop_bad_rows: DropBadRows = False,
    json: Json = False,
) -> None:
    """Add new interactions to imported data. The same file given again adds nothing.

    The file is read as the import was: the same columns, separator and units, unless you say. Rows
    that were erased and rows of users who withdrew stay away, also if the file has them. A user who
    returns is let in with `rescind request readmit`.

    Example: rescind data append mine today.csv
    """
    from rescind.data.importing import append_file

    roles = {"user": user, "item": item, "rating": rating, "time": time}
    said = {
        "separator": separator,
        "header": False if no_header else None,
        "time_unit": time_unit,
        "text_ids": text_ids or None,
        "ignore": ignore,
    }
    settings: dict[str, Any] = {
        "columns": {role: column for role, column in roles.items() if column is not None},
        **{name: value for name, value in said.items() if value is not None},
        "drop_bad_rows": drop_bad_rows,
        "tell": lambda text: typer.echo(text, err=True),
    }
    done = _with_status(f"reading {file.name}", lambda _: append_file(name, file, **settings))
    if json:
        counts = {"added": done.rows, "withheld": done.withheld, "repeated": done.repeated}
        counts["deleted"] = done.deleted
        print_json({"name": name, **counts, **done.dataset.size})
        return
    told = f"{count_of(done.rows, 'row')} added"
    if done.withheld:
        told += f", {done.withheld:,} withheld (users who withdrew, or erased rows)"
    elif not done.rows:
        told = "0 rows: the file has none, or was added before"
    typer.echo(f"{name}: {told}; now {size(done.dataset.size)}")
    if done.repeated:
        typer.echo(f"  of these, {repeated(done.repeated)}")
    if done.deleted:
        typer.echo(f"  {done.deleted:,} stored rows, left out after requests, were deleted with it")
    typer.echo(f"\nNext: rescind run --data {name}, with the --method and --out as before")


app.command("describe")(describe_dataset)
app.command("show")(show_rows)


def _report_import(data: Any, file: Path, json: bool) -> None:
    from rescind.data.obtain import where
    from rescind.data.split import known_pairs

    result = {
        "name": data.name,
        **data.size,
        "ratings": data.rating is not None,
        "times": data.has_time,
        "split": data.split is not None,
        "titles": data.titles is not None,
        "repeats": data.repeats,
        "held_out_pairs": known_pairs(data),
        "place": where(data.name, data.source),
        "digest": data.digest,
    }
    parts = rows_of_split(data)
    if json:
        print_json(result | ({"split_rows": parts} if parts else {}))
        return
    typer.echo(f"{data.name}: {size(result)}, from {file}")
    lines = problems(result)
    lines += [("titles", titled(data))] if data.titles is not None else []
    lines += [("split", in_words(parts))] if parts else []
    for what, text in (*lines, ("place", result["place"]), ("digest", data.digest)):
        typer.echo(f"  {what:7} {text}")
    typer.echo(f"\nNext: rescind data describe {data.name}; in Python: rs.load({data.name!r})")


def _with_status(text: str, work: Any) -> Any:
    """Run `work(say)` while stderr shows that it goes on; stdout stays clean."""
    from rescind.cli.progress import working
    from rescind.cli.stopping import interruptible

    with interruptible("Nothing was stored.", _AGAIN), working(text) as say:
        return work(say)
