"""Sum a log that does not fit into memory: bring each user's rows together, then add parts up.

1. Each piece of the log is written again with its rows sorted into partitions by a hash of the
   user: one file per piece, one record batch per partition.
2. A part reads some partitions from all those files. It sees whole users, so it can drop repeated
   pairs and weigh users by their number of items, and returns their sum.
3. Parts are added up. They are whole numbers: any partition, order or worker gives the same bits.

Each step is a function of its arguments that may run again: a file appears under its name when it
is complete, and `Total` takes a part once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.cohort import Lot
from rescind.core.fast.kept_code import njit
from rescind.errors import DataError
from rescind.estimators.frames import Ints
from rescind.estimators.ledger import Marks, distinct
from rescind.estimators.logs import Columns, Piece

Hashes = NDArray[np.uint64]
_ITEMS = "items.arrow"


class Scattered(NamedTuple):
    """What became of a piece."""

    number: int
    rows: int
    items: Any
    """Its distinct items, an Arrow array."""


@dataclass(frozen=True)
class Part:
    """The sum over the users of some partitions."""

    number: int
    rows: int
    """Rows of the log in it, repeated pairs too."""
    owners: Ints
    """[I] how many users have each item."""
    marks: Marks
    total: Any
    """The sum over these users, as a numpy array."""


@dataclass
class Total:
    """The sum of parts. A part that comes again, after a retry, counts once."""

    seen: set[int] = field(default_factory=set)
    rows: int = 0
    owners: Ints | None = None
    marks: list[Marks] = field(default_factory=list)
    total: Any = None

    def add(self, part: Part) -> None:
        if part.number in self.seen:
            return
        self.seen.add(part.number)
        self.rows += part.rows
        self.marks.append(part.marks)
        if self.owners is None:
            self.owners, self.total = part.owners, part.total
        elif len(self.marks) == 2:  # a part is never written into: an engine may hand it out again
            self.owners, self.total = self.owners + part.owners, self.total + part.total
        else:
            self.owners += part.owners
            self.total += part.total

    def finish(self, rows: int) -> None:
        """Raise unless every row of the log is in the sum exactly once. rows: by the footers"""
        if self.rows != rows:
            raise DataError(f"the sum holds {self.rows:,} rows of the log, its files {rows:,}.")


# -- the steps -------------------------------------------------------------------------------------


def scatter(columns: Columns, piece: Piece, spill: Path, partitions: int, key: int) -> Scattered:
    """Write the rows of a piece by partition of their user, and return its items."""
    import pyarrow
    import pyarrow.ipc

    rows = columns.read(piece.fragment, schema=columns.schema)
    order, ends = _by_partition(hashes(rows.user, key), partitions)
    item = rows.item.dictionary_encode()
    made = {"user": rows.user, "item": item}
    if rows.time is not None:
        made["time"] = pyarrow.array(rows.time)
    batch = pyarrow.RecordBatch.from_pydict(made).take(pyarrow.array(order))
    temporary = spill / f".{secrets.token_hex(8)}"
    with pyarrow.OSFile(str(temporary), "wb") as file, pyarrow.ipc.new_file(
        file, batch.schema
    ) as out:  # fmt: skip
        for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            out.write_batch(batch.slice(begin, end - begin))
    os.replace(temporary, _file(spill, piece.number))
    return Scattered(piece.number, len(order), item.dictionary)


def write_items(spill: Path, items: Any) -> None:
    """Tell parts the items, an Arrow array; an item's slot is its place."""
    import pyarrow
    import pyarrow.ipc

    batch = pyarrow.RecordBatch.from_pydict({"item": items})
    with pyarrow.OSFile(str(spill / _ITEMS), "wb") as file, pyarrow.ipc.new_file(
        file, batch.schema
    ) as out:  # fmt: skip
        out.write_batch(batch)


def part_of(
    model: Any, spill: Path, pieces: int, number: int, partitions: Sequence[int], key: int
) -> Part:
    """Sum the users of some partitions. model: an estimator without records, for its settings"""
    names, files = _opened(spill, pieces, key)
    items = len(names)
    model = type(model)(**model.get_params())  # in one process, every part has its own
    total = torch.zeros(model._shape(items), dtype=torch.int64)
    owners, marks, rows = np.zeros(items, np.int64), [], 0
    for partition in partitions:
        read, users, lot = _whole_users(files, partition)
        rows += read
        if not len(lot):
            continue
        model._count(total, lot, 1)
        owners += np.bincount(lot.item.numpy(), minlength=items)
        marks.append(np.stack([hashes(users, key), marks_of(lot, names, key)], axis=1))
    found = np.concatenate([np.zeros((0, 2), np.uint64), *marks])
    return Part(number, rows, owners, found, total.numpy())


def _opened(spill: Path, pieces: int, key: int) -> tuple[Hashes, list[tuple[Any, Ints]]]:
    """Return the hash of each item, and each file with the slots of its items."""
    import pyarrow
    import pyarrow.ipc
    from pyarrow import compute

    items = pyarrow.ipc.open_file(pyarrow.memory_map(str(spill / _ITEMS))).get_batch(0)["item"]
    files = []
    for number in range(pieces):
        file = pyarrow.ipc.open_file(pyarrow.memory_map(str(_file(spill, number))))
        own = file.get_batch(0)["item"].dictionary
        slot = compute.index_in(own, value_set=items).to_numpy(zero_copy_only=False)
        files.append((file, slot.astype(np.int64)))
    return hashes(items, key), files


def _whole_users(files: list[tuple[Any, Ints]], partition: int) -> tuple[int, Any, Lot]:
    """Return the number of rows of a partition, its users, and their distinct items."""
    import pyarrow

    batches = [(file.get_batch(partition), slot) for file, slot in files]
    user = pyarrow.concat_arrays([batch["user"] for batch, _ in batches]).dictionary_encode()
    item = [slot[batch["item"].indices.to_numpy()] for batch, slot in batches]
    time = [batch["time"].to_numpy() for batch, _ in batches if "time" in batch.schema.names]
    rows = np.stack([np.concatenate(each) for each in (item, time) if each])
    owner, rows = distinct(user.indices.to_numpy().astype(np.int64), rows)
    moment = torch.from_numpy(rows[1].copy()) if len(rows) > 1 else None
    lot = Lot(
        torch.from_numpy(owner), torch.from_numpy(rows[0].copy()), len(user.dictionary), moment
    )
    return len(user), user.dictionary, lot


def _file(spill: Path, number: int) -> Path:
    return spill / f"piece-{number:06d}.arrow"


# -- hashes ----------------------------------------------------------------------------------------


def hashes(ids: Any, key: int) -> Hashes:
    """Return a number for each id, equal for equal ids and any other key. ids: an Arrow array"""
    import pyarrow

    if pyarrow.types.is_integer(ids.type):
        return _hash_numbers(ids.to_numpy().view(np.uint64), np.uint64(key))
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return _hash_text(text, ends, np.uint64(key))


def marks_of(lot: Lot, names: Hashes, key: int) -> Hashes:
    """Return a hash of the records of each owner of a lot. [owners]    names: by item of the lot"""
    time = torch.zeros_like(lot.item) if lot.time is None else lot.time
    name = names[lot.item.numpy()]
    return _hash_rows(lot.owner.numpy(), name, time.numpy(), lot.clients, np.uint64(key))


@njit(inline="always")
def _mix(x: Any) -> Any:
    """Mix 64 bits (splitmix64, Steele et al., 2014)."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def _hash_numbers(ids: Any, key: Any) -> Any:
    out = np.empty(len(ids), np.uint64)
    for n in range(len(ids)):
        out[n] = _mix(_mix(ids[n] ^ key) ^ key)
    return out


@njit
def _hash_text(text: Any, ends: Any, key: Any) -> Any:
    out = np.empty(len(ends) - 1, np.uint64)
    for n in range(len(out)):
        made = _mix(key ^ np.uint64(ends[n + 1] - ends[n]))
        word, used = np.uint64(0), 0
        for at in range(ends[n], ends[n + 1]):
            word = (word << np.uint64(8)) | np.uint64(text[at])
            used += 1
            if used == 8:
                made, word, used = _mix(made ^ word), np.uint64(0), 0
        out[n] = _mix(made ^ word)
    return out


@njit
def _hash_rows(owner: Any, name: Any, time: Any, owners: int, key: Any) -> Any:
    out = np.zeros(owners, np.uint64)
    for n in range(len(owner)):  # a sum: the order of items does not count
        out[owner[n]] += _mix(_mix(name[n] ^ np.uint64(time[n])) ^ key)
    return out


@njit
def _by_partition(hashed: Any, partitions: int) -> Any:
    """Return rows in the order of their partition, and where each partition ends. [P + 1]"""
    ends = np.zeros(partitions + 1, np.int64)
    for n in range(len(hashed)):
        ends[np.int64(hashed[n] % np.uint64(partitions)) + 1] += 1
    ends = np.cumsum(ends)
    order, at = np.empty(len(hashed), np.int64), ends.copy()
    for n in range(len(hashed)):
        partition = np.int64(hashed[n] % np.uint64(partitions))
        order[at[partition]] = n
        at[partition] += 1
    return order, ends


def groups(partitions: int, most: int) -> Iterator[range]:
    """Yield the partitions in groups, as many as are allowed."""
    step = -(-partitions // most)
    for begin in range(0, partitions, step):
        yield range(begin, min(begin + step, partitions))
