"""Lists of values: small values themselves, and the names of the files that hold the large ones.

A table is saved in pieces of some thousand clients. A piece that was saved or loaded before is
known by its object, so that a save reads only what changed since.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core import params
from rescind.core.labels import Labels, NameChunk
from rescind.core.params import Params
from rescind.core.settings import fields_of
from rescind.core.table import PIECE, Piece, Table
from rescind.core.versions import Version
from rescind.storage.content import SIZE, Store

FILES = "files|"
"""Prefix of the names of files, [n, 32] bytes."""
SMALL = 2**15
"""Bytes of a tensor that a list holds itself."""
FEW = 2048
"""Rows of a table that a list holds itself."""
LARGEST = 2**21
"""Bytes of a file with a part of a tensor."""

_Token = Piece | NameChunk
_KNOWN: weakref.WeakKeyDictionary[_Token, dict[str, bytes]] = weakref.WeakKeyDictionary()
"""The names of files that hold what an object stands for."""
_TENSORS: dict[int, tuple[weakref.ref[Tensor], int, list[bytes]]] = {}
"""The same for tensors, by `id`, with the number of their changes in place."""


class Writer:
    """A list that is being made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tensors: dict[str, Tensor] = {}
        self.large: dict[str, Any] = {}
        """What the files with large values hold, by name."""

    def add(self, values: Params) -> None:
        for name, value in values.items():
            if value.numel() * value.element_size() <= SMALL:
                self.tensors[name] = value
                continue
            bits = value.dtype == torch.bool
            self._name(
                name, _files_of(value, self.store), {"shape": list(value.shape), "bits": bits}
            )

    def add_table(self, name: str, table: Table, apart: str = "") -> None:
        """Add a table. apart: a column with files of its own, because it alone changes often"""
        if len(table) <= FEW:
            self.tensors |= {f"{name}|{n}": column for n, column in table.columns.items()}
            return
        groups = {"rows": [name for name in table.rows_of_piece(0) if name != apart]}
        groups |= {apart: [apart]} if apart else {}
        found: dict[str, list[bytes]] = {group: [] for group in groups}
        for number, piece in enumerate(table.pieces()):
            names = _saved(self.store, piece, groups)
            if len(names) < len(groups):
                names = self._write_piece(table, number, groups)
                _KNOWN[piece] = names
            for group, one in names.items():
                found[group].append(one)
        for group, files in found.items():
            self._name(f"{name}/{group}", files, {"people": PIECE})

    def _write_piece(
        self, table: Table, number: int, groups: Mapping[str, list[str]]
    ) -> dict[str, bytes]:
        rows = table.rows_of_piece(number)
        return {
            group: self.store.put(params.to_bytes({name: rows[name] for name in names}))
            for group, names in groups.items()
        }

    def add_rows(self, name: str, version: Version) -> None:
        """Add a table with one row per client."""
        if len(version) <= FEW:
            self.add({name: version.read(torch.arange(len(version)))})
            return
        found = [
            known(self.store, piece, "rows", partial(_encoded_rows, version, number))
            for number, piece in enumerate(version.pieces())
        ]
        self._name(f"{name}/rows", found, {"people": PIECE})

    def _name(self, name: str, found: list[bytes], facts: dict[str, Any]) -> None:
        flat = np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, SIZE)
        self.tensors[FILES + name] = torch.from_numpy(flat.copy())
        self.large[name] = facts


def _saved(store: Store, token: _Token, groups: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the names of files that hold what an object stands for, if they are there."""
    names = _KNOWN.get(token, {})
    return {group: names[group] for group in groups if group in names and store.has(names[group])}


def _encoded_rows(version: Version, number: int) -> bytes:
    return params.to_bytes({"": version.rows_of_piece(number)})


def known(store: Store, token: _Token, group: str, read: Callable[[], bytes]) -> bytes:
    """Return the name of the file with what an object stands for; write it if it is not there."""
    names = _KNOWN.setdefault(token, {})
    if group not in names or not store.has(names[group]):
        names[group] = store.put(read())
    return names[group]


def remember(token: _Token, group: str, name: bytes) -> None:
    """Note that a file holds what an object stands for."""
    _KNOWN.setdefault(token, {})[group] = name


def _files_of(value: Tensor, store: Store) -> list[bytes]:
    """Return the names of the files of a tensor; write those that are not there."""
    seen = _TENSORS.get(id(value))
    same = seen is not None and seen[0]() is value and seen[1] == value._version
    if seen is not None and same and all(map(store.has, seen[2])):
        return seen[2]
    flat = value.detach().cpu().contiguous().reshape(-1)
    if value.dtype == torch.bool:
        flat = torch.from_numpy(np.packbits(flat.numpy()))
    parts = torch.split(flat, LARGEST // flat.element_size())
    names = [store.put(params.to_bytes({"": part})) for part in parts]
    _remember_tensor(value, names)
    return names


def _remember_tensor(value: Tensor, names: list[bytes]) -> None:
    at = id(value)
    gone = weakref.ref(value, lambda _: _TENSORS.pop(at, None))
    _TENSORS[at] = (gone, value._version, names)


class Reader:
    """A list that is being read."""

    def __init__(self, store: Store, tensors: Params, large: Mapping[str, Any]) -> None:
        self._store, self._tensors, self._large = store, tensors, large
        self._read: dict[bytes, dict[str, Tensor]] = {}

    def names(self, name: str) -> list[bytes]:
        """Return the names of the files with a large value."""
        data = self._tensors[FILES + name].numpy().tobytes()
        return [data[start : start + SIZE] for start in range(0, len(data), SIZE)]

    def all(self) -> dict[str, Tensor]:
        """Return all values. Columns with the same content are the same object."""
        out = {n: v for n, v in self._tensors.items() if not n.startswith(FILES)}
        for name, facts in self._large.items():
            columns = self._joined(name)
            if "shape" in facts:
                out[name] = _shaped(columns[""], facts["shape"], facts["bits"])
                _remember_tensor(out[name], self.names(name))
                continue
            start = name.rpartition("/")[0]
            out |= {f"{start}|{n}" if n else start: column for n, column in columns.items()}
        return out

    def _joined(self, name: str) -> dict[str, Tensor]:
        from safetensors.torch import load

        key = b"".join(names := self.names(name))
        if key not in self._read:
            parts = [load(self._store.get(one)) for one in names]
            self._read[key] = {n: torch.cat([part[n] for part in parts]) for n in parts[0]}
        return self._read[key]

    def remember(self, name: str, table: Table | Version) -> None:
        """Note which files hold the pieces of a table that was made of these values."""
        groups = [n for n in self._large if n.rpartition("/")[0] == name]
        for group in groups:
            if self._large[group].get("people") != PIECE:
                continue
            for piece, file in zip(table.pieces(), self.names(group), strict=False):
                remember(piece, group.rpartition("/")[2], file)


def _shaped(flat: Tensor, shape: list[int], bits: bool) -> Tensor:
    if bits:
        count = math.prod(shape)
        flat = torch.from_numpy(np.unpackbits(flat.numpy(), count=count)).bool()
    return flat.reshape(shape)


# -- original ids and titles as JSON: some names in a file, and a list of the files ----------------


def write_labels(labels: Labels, store: Store) -> bytes:
    """Write the names that are not there; return the name of the list."""
    columns = {
        column: [known(store, c, "names", partial(_encoded, c)).hex() for c in names.chunks]
        for column, names in labels.in_chunks.items()
    }
    return store.put(json.dumps(columns).encode())


def _encoded(chunk: NameChunk) -> bytes:
    return json.dumps(chunk.names).encode()


def read_labels(store: Store, name: bytes) -> Labels:
    columns: dict[str, list[str]] = json.loads(store.get(name))
    files = {
        column: [bytes.fromhex(one) for one in columns[column]] for column in fields_of(Labels)
    }
    labels = Labels(**{
        column: tuple(text for one in names for text in json.loads(store.get(one)))
        for column, names in files.items()
    })  # fmt: skip
    for column, names in labels.in_chunks.items():
        for chunk, one in zip(names.chunks, files[column], strict=True):
            remember(chunk, "names", one)
    return labels
