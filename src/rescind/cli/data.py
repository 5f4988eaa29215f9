"""`rescind data`: list, describe, get, import. For people: `data_show.py`, `data_people.py`."""

from __future__ import annotations

import json as json_module
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.data_people import admit_user, erase_rows
from rescind.cli.data_show import LEFT_OUT, left_out_of, left_out_told, show_rows
from rescind.cli.data_told import (
    misses_told,
    rated,
    repeated,
    rows_of_split,
    split_told,
    titled,
)

app = typer.Typer(
    help="Datasets: list, describe, get, import, append, show, erase, admit.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,
)

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
ColumnName = Annotated[str | None, Option(help="Name of this column, if unusual.")]
COUNTED = ("times", "ratings", "per user", "titles", "split")
"""What is said of imported data."""
_AGAIN = "To begin again, give the same command."
_NO_HEADER = "The first line is data; columns are named 1, 2, 3."
_MAX_ROWS = "Most rows to read. Default: 50 million, and of Parquet 20 a byte."
_TIME_UNIT = "Of whole numbers: s, ms, us or ns. Of dates: how they are written, such as %d/%m/%Y."
_TEXT_IDS = "Keep ids as text, also if they look like numbers."
Name = Annotated[str, Argument(help="A name from `rescind data list`.")]


@app.command("list")
def list_datasets(json: Json = False) -> None:
    """List the datasets: your own, then the public ones.

    Example: rescind data list
    """
    from rescind.data import describe, names
    from rescind.errors import DataError

    rows = sorted((describe(name) for name in names()), key=lambda row: row["kind"] != "imported")
    for row in rows:
        with suppress(DataError):  # a broken one is told where it is loaded
            row.update(left_out_of(row["name"]) if row["kind"] == "imported" else {})
    if json:
        _print_json({"datasets": rows})
        return
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("name", no_wrap=True), "what", "size", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["title"], _size(row))
    Console().print(table)
    for row in rows:
        if LEFT_OUT in row:
            typer.echo(f"{row['name']}: {left_out_told(row['name'], row)}")
    typer.echo("\nNext: rescind data describe NAME, or rescind data get NAME")


@app.command("describe")
def describe_dataset(name: Name, json: Json = False) -> None:
    """Describe a dataset: size, terms of use, source, and what methods need on it.

    Of imported data also its times, ratings, rows per user, and the method that `rescind run`
    would choose.

    Example: rescind data describe ml-1m
    """
    from rescind.data import describe

    about = describe(name)
    if own := about["kind"] == "imported":  # it is here, so it can be counted
        about |= _counted(name)
    else:
        about["memory"] = _memory(about)
    if json:
        _print_json(about)
        return
    lines = [("size", _size(about))]
    lines += [("left out", left_out_told(name, about))] if LEFT_OUT in about else []
    lines += [("terms", about["terms"] or "not stated")]
    lines += [("publisher", url) for url in about["publisher"]]
    lines += [("wheel", about["wheel"])] if about["wheel"] else []
    lines += [("variant", f"{variant}: {what}") for variant, what in about["variants"].items()]
    lines += [(what, about[what]) for what in (*COUNTED, "method") if what in about]
    lines += [("repeats", repeated(about["repeats"]))] if about.get("repeats") else []
    lines += [("misses", told)] if (told := misses_told(about)) else []
    lines += [("digest", about["digest"] or "not known")]
    lines += [("note", about["notes"])] if about["notes"] else []
    typer.echo(f"{about['title']} ({about['name']})")
    for what, text in lines:
        typer.echo(f"  {what:9}  {text}")
    for method, need in (about["memory"] or {}).items():
        time = f", about {about['seconds']:,.0f} CPU s to solve" if method == "Gram" else ""
        typer.echo(f"  {'memory':9}  {method:<12} up to {need / 1e9:.1f} GB{time}")
    get = "" if own else f"rescind data get {name}; "
    typer.echo(f"\nNext: {get}rescind run --data {name}")


def _counted(name: str) -> dict[str, Any]:
    """Return what imported data is like, and the method to begin with."""
    import numpy as np

    from rescind.core.memory import free_memory
    from rescind.data import load
    from rescind.data.known_pairs import known_pairs
    from rescind.experiments.advice import advise, memory_of_methods
    from rescind.experiments.needs import Sizes
    from rescind.experiments.own_data import ties_of
    from rescind.methods.additive._solve import seconds_to_solve

    data: Any = load(name)
    sizes, each = Sizes.of(data), np.bincount(data.user, minlength=1)
    ties = ties_of(data)
    advice = advise(sizes, ties, free_memory())
    low, middle, high = (int(np.quantile(each[each > 0], part)) for part in (0, 0.5, 1))
    times = "none"
    if ties is not None:
        times = f"{_day(data.time.min())} to {_day(data.time.max())}"
        times += f", {100 * ties:.0f} % of the rows have the time of another item of their user"
    return {
        **data.size,
        **left_out_of(name),
        "digest": data.digest,  # without rows that were erased, as the size
        "times": times,
        "ratings": rated(data),
        "per user": f"{low:,} to {high:,} rows, half of the users have {middle:,} or more",
        "titles": titled(data),
        **({"split": split_told(parts)} if (parts := rows_of_split(data)) else {}),
        "repeats": data.repeats,
        "held_out_pairs": known_pairs(data),
        "method": f"{advice.method}, because: {'; '.join(advice.why[1:])}",
        "memory": memory_of_methods(sizes, ties is not None),
        "seconds": max(seconds_to_solve(sizes.items), 1),
    }


def _day(seconds: Any) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(int(seconds), UTC).date().isoformat()
    except (OverflowError, OSError, ValueError):  # places of a sequence, or no time of our era
        return f"{int(seconds):,}"


def _memory(about: dict[str, Any]) -> dict[str, int] | None:
    """Return the bytes that each method needs that can learn from it; None for graphs."""
    if not {"users", "items", "rows"} <= about.keys():
        return None
    from rescind.experiments.advice import memory_of_methods
    from rescind.experiments.needs import Sizes
    from rescind.methods.additive._solve import seconds_to_solve

    about["seconds"] = max(seconds_to_solve(about["items"]), 1)
    sizes = Sizes(about["users"], about["items"], about["rows"])
    return memory_of_methods(sizes, about.get("times") != "none")


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
        _print_json(result)
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
    separator: Annotated[str | None, Option(help="The character between cells.")] = None,
    no_header: Annotated[bool, Option("--no-header", help=_NO_HEADER)] = False,
    encoding: Annotated[str, Option(help="Encoding of a text file.")] = "utf-8",
    time_unit: Annotated[str, Option(help=_TIME_UNIT)] = "s",
    text_ids: Annotated[bool, Option("--text-ids", help=_TEXT_IDS)] = False,
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
    ignore: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="Leave this column out; repeatable.")
    ] = None,
    drop_bad_rows: Annotated[
        bool, Option("--drop-bad-rows", help="Leave out rows with an invalid cell, and say which.")
    ] = False,
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
    separator: Annotated[str | None, Option(help="The character between cells.")] = None,
    no_header: Annotated[bool, Option("--no-header", help=_NO_HEADER)] = False,
    time_unit: Annotated[str | None, Option(help=_TIME_UNIT)] = None,
    text_ids: Annotated[bool, Option("--text-ids", help=_TEXT_IDS)] = False,
    ignore: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="Leave this column out; repeatable.")
    ] = None,
    drop_bad_rows: Annotated[
        bool, Option("--drop-bad-rows", help="Leave out rows with an invalid cell, and say which.")
    ] = False,
    json: Json = False,
) -> None:
    """Add new interactions to imported data. The same file given again adds nothing.

    The file is read as the import was: the same columns, separator and units, unless you say. Rows
    that were erased and rows of users who withdrew stay away, also if the file has them. A user who
    returns is let in with `rescind data admit`.

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
        _print_json({"name": name, **counts, **done.dataset.size})
        return
    told = f"{done.rows:,} row{'' if done.rows == 1 else 's'} added"
    if done.withheld:
        told += f", {done.withheld:,} withheld (users who withdrew, or erased rows)"
    elif not done.rows:
        told = "0 rows: the file has none, or was added before"
    typer.echo(f"{name}: {told}; now {_size(done.dataset.size)}")
    if done.repeated:
        typer.echo(f"  of these, {repeated(done.repeated)}")
    if done.deleted:
        rows = f"{done.deleted:,} stored row{'' if done.deleted == 1 else 's'}"
        typer.echo(
            f"  {rows} that earlier requests had left out were deleted with this, without a "
            f"receipt (rescind data erase before it gives one)"
        )
    if counts := left_out_of(name):
        typer.echo(f"  {left_out_told(name, counts)}")
    typer.echo(f"\nNext: rescind run --data {name}, with the --method and --out as before")


app.command("show")(show_rows)
app.command("erase")(erase_rows)
app.command("admit")(admit_user)


def _report_import(data: Any, file: Path, json: bool) -> None:
    from rescind.data.known_pairs import known_pairs
    from rescind.data.obtain import where

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
        _print_json(result | ({"split_rows": parts} if parts else {}))
        return
    typer.echo(f"{data.name}: {_size(result)}, from {file}")
    if data.repeats:
        typer.echo(f"  repeats {repeated(data.repeats)}")
    if told := misses_told(result):
        typer.echo(f"  misses  {told}")
    if data.titles is not None:
        typer.echo(f"  titles  {titled(data)}")
    if parts:
        typer.echo(f"  split   {split_told(parts)}")
    typer.echo(f"  place   {result['place']}\n  digest  {data.digest}")
    typer.echo(f"\nNext: rescind data describe {data.name}; in Python: rs.load({data.name!r})")


def _with_status(text: str, work: Any) -> Any:
    """Run `work(say)` while stderr shows that it goes on; stdout stays clean."""
    from rescind.cli.progress import working
    from rescind.cli.stopping import interruptible

    with interruptible("Nothing was stored.", _AGAIN), working(text) as say:
        return work(say)


def _size(about: dict[str, Any]) -> str:
    words = ("users", "items", "rows", "nodes", "edges", "features", "classes")
    return ", ".join(f"{about[word]:,} {word}" for word in words if word in about)


def _print_json(value: Any) -> None:
    typer.echo(json_module.dumps(value, ensure_ascii=False))
