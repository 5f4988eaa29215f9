"""Import your own interactions: check every cell, keep original ids, store the canonical form.

Nothing is stored if a cell of the file is invalid, unless its row may be dropped.
"""

from __future__ import annotations

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
from rescind.data.canonical import Canonical, imported_dataset
from rescind.data.dataset import Dataset, joined
from rescind.errors import ConfigError, DataError, suggest
from rescind.home.ledger import Ledger
from rescind.home.request import Copy
from rescind.privacy.keys import erasure_key

log = logging.getLogger(__name__)
Tell = Callable[[str], Any]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def imported_folder() -> Path:
    """Return the folder of imported datasets."""
    return home() / "data"


def imported_names() -> list[str]:
    """Return the names of all imported datasets."""
    folder = imported_folder()
    if not folder.is_dir():
        return []
    for old in folder.glob(".old.*"):  # a command was killed while it replaced a dataset
        if not (there := folder / old.name.removeprefix(".old.")).exists():
            canonical.recover(there)
    found = (path.parent.name for path in folder.glob(f"*/{canonical.USERS}"))
    return sorted(name for name in found if not name.startswith("."))


def check_imported(name: str) -> None:
    """Raise an error with the names of all imports if there is none of this one."""
    if name not in (known := imported_names()):
        raise ConfigError(
            f"'{name}' is not an imported dataset in {imported_folder()}; {suggest(name, known)} "
            f"Import records first: rescind data import FILE --name NAME."
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
    from rescind.data.import_dataset import Reading, dataset_of
    from rescind.data.import_facts import FACTS
    from rescind.data.import_tables import check_there, open_table

    for file in (path, *([] if items is None else [items])):
        check_there(Path(file))  # before the name: a free name would not help
    check_name(name, replace)
    opened = partial(open_table, Path(path), separator, encoding, header, max_rows)
    listed = None if items is None else partial(open_table, Path(items), encoding=encoding)
    how = Reading(columns or {}, header, time_unit, text_ids, ignore, drop_bad_rows, tell)
    dataset = dataset_of(opened, name, how, listed=listed)
    there = opened().header
    read_as = {
        "columns": {r: c for r, c in how.columns.items() if r not in FACTS and c in there},
        "separator": separator,
        "header": header,
        "encoding": encoding,
        "time_unit": time_unit,
        "text_ids": text_ids,
        "ignore": sorted(column for column in ignore if column in there),
    }
    named = replace_fields(dataset, terms=terms)
    mark = _mark(Path(path))  # appended, the same file adds nothing
    stored = store(name, named, Path(path).name, (mark,), read_as, tell)
    _tell_erased_elsewhere(stored, tell)
    return stored


def _tell_erased_elsewhere(rows: Dataset, tell: Tell) -> None:
    """Tell if rows of a file that were taken in had been erased under another name."""
    for other, count in erased_elsewhere(rows).items():
        tell(
            f"{count:,} rows of this file had been erased from '{other}'. If these are the same "
            f"people, forget them here, too: rescind forget --data {rows.name} --user USER"
        )


def _tell_taken_for_new(rows: Dataset, old: Dataset, tell: Tell) -> None:
    """Tell if users of a file count as new whose ids seem to have lost something on the way."""
    if doubtful := taken_for_new(rows.users.tolist(), {*old.users.tolist()}):
        tell(
            f"{len(doubtful):,} users count as new, such as '{doubtful[0]}', and an id here "
            f"differs in {WORN} alone. If it is the same person: rescind forget --kind erase "
            f"--data {rows.name} --user {quote(doubtful[0])}, then append with the id as it is "
            f"here"
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
        new = _new_rows(path, name, {**before, **settings}, before.get("columns", {}))
        if not len(new):  # a night in which nothing was bought
            return Appended(old, 0)
        if _parts(old) != _parts(new):
            raise DataError(
                f"{path} has other columns than '{name}': {', '.join(_parts(new))}; there "
                f"{', '.join(_parts(old))}. Give the missing one, or --ignore COLUMN."
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


def _new_rows(
    path: Path, name: str, settings: Mapping[str, Any], columns: Mapping[str, str]
) -> Dataset:
    """Read the rows of a later file. columns: as they were named for the import"""
    from rescind.data.import_dataset import Reading, dataset_of
    from rescind.data.import_tables import open_table

    opening = {n: settings[n] for n in ("separator", "encoding", "header") if n in settings}
    reading = {n: settings[n] for n in Reading.__dataclass_fields__ if n in settings}
    reading["columns"] = {**columns, **(settings.get("columns") or {})}
    return dataset_of(partial(open_table, path, **opening), name, Reading(**reading), least=0)


def _parts(dataset: Dataset) -> list[str]:
    """Return the names of the columns that a dataset may have."""
    times = ["time"] if dataset.has_time else []
    return [*times, *(n for n in ("rating", "split") if getattr(dataset, n) is not None)]


class Appended(NamedTuple):
    """A dataset after rows were added."""

    dataset: Dataset
    rows: int
    """Rows of the file that were added; 0 if it was added before, or has none."""
    withheld: int = 0
    """Rows of the file that stay out: erased before, or of users who left."""
    repeated: int = 0
    """Rows added whose (user, item) pair was there already: learning counts it once."""
    deleted: int = 0
    """Stored rows that requests to runs had left out: writing the table again deletes them."""


def _mark(path: Path) -> str:
    """Return a digest of a file under a secret, by which a second time is known."""
    keyed = partial(blake2b, key=erasure_key(), digest_size=16)
    try:
        with open(path, "rb") as file:
            return file_digest(file, keyed).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


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
        tell(f"{out:,} rows skipped: erased or withdrawn users (rescind request readmit)")
    about = {"file": file, "appended": list(appended), "read_as": dict(read_as or {})}
    with Ledger.open() as ledger:  # first, so that no table is stored that no request finds
        ledger.register(
            Copy(f"table {name}", name, "table", str((imported_folder() / name).absolute()))
        )
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
    folder = imported_folder() / name
    about = about_imported(name)
    dataset = imported_dataset(canonical.read_folder(folder), name, about["terms"])
    if dataset.digest != about["digest"]:
        raise DataError(f"{folder}: the files were changed. Import them again with --replace.")
    return dataset


def about_imported(name: str) -> dict[str, Any]:
    """Return the metadata stored at the import."""
    path = imported_folder() / name
    try:
        about = canonical.read_about(path)
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
        raise ConfigError(f"the name '{name}' is not 1 to 64 of a-z, 0-9, dot, dash, underscore.")
    from rescind.data.catalogue import ENTRIES

    if name in ENTRIES or ((imported_folder() / name).exists() and not replace):
        raise ConfigError(f"a dataset '{name}' already exists; take another name, or --replace.")
