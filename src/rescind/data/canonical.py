"""The canonical form of all sources, in memory and on disk.

A folder holds `interactions.parquet` (user, item int32 from 0; rating float32; timestamp int64;
sometimes tag, position or split) sorted by user, time, item, and `items.parquet` (item, title,
genres, source_id if known). A graph is one `graph.npz`. Writing is atomic: a folder is
complete or does not exist.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.files import sync_folder
from rescind.data.arrays import Ints, Labels, Strings
from rescind.data.dataset import Dataset
from rescind.errors import DataError

USERS = "users.parquet"
"""Of an import: original ids of users; its metadata say how it was read (`ABOUT`)."""
ABOUT = "rescind"
_INTEGER_COLUMNS = {"user": "int32", "item": "int32", "tag": "int32", "position": "int16"}


@dataclass(frozen=True, eq=False)
class Canonical:
    """Columns of the two tables; a column without values is None."""

    interactions: dict[str, Any]
    items: dict[str, NDArray[Any]] = field(default_factory=dict)
    users: Strings | None = None
    """Original user ids, if they are kept."""

    def column(self, name: str) -> NDArray[Any] | None:
        """Return a column of the interactions, None if it is missing."""
        return self.interactions.get(name)

    def dataset(
        self, name: str, users: Strings, split: Labels | None, terms: str, source: str = ""
    ) -> Dataset:
        """Build a dataset; unknown times are 0, unknown original item ids the numbers of items."""
        user, item = (self.interactions[c].astype(np.int64, copy=False) for c in ("user", "item"))
        time, ids = self.column("timestamp"), self.items.get("source_id")
        about = {n: self.items[n].astype(str) for n in ("title", "genres") if n in self.items}
        return Dataset(
            name=name,
            user=user,
            item=item,
            rating=self.column("rating"),
            time=np.zeros(len(user), dtype=np.int64) if time is None else time,
            users=users,
            items=(np.arange(int(item.max(initial=-1)) + 1) if ids is None else ids).astype(str),
            titles=about.get("title"),
            genres=about.get("genres"),
            split=split,
            terms=terms,
            source=source,
        )


def build(
    user: Ints,
    item: Ints,
    rating: NDArray[np.float32] | None,
    time: Ints | None,
    facts: Mapping[int, tuple[str, str | None]] | None = None,
    tag: Ints | None = None,
) -> Canonical:
    """Number original numeric ids from 0 in their order, and sort by user, time, item, tag.

    `facts` maps an original item id to its title and genres.
    """
    user_ids, users = np.unique(user, return_inverse=True)
    item_ids, items = np.unique(item, return_inverse=True)
    order = np.lexsort([key for key in (tag, items, time, users) if key is not None])
    columns = {"user": users, "item": items, "rating": rating, "timestamp": time}
    columns |= {} if tag is None else {"tag": tag}
    columns = {name: None if c is None else c[order] for name, c in columns.items()}
    table: dict[str, NDArray[Any]] = {"source_id": item_ids}
    if facts is not None:
        known = [facts.get(int(number), ("", None)) for number in item_ids]
        table["title"] = np.asarray([title for title, _ in known])
        if any(genres is not None for _, genres in known):
            table["genres"] = np.asarray([genres or "" for _, genres in known])
    return Canonical(columns, table, user_ids.astype(str))


def read_table(path: Path) -> dict[str, NDArray[Any] | None]:
    """Read a parquet file: None for a column of nulls, empty text for a null text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        return {name: _column(path, name, table[name]) for name in table.column_names}
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        why = str(error).splitlines()[0]
        why = f"not a readable parquet file ({why}). Delete it and get it again"
        raise DataError(f"{path}: {why}.") from error


def _column(path: Path, name: str, column: Any) -> NDArray[Any] | None:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray([cell or "" for cell in column.to_pylist()], dtype=np.str_)
    if column.null_count == len(column):
        return None
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{path}, row {row + 1}, column '{name}': the value is missing.")
    # Not by `to_numpy`: it imports pandas, which takes longer than to read most files.
    parts = [np.from_dlpack(part) for part in column.chunks]
    values: NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return values


def read_folder(folder: Path) -> Canonical:
    """Read the two tables of a folder (three with `users.parquet`)."""
    interactions = read_table(folder / "interactions.parquet")
    for name in ("user", "item"):
        if interactions.get(name) is None:
            raise DataError(
                f"{folder}: the column '{name}' is missing. Delete it and get it again."
            )
    tables: dict[str, dict[str, NDArray[Any]]] = {}
    for part in ("items", "users"):
        path = folder / f"{part}.parquet"
        found = read_table(path) if path.exists() else {}
        tables[part] = {name: column for name, column in found.items() if column is not None}
    users = tables["users"].get("source_id")
    return Canonical(interactions, tables["items"], None if users is None else users.astype(str))


def write_folder(folder: Path, data: Canonical, about: dict[str, Any] | None = None) -> None:
    """Write the tables into a folder that appears only when complete.

    `about` describes an import; if given, it and the original user ids are written too (in one
    file, `users.parquet`), and only the owner may read the folder.
    """
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, columns = len(data.interactions["user"]), {}
    for name, column in data.interactions.items():
        kind = {"rating": pa.float32(), "timestamp": pa.int64()}.get(name)
        kind = kind or pa.type_for_alias(_INTEGER_COLUMNS.get(name, "int8"))
        columns[name] = pa.nulls(rows, kind) if column is None else pa.array(column).cast(kind)
    items = {name: pa.array(column.tolist()) for name, column in data.items.items()}
    if items:
        count = len(next(iter(items.values())))
        items = {"item": pa.array(np.arange(count, dtype=np.int32)), **items}

    def fill(target: Path) -> None:
        # Users are sorted: their differences need few bits. To pack the other columns takes longer
        # than to sort them, and saves a third. All rows are read together, so that nobody asks for
        # the least and the largest of a part.
        packed = {n: "DELTA_BINARY_PACKED" if n == "user" else "PLAIN" for n in columns}
        pq.write_table(
            pa.table(columns),
            target / "interactions.parquet",
            compression="none",
            use_dictionary=False,
            column_encoding=packed,
            write_statistics=False,
        )
        if items:
            pq.write_table(pa.table(items), target / "items.parquet", compression="zstd")
        if about is not None and data.users is not None:
            ids = pa.table({"source_id": pa.array(data.users.tolist())})
            ids = ids.replace_schema_metadata({ABOUT: json.dumps(about)})
            pq.write_table(ids, target / USERS, compression="zstd")
            target.chmod(0o700)
            for path in target.iterdir():
                path.chmod(0o600)

    # Of an import a receipt may say what is gone: it must not come back with the power.
    write_atomically(folder, fill, durable=about is not None)


def write_atomically(folder: Path, fill: Callable[[Path], None], durable: bool = False) -> None:
    """Let `fill` write into a hidden folder, then move it into place in one step.

    If anything fails, nothing is left behind and an existing folder is not changed.
    durable: what is returned from here survives a power failure
    """
    hidden: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        hidden.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        fill(hidden)
        for path in hidden.iterdir() if folder.is_dir() else ():
            _keep_old(path, folder / path.name)
        for path in (*hidden.iterdir(), hidden) if durable else ():
            sync_folder(path)
        _move(hidden, folder)
        if durable:
            sync_folder(folder.parent)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise DataError(
            f"{folder}: could not be written ({'the disk is full' if full else error}). Nothing "
            "was stored. Free some space, or set RESCIND_HOME or RESCIND_CACHE to another folder."
        ) from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)


def _keep_old(new: Path, old: Path) -> None:
    """Take a file as it lies there already if nothing in it has changed."""
    if old.is_file() and filecmp.cmp(new, old, shallow=False):
        with suppress(OSError):  # a disk without such links
            os.link(old, linked := new.with_name(f".{new.name}"))
            os.replace(linked, new)


def read_about(folder: Path) -> dict[str, Any]:
    """Return what was written about an import."""
    import json

    import pyarrow.parquet as pq

    found: dict[str, Any] = json.loads(pq.read_schema(folder / USERS).metadata[ABOUT.encode()])
    return found


def _move(hidden: Path, folder: Path) -> None:
    """Replace an old folder by a complete one; if this fails, the old one stays."""
    old = _aside(folder)
    recover(folder)
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(hidden, folder)
    except BaseException as error:  # an interrupt, too, must not leave nothing
        if old.exists():
            os.replace(old, folder)
            raise
        if not isinstance(error, OSError) or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return  # another process stored the same data first
    shutil.rmtree(old, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".old.{folder.name}")


def recover(folder: Path) -> None:
    """Bring back a folder whose replacement was killed half-way; drop one that was replaced."""
    old = _aside(folder)
    if old.exists() and not folder.exists():
        os.replace(old, folder)
    elif old.exists():
        shutil.rmtree(old, ignore_errors=True)


def imported_dataset(data: Canonical, name: str, terms: str) -> Dataset:
    """Return an import as a dataset."""
    if data.users is None or "source_id" not in data.items:
        raise DataError(f"imported dataset '{name}': its files are incomplete. Import it again.")
    return data.dataset(name, data.users, data.column("split"), terms, source="imported")
