"""Read a table of a user's own file as a dataset: which columns, which rows, what about items."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from rescind.data.canonical import Canonical, imported_dataset
from rescind.data.dataset import Dataset
from rescind.data.import_cells import check_unit
from rescind.data.import_columns import Wanted
from rescind.data.import_facts import (
    FACTS,
    about_items,
    facts_in,
    find_facts,
    named_facts,
    tell_unused,
    with_facts,
)
from rescind.data.import_reading import COLUMN_NAMES, Tell, find_columns, read_table
from rescind.data.import_tables import Table
from rescind.errors import ConfigError, DataError

log = logging.getLogger(__name__)
_EARLY = 2_200_000
"""Below this lie Unix times of 1998 to 2039 that were divided by 1,000 too often."""


@dataclass(frozen=True)
class Reading:
    """How the columns and cells of a table are read: settings of `import_file`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    header: bool = True
    time_unit: str = "s"
    text_ids: bool = False
    ignore: Collection[str] = ()
    drop_bad_rows: bool = False
    tell: Tell = log.warning


def dataset_of(
    opened: Callable[[], Table],
    name: str,
    how: Reading,
    least: int = 2,
    listed: Callable[[], Table] | None = None,
) -> Dataset:
    """Read a table as a dataset, with what it says about items.

    least: rows it must have; 0 for rows that are appended    listed: opens a table about items
    """
    check_unit(how.time_unit)
    table, facts = opened(), named_facts(how.columns)
    elsewhere = () if listed is None else tuple(listed().header)
    roles = _roles(how, table.header, elsewhere)
    positions = find_columns(table, roles, how.header, how.ignore)
    wanted = Wanted(positions, how.text_ids, how.time_unit)
    stored, dropped = read_table(opened, wanted, how.drop_bad_rows, how.tell)
    rows = len(stored.interactions["user"])
    if rows < least:
        raise DataError(f"{table.file}: it has {rows} interactions; at least {least} are needed.")
    mine = {role: [n for n in names if n not in elsewhere] for role, names in facts.items()}
    about = find_facts(table, mine, how.ignore)
    texts = facts_in(opened, positions["item"], about, None if facts else how.tell, dropped)
    if least:
        _doubt_times(stored, table, positions, how.tell)
        if how.header:
            used = {*positions.values(), *chain.from_iterable(about.values())}
            tell_unused(table, used, how.ignore, how.tell)
    dataset = about_items(imported_dataset(stored, name, ""), texts)
    if listed is not None:
        dataset = with_facts(dataset, listed, how.columns, how.ignore, how.tell)
    return dataset


def _roles(how: Reading, header: Sequence[str], elsewhere: Sequence[str]) -> dict[str, str]:
    """Return the columns of rows that are named; raise if a named one is nowhere.

    elsewhere: the columns of a table about items
    """
    known = (*COLUMN_NAMES, *FACTS)
    if unknown := sorted(set(how.columns) - set(known)):
        raise ConfigError(f"columns has '{unknown[0]}'; allowed are {', '.join(known)}.")
    there = [*header, *elsewhere]
    for name in (*how.ignore, *chain.from_iterable(named_facts(how.columns).values())):
        if name not in there:
            raise ConfigError(f"there is no column '{name}'; the columns are {', '.join(there)}.")
    return {
        role: name
        for role, name in how.columns.items()
        if role not in FACTS and (role != "item" or name in header or name not in elsewhere)
    }


def _doubt_times(stored: Canonical, table: Table, at: Mapping[str, int], tell: Tell) -> None:
    """Tell if times may be none, or of another unit."""
    times = None if table.in_order else stored.column("timestamp")
    if times is not None and 0 < int(times.max()) < _EARLY:
        tell(
            f"all times of '{table.header[at['time']]}' lie in January 1970: give --time-unit, "
            f"another column with --time, or leave it out with --ignore"
        )
