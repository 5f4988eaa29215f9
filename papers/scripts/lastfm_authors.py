"""Write the blocks and splits of Last.fm-2K as F3CRec's authors made them.

    python papers/scripts/lastfm_authors.py            on a machine whose numpy sorts with AVX-512

They published none, but the steps are known: rows of the published file in its order (user, artist,
tag), each (user, artist, time) once, 5-core, and numpy's quick sort by time. That sort is not
stable, and 95 % of the times are equal, so the order of a month's rows is that of the machine's
instructions: with AVX-512 all users and items of Table 1 come out exactly, with AVX2 or without
either they do not. What depends on it is stored as one label per row: 0 for the first block, then
1 + 3 (block - 1) + split. `rescind.data.variants` reads it.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from rescind.data import Dataset, k_core, load, variants
from rescind.data.blocks import block_split, chronological

OUT = Path(variants.__file__).parent / variants.AUTHORS_FILE
TABLE_1 = [(834, 4112), (971, 4188), (1107, 4239), (1165, 4259)]


def in_file_order(folder: Path) -> Dataset:
    """Return the rows that F3CRec counts, filtered, by user, artist and tag."""
    tag = pq.read_table(folder / "interactions.parquet")["tag"].to_numpy()
    whole = load("lastfm-2k")
    return k_core(variants.one_per_time(whole.select(np.lexsort((tag, whole.item, whole.user)))), 5)


def labelled(rows: Dataset) -> Dataset:
    """Return the rows in the authors' order, with blocks and the splits of later blocks."""
    order, place = np.argsort(rows.time, kind="quicksort"), np.arange(1, len(rows) + 1)
    theirs = replace(rows.select(order), time=place)  # no two rows have the same place
    block = chronological(theirs)
    split = block_split(theirs, block, seed=0)
    return replace(theirs, time=rows.time[order], block=block, split=split)


def sizes(data: Dataset) -> list[tuple[int, int]]:
    """Return the users and items seen up to each block, as Table 1 counts them."""
    seen = [data.select(data.block <= number) for number in range(4)]
    return [(len(np.unique(s.user)), len(np.unique(s.item))) for s in seen]


def stored(data: Dataset) -> str:
    """Return the labels as the text of the file."""
    label = np.where(data.block > 0, 3 * data.block - 2 + data.split, 0).astype(np.int8)
    order = np.lexsort((label, data.time, data.item, data.user))
    packed = zlib.compress(label[order].tobytes(), 9)
    return json.dumps({"labels": base64.b64encode(packed).decode()}) + "\n"


def main() -> None:
    """Write the file if Table 1 comes out."""
    data = labelled(in_file_order(Path(os.environ["RESCIND_DATA"]) / "lastfm-2k"))
    if sizes(data) != TABLE_1:
        raise SystemExit(f"Table 1 has {TABLE_1}; this machine's sort gives {sizes(data)}.")
    OUT.write_text(stored(data), encoding="utf-8")
    print(f"written: {OUT.name}")


if __name__ == "__main__":
    main()
