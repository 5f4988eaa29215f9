"""Read parts of a saved federation as numpy arrays, without torch: what one answer needs.

`federations.py` says what a saved federation is. Every file that is read here is compared with the
digest that is its name, as in a load of the whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.digests import array_digest
from rescind.core.headers import apart
from rescind.core.labels import Labels
from rescind.storage.content import SIZE, Store, warn_of
from rescind.storage.run_folder import HEAD

Array = NDArray[Any]
FORMAT = 3
"""The version that is read here; others are loaded whole."""
FILES = "files|"
_TYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "I32": np.int32,
    "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip


class Unreadable(ValueError):
    """The file is none that is read here. A load of the whole says what is wrong, if anything."""


def arrays_in(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays and the notes of a safetensors file."""
    try:
        length = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        notes: dict[str, str] = apart(header.pop("__metadata__", {}))
        body = memoryview(data)[8 + length :]
        return {name: _array(body, about) for name, about in header.items()}, notes
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def _array(body: memoryview, about: Mapping[str, Any]) -> Array:
    begin, end = about["data_offsets"]
    if not 0 <= begin <= end <= len(body):
        raise ValueError("a value lies outside the file")
    return np.frombuffer(body[begin:end], _TYPES[about["dtype"]]).reshape(about["shape"])


class _Listed:
    """Values of one side: small ones in a list, large ones in files."""

    def __init__(self, store: Store, small: Mapping[str, Array], large: Mapping[str, Any]) -> None:
        self.store, self._small, self._large = store, small, large
        for name in small:
            if name.startswith(FILES):
                for one in self._names(name.removeprefix(FILES)):
                    store.skip(one)

    def names(self, start: str) -> list[str]:
        """Return the names of all values that begin in this way."""
        known = [n for n in self._small if not n.startswith(FILES)]
        known += [n for n, facts in self._large.items() if "shape" in facts]
        return sorted(name for name in known if name.startswith(start))

    def value(self, name: str) -> Array:
        """Return a whole value."""
        if name in self._small:
            return self._small[name]
        facts = self._facts(name)
        flat = np.concatenate([part[""] for part in self._files(name)])
        if facts["bits"]:
            flat = np.unpackbits(flat, count=math.prod(facts["shape"])).view(np.bool_)
        return flat.reshape(facts["shape"])

    def rows(self, name: str, which: Array) -> Array:
        """Return some rows of a table, from the files that hold them. which: sorted"""
        if name in self._small:
            return self._small[name][which]
        shape, names = self._facts(name)["shape"], self._names(name)
        width, parts = math.prod(shape[1:]), {}
        first = arrays_in(self.store.get(names[0]))[0][""]  # each file has as many values
        out = np.empty((len(which), width), first.dtype)
        for place, row in enumerate(which.tolist()):
            begin, end, taken = row * width, (row + 1) * width, 0
            while begin < end:
                number, at = divmod(begin, len(first))
                if number not in parts:
                    parts = {number: arrays_in(self.store.get(names[number]))[0][""]}
                piece = parts[number][at : at + end - begin]
                out[place, taken : taken + len(piece)] = piece
                begin, taken = begin + len(piece), taken + len(piece)
        return out

    def of_client(self, name: str, client: int) -> dict[str, Array]:
        """Return the rows of one client in a table."""
        columns = self.table(name, client)
        mine = slice(*np.searchsorted(columns["client"], [client, client + 1]))
        return {column: values[mine] for column, values in columns.items()}

    def table(self, name: str, client: int | None = None) -> dict[str, Array]:
        """Return the columns of a table; client: of the piece with this client alone"""
        start = f"{name}|"
        out = {n.removeprefix(start): v for n, v in self._small.items() if n.startswith(start)}
        for group in [n for n in self._large if n.startswith(f"{name}/")]:
            people, names = self._facts(group)["people"], self._names(group)
            if client is not None:
                names = names[client // people : client // people + 1]
            parts = [arrays_in(self.store.get(one))[0] for one in names]
            out |= {n: np.concatenate([part[n] for part in parts]) for n in (parts or [{}])[0]}
        if "client" not in out:
            raise Unreadable(f"there is no table {name} here")
        return out

    def _facts(self, name: str) -> dict[str, Any]:
        if name not in self._large:
            raise Unreadable(f"there is no {name} here")
        found: dict[str, Any] = self._large[name]
        return found

    def _names(self, name: str) -> list[bytes]:
        data = self._small[FILES + name].tobytes()
        return [data[start : start + SIZE] for start in range(0, len(data), SIZE)]

    def _files(self, name: str) -> list[dict[str, Array]]:
        return [arrays_in(self.store.get(one))[0] for one in self._names(name)]


class Saved:
    """A saved federation: its facts and labels, and the values that are asked for."""

    def __init__(self, folder: Path) -> None:
        small, notes = arrays_in((folder / HEAD).read_bytes())
        stated = notes.pop("digest", "")
        text = json.dumps([array_digest(small), sorted(notes.items())])
        if stated != "sha256:" + hashlib.sha256(text.encode()).hexdigest():
            raise Unreadable("it does not match its digest")
        self.facts: dict[str, Any] = json.loads(notes["facts"])
        if self.facts.get("format") != FORMAT:
            raise Unreadable("another version saved it")
        self._names = {n: bytes.fromhex(text) for n, text in self.facts["lists"].items()}
        self.server = _Listed(Store(folder / "server"), small, self.facts["large"])
        store = Store(folder / "devices")
        held, notes = arrays_in(store.get(self._names["devices"]))
        self.device_facts: dict[str, Any] = json.loads(notes["facts"])
        self.devices = _Listed(store, held, self.device_facts["large"])
        names = Store(folder / "labels", ".json")
        self.labels = self._read_labels(names)
        warn_of(sum(one.unread for one in (self.server.store, store, names)), folder)

    def _read_labels(self, store: Store) -> Labels:
        columns: dict[str, list[str]] = json.loads(store.get(self._names["labels"]))
        names: dict[str, tuple[str, ...]] = {}
        for column, files in columns.items():
            chunks = (json.loads(store.get(bytes.fromhex(one))) for one in files)
            names[column] = tuple(chain.from_iterable(chunks))
        return Labels(**names)

    def model_digest(self) -> str:
        """Return `params.digest` of the public values."""
        start = "public|"
        names = self.server.names(start)
        return array_digest({name.removeprefix(start): self.server.value(name) for name in names})

    def data_digest(self) -> str:
        """Return `Holdings.digest` of what devices hold."""
        facts = self.device_facts
        if "graph" in facts:
            raise Unreadable("a graph is loaded whole")
        hasher = hashlib.blake2b(digest_size=32)
        hasher.update("{task}/{items}/{now}".format(**facts).encode())
        table = self.devices.table("held")
        for name in ("client", "item", "time", "split", "block", "lent"):
            hasher.update(np.ascontiguousarray(table[name]).data)
        hasher.update(np.ascontiguousarray(self.devices.value("held|members")).data)
        return "blake2b:" + hasher.hexdigest()
