"""Import your own interactions: check every cell, keep original ids, store the canonical form.

Nothing is stored if any cell of the file is invalid.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rescind.data import canonical
from rescind.data.canonical import Canonical
from rescind.data.catalogue import ENTRIES
from rescind.data.dataset import Dataset
from rescind.data.import_cells import (
    BadCell,
    IdReader,
    RatingReader,
    Reader,
    SplitReader,
    TimeReader,
)
from rescind.data.import_tables import Table, open_table
from rescind.data.obtain import cache_folder
from rescind.errors import ConfigError, DataError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_COLUMN_NAMES = {
    "user": ("user", "user_id", "userid", "uid", "user_idx", "reviewerid"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "artistid", "asin"),
    "rating": ("rating", "score", "stars", "overall"),
    "time": ("time", "timestamp", "ts", "date", "unixreviewtime"),
    "split": ("split",),
}
"""Column names recognised by default, in lower case."""


@dataclass
class _Columns:
    """Columns while a file is being read; ids are numbered by first appearance."""

    users: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    user: array[int] = field(default_factory=lambda: array("i"))
    item: array[int] = field(default_factory=lambda: array("i"))
    rating: array[float] = field(default_factory=lambda: array("f"))
    time: array[int] = field(default_factory=lambda: array("q"))
    split: array[int] = field(default_factory=lambda: array("b"))


def imported_folder() -> Path:
    """Return the folder of imported datasets."""
    return cache_folder() / "imported"


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
) -> Dataset:
    """Import interactions from a CSV, TSV, RecBole or Parquet file under a name.

    `columns` maps user, item, rating, time and split to column names of the file; common names are
    recognised by default, and rating, time and split are optional. Without a header, columns are
    named 1, 2, 3. Rows are sorted by user, time and item; users and items are numbered by first
    appearance and keep their original ids as text. Duplicate rows are kept.
    """
    _check_name(name, replace)
    if time_unit not in ("s", "ms"):
        raise ConfigError(f"the time unit is '{time_unit}'; allowed are s and ms.")
    table = open_table(Path(path), separator, encoding, header)
    positions = _find_columns(table, dict(columns or {}), header)
    read = _read_cells(table, positions, text_ids, time_unit)
    if len(read.user) < 2:
        raise DataError(
            f"{path}, {table.unit} {len(read.user) + 1}, column 1: the file has "
            f"{len(read.user)} interactions; at least 2 are needed, to train and to test."
        )
    dataset = _dataset_of(read, positions, name, terms)
    del read
    size = {"users": len(dataset.users), "items": len(dataset.items), "rows": len(dataset)}
    about = {"file": Path(path).name, "terms": terms, "digest": dataset.digest, "size": size}
    stored = _canonical_of(dataset, timed="time" in positions)
    canonical.write_folder(imported_folder() / name, stored, about=about)
    return dataset


def load_imported(name: str) -> Dataset:
    """Load an imported dataset, and check that its files were not changed."""
    folder = imported_folder() / name
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
    unknown = sorted(set(given) - set(_COLUMN_NAMES))
    if unknown:
        raise ConfigError(f"columns has '{unknown[0]}'; allowed are {', '.join(_COLUMN_NAMES)}.")
    if not header and not given:
        given = dict(zip(("user", "item", "rating", "time"), table.header, strict=False))
    positions: dict[str, int] = {}
    for role, common in _COLUMN_NAMES.items():
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


def _read_cells(table: Table, positions: dict[str, int], text_ids: bool, unit: str) -> _Columns:
    """Check every cell and append it to its column."""
    out = _Columns()
    readers: dict[str, Reader] = {
        "user": IdReader(out.users, text_ids),
        "item": IdReader(out.items, text_ids),
        "rating": RatingReader(),
        "time": TimeReader(unit),
        "split": SplitReader(),
    }
    for lines, columns in table.batches:
        wrong: list[tuple[int, int, str, str]] = []
        for role, at in positions.items():
            stripped = [cell.strip() for cell in columns[at]]
            try:
                getattr(out, role).frombytes(readers[role].read(stripped).tobytes())
            except BadCell as bad:
                wrong.append((lines[bad.index], at, role, bad.why))
        if wrong:
            line, at, role, why = min(wrong)
            cell = columns[at][lines.index(line)]
            shown = cell if len(cell) <= 40 else cell[:40] + "..."
            raise DataError(
                f"{table.file}, {table.unit} {line}, column {at + 1} ('{table.header[at]}'): "
                f"{shown!r} is not a valid {role}: {why}. Nothing was imported."
            )
    return out


def _dataset_of(read: _Columns, positions: dict[str, int], name: str, terms: str) -> Dataset:
    """Sort the columns by user, time and item, freeing each after its copy."""
    kinds = {"user": "i4", "item": "i4", "rating": "f4", "time": "i8", "split": "i1"}
    columns = {role: np.frombuffer(getattr(read, role), kinds[role]) for role in positions}
    keys = [columns[role] for role in ("item", "time", "user") if role in positions]
    order = np.lexsort(keys)
    del keys
    rows = len(order)
    users, items = np.asarray(list(read.users)), np.asarray(list(read.items))
    del read
    ordered = {role: columns.pop(role)[order] for role in list(columns)}
    return Dataset(
        name=name,
        user=ordered.pop("user").astype(np.int64),
        item=ordered.pop("item").astype(np.int64),
        rating=ordered.get("rating"),
        time=ordered["time"] if "time" in ordered else np.zeros(rows, dtype=np.int64),
        users=users,
        items=items,
        split=ordered.get("split"),
        terms=terms,
        source="imported",
    )


def _canonical_of(dataset: Dataset, timed: bool) -> Canonical:
    interactions: dict[str, Any] = {
        "user": dataset.user,
        "item": dataset.item,
        "rating": dataset.rating,
        "timestamp": dataset.time if timed else None,
    }
    if dataset.split is not None:
        interactions["split"] = dataset.split
    return Canonical(interactions, {"source_id": dataset.items}, dataset.users)


def _dataset(data: Canonical, name: str, terms: str) -> Dataset:
    user, item, time = (data.column(name) for name in ("user", "item", "timestamp"))
    if user is None or item is None or data.users is None:
        raise DataError(f"imported dataset '{name}': its files are incomplete. Import it again.")
    return Dataset(
        name=name,
        user=user.astype(np.int64),
        item=item.astype(np.int64),
        rating=data.column("rating"),
        time=np.zeros(len(user), dtype=np.int64) if time is None else time,
        users=data.users,
        items=data.items["source_id"].astype(str),
        split=data.column("split"),
        terms=terms,
        source="imported",
    )
