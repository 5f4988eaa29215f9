"""Build datasets from raw or canonical files: choose the reader by name, check the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rescind.data import canonical
from rescind.data.arrays import TEST, TRAIN
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
    **{n: partial(graphs.read_planetoid, name=n) for n in ("cora", "citeseer", "pubmed")},
    "tolokers": partial(graphs.read_heterophilous, name="tolokers"),
}
WHEEL_READERS = {"ml-100k": movielens.read_wheel_100k, "ml-1m": movielens.read_wheel_1m}


def from_publisher(entry: Entry, files: Files) -> Raw:
    """Read the publisher's files."""
    return _PUBLISHER[entry.name](files)


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
    numbers = np.arange(int(raw.interactions["user"].max(initial=-1)) + 1)
    split = raw.column("split")
    if split is not None:  # published: train 0, test 1
        split = np.where(split == 1, TEST, TRAIN).astype(np.int8)
    return raw.dataset(entry.name, (numbers + int(entry.one_based)).astype(str), split, entry.terms)


def check(entry: Entry, data: Dataset | GraphDataset, source: str) -> None:
    """Compare size and digest with the catalogue."""
    if data.size != entry.size:
        raise DataError(f"{source}: '{entry.name}' should have {_words(entry.size)}; get it again.")
    check_digest(data, entry.name, source)


def check_digest(data: Dataset | GraphDataset, name: str, source: str) -> None:
    """Compare the digest with the committed one, if there is one."""
    expected = expected_digests().get(name)
    if expected is not None and data.digest != expected:
        raise DataError(
            f"{source}: expected is {expected} of '{name}'; delete it and get it again."
        )


def _words(size: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in size.items())
