"""Looks for planted bytes (canaries) in every file, in every form they may take.

Forms: UTF-8 and UTF-16, hexadecimal digits, base64, JSON escapes, whole numbers of 4 and 8 bytes in
both orders; inside gzip, bzip2, xz, zstd, zip (so npz), tar, Parquet and SQLite files. Formats that
do not compress (npy, safetensors) are found as they are. The index of SQLite's write-ahead log is a
row of page numbers and holds nothing else, so whole numbers are not looked for in it: somebody who
lends items 0 to 11 would be "found" there.

A scanner that finds nothing may be blind. So every scan plants its own canaries first, in each form
and container (`control`), and is void if it misses one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sqlalchemy import Connection, select

from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.keyslots import KeySlots, about, unseal
from rescind.ledger.worker_io import Read, read_apart

DEEPEST = 4
"""Containers inside containers that are opened."""
_SIZES = (("i", 4), ("q", 8))
PACKED = frozenset(f"{size}-byte {end}-endian" for _, size in _SIZES for end in ("little", "big"))
"""Forms in which a row of numbers is bytes one after the other."""
INDEX = ((3_007_000).to_bytes(4, "little"), (3_007_000).to_bytes(4, "big"))
"""How the index of a write-ahead log begins: the version of its form. The head comes twice."""
LARGEST = 1 << 30
"""Bytes of one opened container: more is refused, not skipped in silence."""


@dataclass(frozen=True)
class Canary:
    """What is looked for: bytes (ids, keys, texts) and rows of whole numbers (loans)."""

    name: str
    data: bytes = b""
    numbers: tuple[int, ...] = ()

    def forms(self) -> dict[str, bytes]:
        return {**(_of_bytes(self.data) if self.data else {}), **_of_numbers(self.numbers)}


@dataclass(frozen=True)
class Found:
    """Where a canary was found, and in which form."""

    where: str
    canary: str
    form: str


@dataclass(frozen=True)
class Scan:
    """What a scan found, and how many plants of its control it found before."""

    found: list[Found]
    planted: int


def scan(
    roots: Iterable[Path], canaries: Sequence[Canary], database: Connection | None = None
) -> Scan:
    """Look into every file below these paths. Raise `DataError` if the control is missed.

    database: a ledger in PostgreSQL, where every value is looked at, too
    """
    with read_apart() as read:  # of a service: its process has locks on these files
        planted = control(canaries, read)
        found = _scan(roots, canaries, read)
    if database is not None:
        found += _found(_values(database), canaries)
    return Scan(found, planted)


def _values(database: Connection) -> Iterator[tuple[str, bytes]]:
    """Yield every text and every box of a ledger, with the column it is in."""
    for table in tables.metadata.sorted_tables:
        for row in database.execute(select(table)).mappings():
            for column, value in row.items():
                if isinstance(value, str | bytes | memoryview):
                    data = value.encode() if isinstance(value, str) else bytes(value)
                    yield f"PostgreSQL > {table.name}.{column}", data


def control(canaries: Sequence[Canary], read: Read) -> int:
    """Plant every canary in every form and container; raise `DataError` if one is not found.

    read: how the scan reads files
    """
    planted = 0
    with tempfile.TemporaryDirectory(prefix="rescind-scan-") as folder:
        for canary in canaries:
            forms = canary.forms()
            data = b"before " + b" between ".join(forms.values()) + b" after"
            for kind, wrap in CONTAINERS.items():
                path = Path(folder) / f"planted.{kind}"
                path.write_bytes(wrap(data))
                missed = set(forms) - {found.form for found in _scan([path], [canary], read)}
                if missed:
                    raise DataError(
                        f"the scan is void: it does not find {canary.name} as {min(missed)} in "
                        f"{kind}, where it was planted. This is a fault of the scanner."
                    )
                planted += len(forms)
    return planted


def opened_boxes(ledger: Path, keys: KeySlots) -> dict[str, bytes]:
    """Open all that any of these keys opens in a ledger or backup, as somebody who took both would.

    Every key is tried on every box, whatever the row says.
    """
    found = {}
    boxes = [
        (tables.person, "box", "id"),
        (tables.person, "kept_box", "id"),
        (tables.credential, "box", "person"),
        (tables.request, "receipt_key", "id"),
        (tables.roster, "box", "person"),
    ]
    connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        for table, column, whose in boxes:
            rows = connection.execute(
                f'SELECT "{whose}", "{column}" FROM "{table.name}" '
                f'WHERE "{column}" IS NOT NULL AND "{whose}" IS NOT NULL'
            ).fetchall()
            for number, (owner, box) in enumerate(rows):
                plain = tried(keys, box, about(owner, table.name, column))
                if plain is not None:
                    found[f"{table.name}.{column} {number}"] = plain
    finally:
        connection.close()
    return found


def tried(keys: KeySlots, box: bytes, bound: bytes) -> bytes | None:
    """Return what the first key that fits opens; None if none does."""
    for slot_id in keys.ids:
        try:
            return unseal(keys.get(slot_id).key, box, bound)
        except DataError:
            continue
    return None


def _scan(roots: Iterable[Path], canaries: Sequence[Canary], read: Read) -> list[Found]:
    return _found(((str(path), read(path)) for path in _files(roots)), canaries)


def _found(places: Iterable[tuple[str, bytes]], canaries: Sequence[Canary]) -> list[Found]:
    needles = [(one.name, form, what) for one in canaries for form, what in one.forms().items()]
    found = []
    for place, whole in places:
        for where, data in _layers(place, whole, DEEPEST):
            lowered, no_rows = data.lower(), _is_index(place, data) or _is_code(place)
            for name, form, what in needles:
                if no_rows and form in PACKED:
                    continue
                if what in (lowered if form == "hexadecimal" else data):
                    found.append(Found(where, name, form))
    return found


def _is_code(place: str) -> bool:
    """Whether this is code that numba compiled for a service: it has rows such as 1, 2, 3."""
    return "/compiled/" in place and place.endswith((".nbi", ".nbc"))


def _is_index(place: str, data: bytes) -> bool:
    """Whether this is the index of a write-ahead log of SQLite, which lies beside its database."""
    return place.endswith("-shm") and data[:4] in INDEX and data[:48] == data[48:96]


def unmistakable(numbers: Sequence[int]) -> bool:
    """Whether no counter and no list of pages looks like this row: its steps are of three sizes."""
    return len({after - before for before, after in pairwise(numbers)}) >= 3


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        elif root.is_dir():
            yield from sorted(path for path in root.rglob("*") if path.is_file())
        else:
            raise DataError(f"there is nothing at {root} to scan. Name a file or a folder.")


def _layers(where: str, data: bytes, deep: int) -> Iterator[tuple[str, bytes]]:
    """Yield these bytes, and what is packed in them."""
    yield where, data
    if not deep:
        return
    for name, inside in _unpacked(data):
        yield from _layers(f"{where} > {name}", inside, deep - 1)


def _unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    for kind, (magic, unpack) in _OPENERS.items():
        if data.startswith(magic):
            try:
                yield from ((f"{kind}:{name}", inside) for name, inside in unpack(data))
            except _BROKEN:
                continue  # only looks like one: its bytes were searched as they are
    if data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive.getmembers():
                if (file := archive.extractfile(member)) is not None:
                    yield f"tar:{member.name}", file.read(LARGEST)


def _one(read: Callable[[bytes], bytes]) -> Callable[[bytes], Iterator[tuple[str, bytes]]]:
    return lambda data: iter([("", read(data))])


def _zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                yield name, file.read(LARGEST)


def _zstd(data: bytes) -> bytes:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.py_buffer(data), "zstd").read()


def _parquet(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each column's values one after the other: pages are compressed."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(pyarrow.BufferReader(data))
    for name in table.column_names:
        parts = []
        for value in table[name].to_pylist():
            if isinstance(value, int) and abs(value) < 1 << 63:
                parts.append(struct.pack("<q", value))
            else:
                parts.append(value if isinstance(value, bytes) else str(value).encode())
        yield name, b"".join(parts)


def _sqlite(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield every value: one that spans two pages is not in one piece in the file."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for row in connection.execute(f'SELECT * FROM "{name}"'):
                for value in row:
                    if isinstance(value, str | bytes):
                        yield name, value.encode() if isinstance(value, str) else value
    finally:
        connection.close()


_OPENERS: dict[str, tuple[bytes, Callable[[bytes], Iterator[tuple[str, bytes]]]]] = {
    "gzip": (b"\x1f\x8b", _one(lambda data: gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST))),
    "bzip2": (b"BZh", _one(bz2.decompress)),
    "xz": (b"\xfd7zXZ", _one(lzma.decompress)),
    "zstd": (b"\x28\xb5\x2f\xfd", _one(_zstd)),
    "zip": (b"PK", _zip),
    "parquet": (b"PAR1", _parquet),
    "sqlite": (b"SQLite format 3\0", _sqlite),
}
_BROKEN = (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile, sqlite3.Error)


def _of_bytes(data: bytes) -> dict[str, bytes]:
    forms = {"bytes": data, "hexadecimal": data.hex().encode()}
    for offset in range(3):
        # The characters that neighbours share in are left out.
        for name, encode in (("base64", b64encode), ("base64url", urlsafe_b64encode)):
            coded = encode(bytes(offset) + data)
            inner = coded[(0, 2, 3)[offset] : len(coded) // 4 * 4 - 4]
            if inner not in forms.values():
                forms[f"{name}+{offset}"] = inner
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return forms
    forms |= {"utf-16-le": text.encode("utf-16-le"), "utf-16-be": text.encode("utf-16-be")}
    if (escaped := json.dumps(text)[1:-1].encode()) != data:
        forms["json"] = escaped
    forms["json, all escaped"] = "".join(
        f"\\u{ord(c):04x}" for c in text if ord(c) < 1 << 16
    ).encode()
    return forms


def _of_numbers(numbers: tuple[int, ...]) -> dict[str, bytes]:
    if not numbers:
        return {}
    forms = {}
    for order, name in (("<", "little"), (">", "big")):
        for code, size in _SIZES:
            if all(-(1 << (8 * size - 1)) <= one < 1 << (8 * size - 1) for one in numbers):
                packed = struct.pack(f"{order}{len(numbers)}{code}", *numbers)
                forms[f"{size}-byte {name}-endian"] = packed
    forms["json numbers"] = ",".join(map(str, numbers)).encode()
    forms["json numbers, spaced"] = ", ".join(map(str, numbers)).encode()
    return forms


def _in_zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside", data)
    return out.getvalue()


def _in_tar(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo("inside")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _in_zstd(data: bytes) -> bytes:
    import pyarrow

    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return bytes(out.getvalue())


def _in_parquet(data: bytes) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"column": [data, b"other"]}), out, compression="zstd")
    return bytes(out.getvalue())


def _in_sqlite(data: bytes) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE planted (value BLOB)")
    connection.execute("INSERT INTO planted VALUES (?)", (bytes(4080) + data,))  # spans two pages
    connection.commit()
    out = connection.serialize()
    connection.close()
    return out


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": _in_zstd,
    "zip": _in_zip,
    "tar.gz": _in_tar,
    "parquet": _in_parquet,
    "db": _in_sqlite,
}
"""Containers that the control plants in, by the end of the file's name."""
