"""Import your own interactions: check every cell, keep original ids, store the canonical form.

Nothing is stored if a cell of the file is invalid, unless its row may be dropped.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from rescind.core.files import locked
from rescind.core.home import home
from rescind.core.labels import WORN, taken_for_new
from rescind.data import canonical
from rescind.data.blocklist import Blocklist, erased_elsewhere
from rescind.data.canonical import Canonical
from rescind.data.catalogue import ENTRIES
from rescind.data.dataset import Dataset
from rescind.data.import_cells import check_unit
from rescind.data.import_columns import Wanted
from rescind.data.import_facts import (
    FACTS,
    Asked,
    about_items,
    divided,
    facts_in,
    find_facts,
    names_in,
    tell_left_out,
    tell_unused,
    with_facts,
)
from rescind.data.import_reading import COLUMN_NAMES, Tell, find_columns, read_table
from rescind.data.import_tables import Table, check_there, open_table
from rescind.data.import_words import column, setting
from rescind.data.joining import joined
from rescind.errors import ConfigError, DataError, suggest
from rescind.home.ledger import Ledger
from rescind.home.request import Copy
from rescind.privacy.keys import erasure_key

log = logging.getLogger(__name__)

DAY = 86_400
"""Seconds."""
TODAY_DIVIDED = (900_000, 2_200_000)
"""Where Unix times in seconds, of 1998 to 2039, lie if they are divided by 1,000."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def imported_folder() -> Path:
    """Return the folder of imported datasets."""
    return home() / "data"


def _place(name: str) -> Path:
    return imported_folder() / name


def imported_names() -> list[str]:
    """Return the names of all imported datasets."""
    folder = imported_folder()
    if not folder.is_dir():
        return []
    for old in folder.glob(".old.*"):  # a command was killed while it replaced a dataset
        if not (there := folder / old.name.removeprefix(".old.")).exists():
            canonical.recover(there)
    found = (path.parent.name for path in folder.glob("*/about.json"))
    return sorted(name for name in found if not name.startswith("."))


def check_imported(name: str) -> None:
    """Raise an error with the names of all imports if there is none of this one."""
    if name in (known := imported_names()):
        return
    nothing = f"nothing is imported in {imported_folder()} (RESCIND_HOME says where)."
    raise ConfigError(
        f"'{name}' is not an imported dataset; {suggest(name, known) if known else nothing} Import "
        f"records first: rescind data import FILE --name NAME."
    )


def import_file(
    path: str | Path,
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    time_unit: str = "s",
    text_ids: bool = False,
    terms: str = "",
    replace: bool = False,
    max_rows: int | None = None,
    ignore: Collection[str] = (),
    drop_bad_rows: bool = False,
    items: str | Path | None = None,
    tell: Tell = log.warning,
) -> Dataset:
    """Import interactions from a CSV, TSV, RecBole, sequence or Parquet file under a name.

    `columns` maps user, item, rating, time and split to column names of the file; common names are
    recognised by default, and rating, time and split are optional. Without a header, columns are
    named 1, 2, 3. Rows are sorted by user, time and item; users and items are numbered by first
    appearance and keep their original ids as text. Duplicate rows are kept. `max_rows` is the
    most rows that are read; by default 50 million, and of Parquet 20 a byte.

    A rating, time or split column without any value is taken as absent, and `tell` gets one line
    that says so. Any other invalid cell refuses the file, or, with `drop_bad_rows`, its row.
    `ignore` names columns to leave out. Titles and genres of items are read from their columns in
    this file, or from the table `items`; columns that are named may be in either.

    A .txt file has lines `user item` in the order of each user's history (the leave-last-out files
    of the sequential literature). That order is kept: the time of an item is its place, from 1.
    """
    for file in (path, *([] if items is None else [items])):
        check_there(Path(file))  # before the name: a free name would not help
    check_name(name, replace)
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows must be at least 1, got {max_rows}.")
    opened = partial(open_table, Path(path), separator, encoding, header, max_rows)
    asked = Asked(dict(columns or {}), ignore)
    if items is not None:
        listed = partial(open_table, Path(items), encoding=encoding)
        asked, of_items = divided(opened(), listed(), asked.columns, ignore)
    dataset = dataset_of(
        opened, name, dict(asked.columns), header, time_unit, text_ids, asked.ignore,
        drop_bad_rows, tell,
    )  # fmt: skip
    if items is not None:
        dataset = with_facts(dataset, listed, tell, of_items)
    roles = {role: column for role, column in asked.columns.items() if role not in FACTS}
    read_as = {
        "columns": roles,
        "separator": separator,
        "header": header,
        "encoding": encoding,
        "time_unit": time_unit,
        "text_ids": text_ids,
        "ignore": sorted(asked.ignore),
    }
    named = replace_fields(dataset, terms=terms)
    mark = _mark(Path(path))  # appended, the same file adds nothing
    stored = store(name, named, Path(path).name, (mark,), read_as, tell)
    _tell_erased_elsewhere(stored, tell)
    return stored


def _tell_erased_elsewhere(rows: Dataset, tell: Tell) -> None:
    """Tell if rows of a file that were taken in had been erased under another name."""
    name = rows.name
    for other, count in erased_elsewhere(rows).items():
        tell(
            f"{count:,} {'row' if count == 1 else 'rows'} of this file had been erased from "
            f"'{other}', and '{name}' has them: what is erased stays away under its own name only. "
            f"If these are the same people, erase them here, too: rescind data erase {name} "
            f"--user USER."
        )


def _tell_taken_for_new(rows: Dataset, old: Dataset, tell: Tell) -> None:
    """Tell if users of a file count as new whose ids seem to have lost something on the way."""
    if doubtful := taken_for_new(rows.users.tolist(), {*old.users.tolist()}):
        first, count = doubtful[0], len(doubtful)
        who = "1 user of this file counts" if count == 1 else f"{count:,} users of this file count"
        tell(
            f"{who} as new, and an id here differs in {WORN} alone. If that is the same person, "
            f"rescind data erase {rows.name} --user {quote(first)}, and append the rows again with "
            f"the id as it is here: rescind data show {rows.name} --user {quote(first)} names it"
            + ("" if count == 1 else f" ('{first}' is the first of them)")
        )


def dataset_of(
    opened: Callable[[], Table], name: str, columns: dict[str, str], header: bool, time_unit: str,
    text_ids: bool, ignore: Collection[str], drop: bool, tell: Tell, least: int = 2,
) -> Dataset:  # fmt: skip
    """Read a table as a dataset, with what it says about items. least: rows it must have"""
    check_unit(time_unit)
    known = (*COLUMN_NAMES, *FACTS)
    if unknown := sorted(set(columns) - set(known)):
        raise ConfigError(f"columns has '{unknown[0]}'; allowed are {', '.join(known)}.")
    table = opened()
    facts = {role: columns.pop(role) for role in FACTS if role in columns}
    positions = find_columns(table, columns, header, ignore)
    stored, dropped = read_table(opened, Wanted(positions, text_ids, time_unit), drop, tell)
    rows = len(stored.interactions["user"])
    if not rows and not dropped and least == 1:
        raise NoRows(f"{table.file} has a header and no rows.")
    if rows < least:
        raise DataError(
            f"{table.file}, {table.unit} {rows + 1}, column 1: the file has {rows} interactions; "
            f"at least {least} are needed" + (", to train and to test." if least == 2 else ".")
        )
    if least > 1 and not table.in_order:
        _doubt_times(stored, table.header[positions.get("time", 0)], tell)
    if least > 1 and stored.column("split") is not None:
        _tell_numbered_split(opened(), positions["split"], tell)
    about = find_facts(table, facts, ignore)
    named = {role: names for role, names in facts.items() if names_in(names)}
    found = facts_in(opened, positions["item"], about, None if named else tell, dropped)
    if least > 1:  # a first import; what is appended has the same columns
        used = {role: [at] for role, at in positions.items()} | about
        tell_left_out({**columns, **named}, used, tell)
        if header:  # what is named and not here is in a table about items
            tell_unused(table, {**dict.fromkeys(facts, ()), **used}, ignore, tell)
    return about_items(_dataset(stored, name, ""), found)


def _doubt_times(stored: Canonical, name: str, tell: Tell) -> None:
    """Tell if all times lie in the first day of 1970, or where one division too many puts them."""
    times = stored.column("timestamp")
    if times is None:
        return
    if TODAY_DIVIDED[0] <= int(times.min()) <= int(times.max()) < TODAY_DIVIDED[1]:
        tell(
            f"column '{name}' was read as seconds, and all of them lie in January 1970: were times "
            f"of today divided by 1,000 too often? Then many are equal now"
        )
    if 0 < int(times.max()) < DAY:
        tell(
            f"column '{name}' was read as times, but all of them lie in the first day of 1970: are "
            f"they seconds since then? If they are no times, pass {setting('ignore', [name])}; for "
            f"dates or Unix times, name another column with {column('time')}"
        )


def _tell_numbered_split(table: Table, at: int, tell: Tell) -> None:
    """Tell how a split of numbers is read, as the first rows show: they may be folds."""
    _, cells = next(table.batches([at]))
    if any(cell.strip().isdigit() for cell in cells[at]):
        name = table.header[at]
        tell(
            f"column '{name}' was read as the split: 0 is train, 1 is valid, 2 is test. If the "
            f"numbers are folds, pass {setting('ignore', [name])}"
        )


def append_file(name: str, path: str | Path, **settings: Any) -> Appended:
    """Add the interactions of a file to an imported dataset. The same file again adds nothing.

    Rows that were erased, and all rows of users who left, are withheld: they get no place.
    settings: those of `import_file` about columns and cells. Default: those of the import
    """
    check_imported(name)
    path = Path(path)
    with locked(imported_folder()):
        about, old = about_imported(name), load_imported(name)
        mark = _mark(path)
        if mark in about["appended"]:
            return Appended(old, 0)
        before = about["read_as"]
        columns = {**before.get("columns", {}), **(settings.get("columns") or {})}
        try:
            new = _opened(path, name, {**before, **settings, "columns": columns})
        except NoRows:  # a night in which nothing was bought
            return Appended(old, 0, empty=True)
        for what in ("rating", "split", "time"):
            there = [
                d.has_time if what == "time" else getattr(d, what) is not None for d in (old, new)
            ]
            if there[0] != there[1]:
                raise DataError(
                    f"{path} has {'a' if there[1] else 'no'} {what} for each row, and '{name}' has "
                    f"{'one' if there[0] else 'none'}. Both must have it, or neither "
                    f"({setting('ignore', ['COLUMN'])})."
                )
        admitted = Blocklist.of_dataset(name).left_of(new).compact()
        both = joined(old, admitted)
        stored = store(name, both, about["file"], (*about["appended"], mark), before)
    tell = settings.get("tell", log.warning)
    _tell_erased_elsewhere(admitted, tell)
    _tell_taken_for_new(admitted, old, tell)
    repeated = both.repeats - old.repeats
    deleted = len(both) - len(stored)
    return Appended(stored, len(admitted), len(new) - len(admitted), repeated, deleted)


class Appended(NamedTuple):
    """A dataset after rows were added."""

    dataset: Dataset
    rows: int
    """Rows of the file that were added; 0 if it was added before."""
    withheld: int = 0
    """Rows of the file that stay out: erased before, or of users who left."""
    repeated: int = 0
    """Rows added whose (user, item) pair was there already: learning counts it once."""
    deleted: int = 0
    """Stored rows that requests to runs had left out: writing the table again deletes them."""
    empty: bool = False
    """Whether the file has a header and no rows."""


class NoRows(DataError):
    """A file has a header and no rows."""


def _mark(path: Path) -> str:
    """Return a digest of a file under a secret, by which a second time is known."""
    keyed = partial(blake2b, key=erasure_key(), digest_size=16)
    try:
        with open(path, "rb") as file:
            return file_digest(file, keyed).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _opened(path: Path, name: str, settings: dict[str, Any]) -> Dataset:
    given = dict(settings)
    columns, header = dict(given.pop("columns", None) or {}), given.pop("header", True)
    encoding = given.pop("encoding", "utf-8")
    opened = partial(
        open_table,
        path,
        given.pop("separator", None),
        encoding,
        header,
        given.pop("max_rows", None),
    )
    return dataset_of(
        opened, name, columns, header, given.pop("time_unit", "s"), given.pop("text_ids", False),
        given.pop("ignore", ()), given.pop("drop_bad_rows", False), given.pop("tell", log.warning),
        least=1,
    )  # fmt: skip


def store(
    name: str,
    dataset: Dataset,
    file: str,
    appended: Sequence[str] = (),
    read_as: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """Store an import without rows that were erased before; return what is stored.

    appended: marks of files that were added later    read_as: how its file was read, for those
    tell: gets a line if rows stay out
    """
    left = Blocklist.of_dataset(name).left_of(dataset)
    if tell is not None and (out := len(dataset) - len(left)):
        are = "1 row is" if out == 1 else f"{out:,} rows are"
        tell(
            f"{are} kept out: of people who left, or erased before. Somebody who returns is let in "
            f"with `rescind data admit`"
        )
    about = {"file": file, "appended": list(appended), "read_as": dict(read_as or {})}
    with Ledger.open() as ledger:  # first, so that no table is stored that no request finds
        ledger.register(Copy(f"table {name}", name, "table", str(_place(name).absolute())))
    write(name, left, about, dataset.has_time)
    return left


def write(name: str, left: Dataset, about: Mapping[str, Any], timed: bool) -> None:
    """Write the files of an imported dataset, with every row that is given.

    about: `file`, `appended` and `read_as` of `about_imported`    timed: rows have times, also if
    none of those that are left has another than 0
    """
    rows: dict[str, Any] = {"user": left.user, "item": left.item, "rating": left.rating}
    rows["timestamp"] = left.time if timed else None
    if left.split is not None:
        rows["split"] = left.split
    known = {"title": left.titles, "genres": left.genres}
    facts = {name: texts for name, texts in known.items() if texts is not None}
    stored = Canonical(rows, {"source_id": left.items, **facts}, left.users)
    now = {"terms": left.terms, "digest": left.digest, "size": left.size}
    canonical.write_folder(imported_folder() / name, stored, {**about, **now})


def load_imported(name: str) -> Dataset:
    """Load an imported dataset, and check that its files were not changed."""
    folder = _place(name)
    about = about_imported(name)
    dataset = _dataset(canonical.read_folder(folder), name, about["terms"])
    if dataset.digest != about["digest"]:
        raise DataError(
            f"{folder}: the values have the digest {dataset.digest}, but {about['digest']} was "
            "stored at the import. The files were changed; import them again (rescind data import "
            "--replace)."
        )
    return dataset


def about_imported(name: str) -> dict[str, Any]:
    """Return the metadata stored at the import."""
    path = imported_folder() / name / "about.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        size = {key: int(about["size"][key]) for key in ("users", "items", "rows")}
        words = {key: str(about[key]) for key in ("file", "terms", "digest")}
        later = {"appended": list(about.get("appended", ()))}
        return words | {"size": size, **later, "read_as": dict(about.get("read_as", {}))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not readable ({error}). Import it again (rescind data import --replace)."
        ) from error


def check_name(name: str, replace: bool) -> None:
    """Refuse the name of a new import if it is not one, or if it is taken."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name is '{name}'; it must be 1 to 64 of a-z, 0-9, dot, dash and underscore, and "
            "begin with a letter or digit."
        )
    if name in ENTRIES:
        raise ConfigError(f"the name '{name}' belongs to the catalogue; choose another.")
    if (imported_folder() / name).exists() and not replace:
        raise ConfigError(
            f"an imported dataset '{name}' already exists; choose another name, or pass "
            f"{setting('replace', True)} to overwrite it."
        )


def _dataset(data: Canonical, name: str, terms: str) -> Dataset:
    if data.users is None or "source_id" not in data.items:
        raise DataError(f"imported dataset '{name}': its files are incomplete. Import it again.")
    return data.dataset(name, data.users, data.column("split"), terms, source="imported")
