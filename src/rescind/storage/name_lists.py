"""Original ids and titles as JSON: some names in a file, and a list of the files."""

from __future__ import annotations

import json
from functools import partial

from rescind.core.labels import Labels, NameChunk
from rescind.core.settings import fields_of
from rescind.storage.content import Store
from rescind.storage.lists import known, remember


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
