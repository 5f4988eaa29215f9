"""Statements that run for every change: compiled once, then handed to the driver itself.

SQLAlchemy takes longer to prepare a statement than SQLite to run it. So the few statements of hot
paths are made from the tables as all others are, turned into text once for each kind of database,
and run by the driver on the connection of the transaction. Errors are SQLAlchemy's, as elsewhere.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ClauseElement, Connection, Select, Table, bindparam, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from rescind.ledger.tables import Instant

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Compiled:
    """A statement as the driver of one kind of database takes it."""

    text: str
    constants: dict[str, Any]
    """Parameters that are always the same."""
    times: tuple[str, ...]
    """Parameters that are times."""

    def parameters(self, values: Values) -> Values:
        """Return all parameters, with times as the numbers that both databases keep."""
        if not self.times and not self.constants:
            return values
        given = {**self.constants, **values}
        for name in self.times:
            given[name] = Instant.number(given[name])
        return given


class Prepared:
    """A statement whose changing parameters are named by `bindparam`."""

    def __init__(self, statement: ClauseElement, keys: Iterable[str] | None = None) -> None:
        """keys: the columns that an insert gives values for"""
        self._statement, self._keys = statement, None if keys is None else list(keys)
        self._compiled: dict[str, Compiled] = {}
        self._made: Callable[[Sequence[Any]], Any] = tuple
        if isinstance(statement, Select):
            self._made = _row_maker(statement)

    def compiled(self, dialect: Any) -> Compiled:
        """Return the text for the driver of a database, made at the first use."""
        found = self._compiled.get(dialect.name)
        if found is None:
            how = sqlite.dialect(paramstyle="named") if dialect.name == "sqlite" else dialect
            made: Any = self._statement.compile(dialect=how, column_keys=self._keys)
            fixed = {name: one.value for name, one in made.binds.items() if not one.required}
            times = (name for name, one in made.binds.items() if isinstance(one.type, Instant))
            self._compiled[dialect.name] = found = Compiled(str(made), fixed, tuple(times))
        return found

    def row(self, found: Sequence[Any]) -> Any:
        """Return a row of the driver with a name for each column."""
        return self._made(found)


def _row_maker(statement: Select) -> Callable[[Sequence[Any]], Any]:
    columns = list(statement.selected_columns)
    row = namedtuple("row", [column.name for column in columns])  # type: ignore[misc]
    times = [(n, one.type) for n, one in enumerate(columns) if isinstance(one.type, Instant)]

    def make(found: Sequence[Any]) -> Any:
        values = list(found)
        for place, kind in times:
            values[place] = kind.process_result_value(values[place], None)
        return row._make(values)

    return make


@cache
def insertion(table: Table, keys: tuple[str, ...]) -> Prepared:
    """Return the insert of these columns of a table. A column with a default must be given."""
    missing = [one.name for one in table.columns if one.default and one.name not in keys]
    assert not missing, f"{table.name} needs {missing}"
    return Prepared(insert(table), keys)


@cache
def chosen(table: Table, column: str, count: int) -> Prepared:
    """Return the query of rows whose column is one of `count` values, v0 to vN."""
    values = [bindparam(f"v{n}", type_=table.c[column].type) for n in range(count)]
    return Prepared(table.select().where(table.c[column].in_(values)))


class Driver:
    """Runs prepared statements in the transaction of a connection."""

    def __init__(self, tx: Connection) -> None:
        self._tx = tx
        driver = tx.connection.driver_connection
        assert driver is not None
        self._driver: Any = driver

    def one(self, statement: Prepared, values: Values) -> Any | None:
        """Return the first row, with its columns by name; None if there is none."""
        found = self._run(statement, values).fetchone()
        return None if found is None else statement.row(found)

    def within(self, table: Table, column: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows whose column is one of these values."""
        if not values:
            return []
        count = 1 << (len(values) - 1).bit_length()  # a few texts serve for all lengths
        padded = [*values, *[values[-1]] * (count - len(values))]
        statement = chosen(table, column, count)
        found = self._run(statement, {f"v{n}": one for n, one in enumerate(padded)})
        return [statement.row(row) for row in found.fetchall()]

    def run(self, statement: Prepared, values: Values) -> None:
        """Run a statement that returns nothing."""
        self._run(statement, values)

    def many(self, statement: Prepared, rows: Sequence[Values]) -> None:
        """Run a statement once for each row."""
        made = statement.compiled(self._tx.dialect)
        given = [made.parameters(row) for row in rows]
        self._told(made.text, lambda: self._driver.cursor().executemany(made.text, given))

    def insert(self, table: Table, rows: Iterable[Values]) -> None:
        """Insert rows, those with the same columns together."""
        alike: dict[tuple[str, ...], list[Values]] = {}
        for row in rows:
            alike.setdefault(tuple(row), []).append(row)
        for keys, some in alike.items():
            self.many(insertion(table, keys), some)

    def say(self, text: str) -> None:
        """Run a statement without parameters, such as SAVEPOINT."""
        self._told(text, lambda: self._driver.execute(text))

    def _run(self, statement: Prepared, values: Values) -> Any:
        made = statement.compiled(self._tx.dialect)
        given = made.parameters(values)
        return self._told(made.text, lambda: self._driver.execute(made.text, given))

    def _told(self, text: str, call: Callable[[], Any]) -> Any:
        """Call the driver; its errors become those of SQLAlchemy, without the values."""
        dialect = self._tx.dialect
        try:
            return call()
        except dialect.loaded_dbapi.Error as error:
            lost = dialect.is_disconnect(error, self._driver, None)
            if lost:
                self._tx.invalidate(error)
            raise DBAPIError.instance(
                text,
                None,
                error,
                dialect.loaded_dbapi.Error,
                hide_parameters=True,
                connection_invalidated=lost,
                dialect=dialect,
            ) from error
