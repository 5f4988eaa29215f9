"""Variants of datasets as papers use them: filtered, cut into blocks, with a published split.

F3CRec keeps users and items with 10 rows (Last.fm 5), sorts by time and cuts. Its authors
published the blocks and splits of ML-100K; a copy with the ids used here may be stored with the
data as `f3crec_blocks.parquet`. Those of Last.fm were found from Table 1
(papers/scripts/lastfm_authors.py) and come with this package: the variant `authors`.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from rescind.data.arrays import Ints, Labels
from rescind.data.blocks import arrange, block_split, k_core
from rescind.data.canonical import read_table
from rescind.data.catalogue import Entry
from rescind.data.dataset import Dataset
from rescind.errors import DataError

BLOCK_FILE = "f3crec_blocks.parquet"
AUTHORS_FILE = "lastfm_authors.json"


def in_blocks(entry: Entry, variant: str, dataset: Dataset, folder: Path) -> Dataset:
    """Return the F3CRec variant: k-core, blocks by time, ids by first appearance.

    Rows are in order of block and time. The variant `f3crec` of ML-100K has the blocks and splits
    of the authors' file, `authors` of Last.fm those of their sort; otherwise `split` is None
    (`blocks.block_split` draws one).
    """
    rows = one_per_time(dataset) if entry.name == "lastfm-2k" else dataset
    kept = k_core(rows, entry.core or 1)
    if variant == "authors":
        block, split = _read_labels(kept)
        return arrange(replace(kept, split=split), block)
    if variant == "blocks" or entry.name != "ml-100k":
        return arrange(kept)
    given = folder / BLOCK_FILE
    if not given.exists():
        raise DataError(f"{given} with the authors' blocks is missing; use the variant 'blocks'.")
    block, split = _read_given(given, kept)
    return arrange(replace(kept, split=split), block)


def one_per_time(dataset: Dataset) -> Dataset:
    """Reduce tag assignments to the rows that F3CRec counts.

    The authors kept each (user, artist, time) once, in a file with exact times. In the published
    file of days nearly all rows have the first of a month; only the days of the crawl count as
    exact times, so all their rows are kept. This gives the authors' totals exactly.
    """
    from datetime import UTC, datetime, timedelta
    from zoneinfo import ZoneInfo

    zone, origin = ZoneInfo("Europe/Madrid"), datetime(1970, 1, 1, tzinfo=UTC)
    seconds, inverse = np.unique(dataset.time, return_inverse=True)
    days = [(origin + timedelta(seconds=s)).astimezone(zone).day for s in seconds.tolist()]
    first_of_month = np.asarray(days) == 1
    key = np.stack((dataset.user, dataset.item, dataset.time), axis=1)
    _, first = np.unique(key, axis=0, return_index=True)
    keep = ~first_of_month[inverse]
    keep[first] = True
    return dataset.select(keep)


def by_pair(dataset: Dataset) -> Ints:
    """Return the row numbers by user, item and time, the order of stored labels."""
    return np.lexsort((dataset.time, dataset.item, dataset.user))


def _read_labels(dataset: Dataset) -> tuple[Labels, Labels]:
    """Read blocks and splits of Last.fm; the split of the first block is drawn, as they did."""
    stored = json.loads(files("rescind.data").joinpath(AUTHORS_FILE).read_text(encoding="utf-8"))
    label = np.frombuffer(zlib.decompress(base64.b64decode(stored["labels"])), dtype=np.int8)
    block, split = np.empty(len(dataset), np.int8), np.empty(len(dataset), np.int8)
    order = by_pair(dataset)
    block[order], split[order] = (label + 2) // 3, np.where(label > 0, (label + 2) % 3, 0)
    return block, np.where(block == 0, block_split(dataset, block, seed=0), split)


def _read_given(path: Path, dataset: Dataset) -> tuple[Labels, Labels]:
    """Read blocks and splits from a file, in the order of the dataset's rows."""
    table = read_table(path)
    columns = {name: table.get(name) for name in ("user", "item", "block", "split")}
    missing = [name for name, column in columns.items() if column is None]
    if missing:
        raise DataError(f"{path}: the column '{missing[0]}' is missing. Get the file again.")
    user, item, block, split = (np.asarray(columns[name]) for name in columns)
    # the file counts users and items of the whole dataset; original ids are one more
    theirs = (user.astype(np.int64) + 1) * 2**32 + item + 1
    users, items = dataset.users.astype(np.int64), dataset.items.astype(np.int64)
    ours = users[dataset.user] * 2**32 + items[dataset.item]
    order: Ints = np.argsort(theirs, kind="stable")
    at = np.searchsorted(theirs[order], ours).clip(max=len(theirs) - 1)
    if len(theirs) != len(ours) or not np.array_equal(theirs[order][at], ours):
        raise DataError(f"{path}: its pairs differ from those of the dataset. Get both again.")
    return block[order][at], split[order][at]
