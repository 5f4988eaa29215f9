"""Where new rows and requests come from: files, and databases by their address."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError, RescindError
from rescind.home import Ledger, Request
from rescind.home.ledger import keyed_digest
from rescind.requests.adding import add_words, refuse
from rescind.requests.words import in_mapping

COLUMNS = ("kind", "user", "item", "received", "case")
"""Of a table of requests; `kind` and `user` must be there."""
Row = Mapping[str, str]


def files_at(pattern: Path) -> list[Path]:
    """Return the file of this name, the files of a folder, or those that a glob finds."""
    if pattern.is_file():
        return [pattern]
    if pattern.is_dir():
        found: Iterable[Path] = pattern.iterdir()
    else:
        parts = pattern.parts
        first = next((n for n, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
        found = Path(*parts[:first]).glob(str(Path(*parts[first:]))) if first < len(parts) else ()
    return sorted(path for path in found if path.is_file() and path.name[0] != ".")


def queried(address: str, query: str, base: Path, **days: date) -> tuple[list[str], list[Any]]:
    """Return the columns and rows of a query. days: bound to their names, where it has them"""
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    try:
        url = sqlalchemy.make_url(address)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.drivername == "sqlite" and url.database:
            if not (file := base / url.database).is_file():
                raise DataError(f"there is no database {file}. Mend its address.")
            url = url.set(database=str(file))
        text = sqlalchemy.text(query)
        bound = {name: str(day) for name, day in days.items() if name in text._bindparams}
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            found = connection.execute(text, bound)
            return list(found.keys()), [tuple(row) for row in found]
    except ArgumentError as error:
        raise ConfigError(f"'{address}' is not the address of a database ({error}).") from None
    except SQLAlchemyError as error:  # an address may have a password in it
        why = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise DataError(f"the database did not answer the query: {why}.") from None


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Any]) -> None:
    """Write rows so that the same rows give the same file, in whichever order they come."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(sorted([_cell(cell) for cell in row] for row in rows))
    write_atomically(path, text.getvalue().encode(), private=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)


def read_csv(path: Path) -> tuple[list[str], list[Any]]:
    """Return the columns and rows of a CSV."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            names, *rows = [*csv.reader(file, strict=True)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8: {error}.") from None
    return [name.strip().lower() for name in names], [row for row in rows if any(row)]


def add_rows(
    ledger: Ledger, dataset: str, source: str, table: tuple[list[str], list[Any]], audit: str
) -> tuple[list[Request], list[Request]]:
    """Write down the requests of a table, each row once; return them, and those refused.

    Rows of one person that agree in all but the item are one request.
    """
    columns, rows = table
    if not {"kind", "user"} <= {*columns} <= {*COLUMNS}:
        raise DataError(f"{source} needs columns of {', '.join(COLUMNS)}; got {', '.join(columns)}")
    journal = f"taken:{dataset}"
    taken, groups = ledger.journal(journal), dict[tuple[str, ...], dict[str, str]]()
    for row in rows:
        cells = dict.fromkeys(COLUMNS, "")
        cells |= {name: _cell(cell).strip() for name, cell in zip(columns, row, strict=False)}
        mark = keyed_digest(ledger.key, "row", *cells.values())
        if mark not in taken:
            same = tuple(cells[name] for name in COLUMNS if name != "item")
            groups.setdefault(same, {})[mark] = cells["item"]
    added, refused = list[Request](), list[Request]()
    for (kind, user, received, case), marks in groups.items():
        words: dict[str, Any] = {"kind": kind, "user": user, "case": case}
        words |= {"received": received} if received else {}
        words |= {"items": [*marks.values()]} if all(marks.values()) else {}
        try:
            added += add_words(ledger, dataset, [in_mapping(words)], audit)
        except RescindError as error:
            refused.append(refuse(ledger, dataset, f"{source}: {next(iter(marks))}", error))
        for mark in marks:
            ledger.note(journal, mark)
    return added, refused
