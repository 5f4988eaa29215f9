"""Import your own interactions: check every cell, keep original ids, store the canonical form.

Nothing is stored if any cell of the file is invalid.
"""

from __future__ import annotations

import json
import re
import shutil
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rescind.core.files import locked
from rescind.data import canonical
from rescind.data.arrays import Ints
from rescind.data.blocklist import Blocklist
from rescind.data.canonical import Canonical
from rescind.data.catalogue import ENTRIES
from rescind.data.dataset import Dataset
from rescind.data.import_cells import BadCell, read_ids, read_ratings, read_splits, read_times
from rescind.data.import_columns import Columns, Wanted
from rescind.data.import_tables import Table, open_table
from rescind.data.obtain import cache_folder
from rescind.data.split import rank_in_owner
from rescind.errors import ConfigError, DataError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
COLUMN_NAMES = {
    "user": ("user", "user_id", "userid", "uid", "user_idx", "reviewerid"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "artistid", "asin"),
    "rating": ("rating", "score", "stars", "overall"),
    "time": ("time", "timestamp", "ts", "date", "unixreviewtime"),
    "split": ("split",),
}
"""Column names recognised by default, in lower case."""


_KINDS = {"user": "i", "item": "i", "rating": "f", "time": "q", "split": "b"}
"""Types of the columns while a file is read."""


def imported_folder() -> Path:
    """Return the folder of imported datasets."""
    return cache_folder() / "imported"


def _place(name: str) -> Path:
    return imported_folder() / name


def imported_names() -> list[str]:
    """Return the names of all imported datasets."""
    folder = imported_folder()
    return sorted(p.parent.name for p in folder.glob("*/about.json")) if folder.is_dir() else []


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
) -> Dataset:
    """Import interactions from a CSV, TSV, RecBole, sequence or Parquet file under a name.

    `columns` maps user, item, rating, time and split to column names of the file; common names are
    recognised by default, and rating, time and split are optional. Without a header, columns are
    named 1, 2, 3. Rows are sorted by user, time and item; users and items are numbered by first
    appearance and keep their original ids as text. Duplicate rows are kept. `max_rows` is the
    most rows that are read; by default 50 million, and of Parquet 20 a byte.

    A .txt file has lines `user item` in the order of each user's history (the leave-last-out files
    of the sequential literature). That order is kept: the time of an item is its place, from 1.
    """
    _check_name(name, replace)
    if time_unit not in ("s", "ms"):
        raise ConfigError(f"the time unit is '{time_unit}'; allowed are s and ms.")
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows must be at least 1, got {max_rows}.")
    table = open_table(Path(path), separator, encoding, header, max_rows)
    positions = _find_columns(table, dict(columns or {}), header)
    stored = _read(table, Wanted(positions, text_ids, time_unit))
    rows = len(stored.interactions["user"])
    if rows < 2:
        raise DataError(
            f"{path}, {table.unit} {rows + 1}, column 1: the file has {rows} interactions; at "
            "least 2 are needed, to train and to test."
        )
    return _store(name, _dataset(stored, name, terms), Path(path).name)


def _store(name: str, dataset: Dataset, file: str) -> Dataset:
    """Store an import without rows that were erased before; return what is stored."""
    listed = Blocklist.of_dataset(name)
    left = listed.left_of(dataset)
    rows: dict[str, Any] = {"user": left.user, "item": left.item, "rating": left.rating}
    rows["timestamp"] = left.time if dataset.has_time else None
    if left.split is not None:
        rows["split"] = left.split
    stored = Canonical(rows, {"source_id": left.items}, left.users)
    about = {"file": file, "terms": left.terms, "digest": left.digest, "size": left.size}
    canonical.write_folder(imported_folder() / name, stored, about)
    return left


def erase_imported(name: str, users: Sequence[str], items: Sequence[str] = ()) -> Erased:
    """Delete rows of users from an imported dataset, and from every later import of this name.

    items: only these items of the users. Default: all
    """
    with locked(_place(name)):
        dataset = load_imported(name)
        for kind, given, known in (("user", users, dataset.users), ("item", items, dataset.items)):
            for one in given:
                if one not in known:
                    raise DataError(f"there is no {kind} '{one}' in '{name}'. Nothing was erased.")
        gone = np.isin(dataset.users[dataset.user], list(users))
        if items:
            gone &= np.isin(dataset.items[dataset.item], list(items))
        if not gone.any():
            raise DataError(f"these users have no such rows in '{name}'. Nothing was erased.")
        rows = dataset.select(gone)
        named = dataset.users[rows.user].tolist(), dataset.items[rows.item].tolist()
        # The list first: whatever happens next, nobody learns these rows again.
        Blocklist().with_erased(*named).add_to_dataset(name)
        left = _store(name, dataset, about_imported(name)["file"])
        for old in imported_folder().glob(f".{name}-*"):  # of a command that was killed
            shutil.rmtree(old, ignore_errors=True)
    again = load_imported(name)
    held = np.isin(again.users[again.user], list(users))
    if items:
        held &= np.isin(again.items[again.item], list(items))
    return Erased(dataset, rows, left, int(held.sum()))


class Erased(NamedTuple):
    """Rows that were deleted from an imported dataset."""

    before: Dataset
    rows: Dataset
    after: Dataset
    found: int
    """Rows found when the files were read again: 0."""


def load_imported(name: str) -> Dataset:
    """Load an imported dataset, and check that its files were not changed."""
    folder = _place(name)
    about = about_imported(name)
    dataset = _dataset(canonical.read_folder(folder), name, about["terms"])
    if dataset.digest != about["digest"]:
        raise DataError(
            f"{folder}: the values have the digest {dataset.digest}, but {about['digest']} was "
            "stored at the import. The files were changed; import again with --replace."
        )
    return dataset


def about_imported(name: str) -> dict[str, Any]:
    """Return the metadata stored at the import."""
    path = imported_folder() / name / "about.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        size = {key: int(about["size"][key]) for key in ("users", "items", "rows")}
        return {key: str(about[key]) for key in ("file", "terms", "digest")} | {"size": size}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not readable ({error}). Import again with --replace.") from error


def _check_name(name: str, replace: bool) -> None:
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
            "--replace to overwrite it."
        )


def _find_columns(table: Table, given: dict[str, str], header: bool) -> dict[str, int]:
    """Return the index of each known column."""
    unknown = sorted(set(given) - set(COLUMN_NAMES))
    if unknown:
        raise ConfigError(f"columns has '{unknown[0]}'; allowed are {', '.join(COLUMN_NAMES)}.")
    if not header and not given:
        given = dict(zip(("user", "item", "rating", "time"), table.header, strict=False))
    positions: dict[str, int] = {}
    for role, common in COLUMN_NAMES.items():
        if role in given:
            wanted = [n for n, name in enumerate(table.header) if name == given[role]]
        else:
            wanted = [n for n, name in enumerate(table.header) if name.lower() in common]
        if len(wanted) > 1:
            names = ", ".join(table.header[n] for n in wanted)
            raise DataError(
                f"{table.file}, line 1, column {wanted[1] + 1}: more than one column could be the "
                f"{role} ({names}). Choose one with --{role} COLUMN."
            )
        if not wanted and (role in given or role in ("user", "item")):
            asked = f"'{given[role]}' for the {role}" if role in given else f"for the {role}"
            raise DataError(
                f"{table.file}, line 1, column 1: there is no column {asked}. The columns are "
                f"{', '.join(table.header)}. Choose one with --{role} COLUMN, or pass --no-header "
                "if the first line is data."
            )
        if wanted:
            positions[role] = wanted[0]
    return positions


def _read(table: Table, wanted: Wanted) -> Canonical:
    """Read and check the columns, then sort the rows by user, time and item."""
    rows, users, items = table.plain(wanted) or _read_cells(table, wanted)
    return Canonical(
        _sort(rows, table.in_order), {"source_id": np.asarray(items)}, np.asarray(users)
    )


def _read_cells(table: Table, wanted: Wanted) -> Columns:
    """Check every cell; the first invalid one is an error that names its place."""
    positions = wanted.positions
    out: dict[str, array[Any]] = {role: array(_KINDS[role]) for role in positions}
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    readers: dict[str, Callable[[list[str]], Any]] = {
        "user": partial(read_ids, ids=users, text_ids=wanted.text_ids),
        "item": partial(read_ids, ids=items, text_ids=wanted.text_ids),
        "rating": read_ratings,
        "time": partial(read_times, unit=wanted.unit),
        "split": read_splits,
    }
    for lines, columns in table.batches(positions.values()):
        wrong: list[tuple[int, int, str, str]] = []
        for role, at in positions.items():
            stripped = [cell.strip() for cell in columns[at]]
            try:
                out[role].frombytes(readers[role](stripped).tobytes())
            except BadCell as bad:
                index, why = bad.args
                wrong.append((lines[index], at, role, why))
        if wrong:
            line, at, role, why = min(wrong)
            cell = columns[at][lines.index(line)]
            shown = cell if len(cell) <= 40 else cell[:40] + "..."
            raise DataError(
                f"{table.file}, {table.unit} {line}, column {at + 1} ('{table.header[at]}'): "
                f"{shown!r} is not a valid {role}: {why}. Nothing was imported."
            )
    rows = {role: np.asarray(column) for role, column in out.items()}
    return Columns(rows, list(users), list(items))


def _sort(columns: dict[str, NDArray[Any]], in_order: bool = False) -> dict[str, Any]:
    """Sort the columns by user, time and item; rating and time are None if they are missing.

    columns: emptied on the way, so that no column is held twice    in_order: the order of rows is
    that of time
    """
    if in_order:
        user = columns["user"]
        order = _order_by([user])
        places = np.empty(len(user), dtype=np.int64)
        places[order] = rank_in_owner(user[order]) + 1
        columns["time"] = places
    if "time" in columns:
        order = _order_by([columns["user"], columns["time"]])
        ordered = {role: columns.pop(role)[order] for role in ("user", "time")}
        _order_equal(order, ordered["user"], ordered["time"], columns["item"])
    else:
        order, ordered = _order_by([columns["user"], columns["item"]]), {}
    ordered |= {role: columns.pop(role)[order] for role in list(columns)}
    out = {name: ordered.get(name) for name in ("user", "item", "rating")}
    out["timestamp"] = ordered.get("time")
    return out | ({"split": ordered["split"]} if "split" in ordered else {})


def _order_by(keys: Sequence[Ints]) -> Ints:
    """Return the order of rows by the first key, then the next, then the row, as np.lexsort does.

    numpy sorts plain numbers many times faster than rows. So each key, from the last to the first,
    is sorted as one number with the place of its row in the low bits.

    keys: [n] each, whole numbers from 0
    """
    places = np.arange(len(keys[0]))
    bits = len(places).bit_length()
    if _are_sorted(keys):
        return places
    if max(int(key.max()) for key in keys) >> (63 - bits):
        return np.lexsort(keys[::-1])
    order: Ints | None = None
    for key in reversed(keys):
        packed = (key if order is None else key[order]).astype(np.int64)
        packed <<= bits
        packed |= places
        packed.sort()
        packed &= (1 << bits) - 1
        order = packed if order is None else order[packed]
    assert order is not None
    return order


def _order_equal(order: Ints, user: Ints, time: Ints, item: Ints) -> None:
    """Order rows of the same user and time by item, in place. They are few in most files.

    user, time: [n], ordered    item: [n], in the order of the file
    """
    same = np.zeros(len(order) + 1, dtype=bool)
    same[1:-1] = (user[1:] == user[:-1]) & (time[1:] == time[:-1])
    rows = np.flatnonzero(same[1:] | same[:-1])
    if len(rows):
        group = np.cumsum(~same[rows])
        equal = order[rows]
        order[rows] = equal[_order_by([group, item[equal]])]


def _are_sorted(keys: Sequence[Ints]) -> bool:
    equal = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        before, after = key[:-1], key[1:]
        if (equal & (after < before)).any():
            return False
        equal &= after == before
    return True


def _dataset(data: Canonical, name: str, terms: str) -> Dataset:
    if data.users is None or "source_id" not in data.items:
        raise DataError(f"imported dataset '{name}': its files are incomplete. Import it again.")
    return data.dataset(name, data.users, data.column("split"), terms, source="imported")
