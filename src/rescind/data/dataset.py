"""Datasets in memory: numpy columns, original ids, and a digest of the values.

The digest covers the values in fixed types and order, not the bytes of a file, so the publisher's
archive, a wheel and a parquet copy of the same data have the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rescind.core.labels import left, removed
from rescind.data.arrays import Ints, Labels, Mask, Strings
from rescind.errors import DataError

if TYPE_CHECKING:
    from rescind.core import labels as names
    from rescind.core.holdings import Holdings

# The canonical types: little endian, fixed width. Their order is the order of the digest.
_COLUMNS = dict(user="<i8", item="<i8", rating="<f4", time="<i8", split="|i1", block="|i1")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """User-item interactions, one row each; a pair may occur more than once.

    user, item: [n], indices into `users` and `items`    rating, time, split, block: [n]
    """

    name: str
    user: Ints
    item: Ints
    rating: NDArray[np.float32] | None
    """None if the source has no ratings."""
    time: Ints
    """Unix seconds, 0 if the source has no times."""
    users: Strings
    """Original id of each user, as text."""
    items: Strings
    """Original id of each item, as text."""
    titles: Strings | None = None
    """Name of each item, empty if unknown. Not part of the digest."""
    genres: Strings | None = None
    """Public words about each item, separated by "|", empty if unknown. Not part of the digest."""
    split: Labels | None = None
    """Split published with the data: 0 train, 1 valid, 2 test."""
    block: Labels | None = None
    """Time block of each row, counted from 0."""
    terms: str = ""
    """Terms of use in one or two sentences."""
    task: str = "ranking"
    """What is learnt from it: "ranking", or "next_item" (`sequences.next_item`)."""
    source: str = ""
    """Where the data came from: RESCIND_DATA, cache, publisher, a wheel, generated."""

    def __post_init__(self) -> None:
        rows = len(self.user)
        for name, dtype in _COLUMNS.items():
            column = getattr(self, name)
            if column is None:
                continue
            if len(column) != rows:
                raise DataError(f"dataset '{self.name}': '{name}' and 'user' must be equally long.")
            object.__setattr__(self, name, np.ascontiguousarray(column, dtype=dtype))
        for index, ids in (("user", self.users), ("item", self.items)):
            _check_range(self.name, index, getattr(self, index), len(ids))
        for about in ("titles", "genres"):
            known = getattr(self, about)
            if known is not None and len(known) != len(self.items):
                raise DataError(f"dataset '{self.name}': give one text per item in {about}, or ''.")

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}: {self.size['users']} users, {self.size['items']} items, "
            f"{len(self)} rows, from {self.source or 'memory'})"
        )

    @property
    def size(self) -> dict[str, int]:
        """Return the number of users, items and rows; places of users who left are not counted."""
        users = len(self.users) - len(self.left_places)
        items = len(self.items) - len(_unnamed(self.item, self.items, removed))
        return {"users": users, "items": items, "rows": len(self)}

    @cached_property
    def left_places(self) -> Ints:
        """Places of users who left: without rows, and without an id. The others keep theirs."""
        return _unnamed(self.user, self.users, left)

    @cached_property
    def digest(self) -> str:
        """Return `sha256:...` over rows and original ids; not titles, genres, terms, source."""
        state = hashlib.sha256()
        for name, dtype in _COLUMNS.items():
            _feed(state, name, getattr(self, name), dtype)
        for name, ids in (("users", self.users), ("items", self.items)):
            text = "\0".join(ids.tolist()).encode()
            state.update(f"{name}:{len(ids)}:{len(text)}\n".encode())
            state.update(text)
        return f"sha256:{state.hexdigest()}"

    @cached_property
    def repeats(self) -> int:
        """Return how many rows have a pair of another row; learning counts each pair once."""
        pair = self.user * len(self.items)
        pair += self.item
        pair.sort()
        return int((pair[1:] == pair[:-1]).sum())

    @property
    def has_time(self) -> bool:
        return bool(self.time.any())

    def select(self, mask: NDArray[Any]) -> Dataset:
        """Keep the rows of a mask, or of row numbers in their order; ids are not renumbered."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        kept: dict[str, Any] = {n: None if c is None else c[mask] for n, c in columns.items()}
        return replace(self, **kept)

    def compact(self, order: Literal["index", "appearance"] = "index") -> Dataset:
        """Drop users and items without rows and renumber the rest from 0; original ids are kept.

        `index` keeps the current order of ids. `appearance` orders ids by their first row, so the
        ids seen up to any row are a prefix of all ids.
        """
        user_old, user = _renumber(self.user, len(self.users), order)
        item_old, item = _renumber(self.item, len(self.items), order)
        users, items = self.users[user_old], self.items[item_old]
        about = {n: getattr(self, n) for n in ("titles", "genres")}
        kept: dict[str, Any] = {n: None if c is None else c[item_old] for n, c in about.items()}
        return replace(self, user=user, item=item, users=users, items=items, **kept)

    def on_devices(self, seed: int) -> Holdings:
        """Give each user their records, with the published split or a random 8:1:1 split.

        Users who left are no members.
        """
        import torch

        from rescind.core.holdings import Holdings
        from rescind.core.records import Records
        from rescind.data.split import random_split

        split = self.split if self.split is not None else random_split(self, seed)
        user, item, time = (torch.tensor(column) for column in (self.user, self.item, self.time))
        rating = None if self.rating is None else torch.tensor(self.rating)
        records = Records.of(user, item, time, rating)
        sizes = len(self.users), len(self.items)
        held = Holdings.of(records, torch.tensor(split), *sizes, self.task)
        held.members[torch.from_numpy(self.left_places)] = False
        return held

    def to_frame(self, kind: Literal["pandas", "polars", "arrow"] = "pandas") -> Any:
        """Return the rows as a frame with original ids; `rs.from_frame` reads it back."""
        import pyarrow as pa

        columns: dict[str, Any] = {"user": self.users[self.user], "item": self.items[self.item]}
        columns |= {"rating": self.rating, "time": self.time if self.has_time else None}
        columns |= {"split": self.split, "block": self.block}
        for name, texts in (("title", self.titles), ("genres", self.genres)):
            columns[name] = None if texts is None else texts[self.item]
        there = {n: column for n, column in columns.items() if column is not None}
        plain = {n: c.tolist() if c.dtype.kind == "U" else c for n, c in there.items()}
        table = pa.table({n: pa.array(column) for n, column in plain.items()})
        if kind not in ("pandas", "polars", "arrow"):
            raise DataError(f"kind is '{kind}'; allowed are pandas, polars and arrow.")
        if kind == "arrow":
            return table
        try:
            library = import_module(kind)
        except ImportError as error:
            raise DataError(f"{kind} is not installed. Add it, or use 'arrow'.") from error
        return table.to_pandas() if kind == "pandas" else library.from_arrow(table)

    def labels(self) -> names.Labels:
        """Return the original ids, titles and genres."""
        from rescind.core.labels import Labels

        return Labels.of(self)


def joined(old: Dataset, new: Dataset) -> Dataset:
    """Return the rows of both, sorted by user, time and item; new ids come after the old ones."""
    users, user = _numbered(old.users, new.users)
    items, item = _numbered(old.items, new.items)
    columns: dict[str, Any] = {
        "user": np.concatenate([old.user, user[new.user]]),
        "item": np.concatenate([old.item, item[new.item]]),
        "time": np.concatenate([old.time, new.time]),
    }
    for name in ("rating", "split"):
        both = (getattr(old, name), getattr(new, name))
        columns[name] = None if both[0] is None else np.concatenate(both)
    order = np.lexsort([columns["item"], columns["time"], columns["user"]])
    columns = {n: None if c is None else c[order] for n, c in columns.items()}
    about: dict[str, Any] = {
        n: _texts(getattr(old, n), getattr(new, n), item, len(items)) for n in ("titles", "genres")
    }
    return replace(old, users=users, items=items, **columns, **about)


def _numbered(old: Strings, new: Strings) -> tuple[Strings, Ints]:
    """Return all ids, and the place of each new one among them."""
    places = {one: n for n, one in enumerate(old.tolist())}
    numbers = [places.setdefault(one, len(places)) for one in new.tolist()]
    return np.asarray(list(places)), np.asarray(numbers, dtype=np.int64)


def _texts(old: Strings | None, new: Strings | None, item: Ints, size: int) -> Strings | None:
    """Return a text for each item: the old one, unless it is empty."""
    if old is None and new is None:
        return None
    out = [*([] if old is None else old.tolist())]
    out += [""] * (size - len(out))
    for place, text in zip(item.tolist(), [] if new is None else new.tolist(), strict=False):
        out[place] = out[place] or text
    return np.asarray(out)


@dataclass(frozen=True, eq=False)
class GraphDataset:
    """Nodes with features, labels and edges.

    edge_index: [2, E], both directions of every edge    features: [N, F], CSR or dense
    y: [N], -1 where unlabelled    masks: [N], or [N, S] for S published splits
    """

    name: str
    edge_index: Ints
    features: Any
    """scipy CSR matrix or dense float32 array."""
    y: Ints
    train_mask: Mask
    valid_mask: Mask
    test_mask: Mask
    num_classes: int
    terms: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        nodes = len(self.y)
        for part in ("features", "train_mask", "valid_mask", "test_mask"):
            size = getattr(self, part).shape[0]
            if size != nodes:
                raise DataError(f"graph '{self.name}': {part} has {size} rows for {nodes} nodes.")
        if self.edge_index.ndim != 2 or len(self.edge_index) != 2:
            raise DataError(
                f"graph '{self.name}': edge_index is {self.edge_index.shape}; it must be 2 x E."
            )
        _check_range(self.name, "node", self.edge_index.reshape(-1), nodes)
        if nodes and int(self.y.max()) >= self.num_classes:
            raise DataError(
                f"graph '{self.name}': label {self.y.max()}, but only {self.num_classes} classes."
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def size(self) -> dict[str, int]:
        """Return the number of nodes, edges (each direction counted), features and classes."""
        edges, features = self.edge_index.shape[1], self.features.shape[1]
        known = {"nodes": len(self), "edges": edges, "features": features}
        return known | {"classes": self.num_classes}

    @cached_property
    def digest(self) -> str:
        """Return `sha256:...` over edges, features, labels, masks and the number of classes."""
        state = hashlib.sha256()
        _feed(state, "edge_index", self.edge_index, "<i8")
        if isinstance(self.features, np.ndarray):
            _feed(state, "features", self.features, "<f4")
        else:
            for part, dtype in (("indptr", "<i8"), ("indices", "<i8"), ("data", "<f4")):
                _feed(state, part, getattr(self.features, part), dtype)
            _feed(state, "shape", self.features.shape, "<i8")
        _feed(state, "y", self.y, "<i8")
        for part in ("train_mask", "valid_mask", "test_mask"):
            _feed(state, part, getattr(self, part), "|b1")
        _feed(state, "num_classes", [self.num_classes], "<i8")
        return f"sha256:{state.hexdigest()}"

    def on_devices(self, seed: int) -> Holdings:
        """Give each client its part of the nodes, split inside each client and class."""
        from rescind.data.partition import subgraphs

        return subgraphs(self, seed=seed)

    def labels(self) -> names.Labels:
        """Return empty labels: nodes have only numbers."""
        from rescind.core.labels import Labels

        return Labels()


def _feed(state: Any, name: str, values: Any, dtype: str) -> None:
    """Add a column, unless None, to a hash: name, type and shape, then values, without a copy."""
    if values is not None:
        column = np.asarray(values, dtype=dtype)
        state.update(f"{name}:{column.dtype.str}:{column.shape}\n".encode())
        state.update(np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)


def _check_range(name: str, column: str, values: Ints, size: int) -> None:
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= size):
        raise DataError(
            f"dataset '{name}': {column} has values outside 0..{size - 1}. Indexes must lie there."
        )


def _unnamed(values: Ints, ids: Strings, stand_in: Callable[[int], str]) -> Ints:
    """Return the places without rows whose id was replaced by this."""
    empty = np.flatnonzero(np.bincount(values, minlength=len(ids)) == 0)
    return np.array([i for i in empty.tolist() if ids[i] == stand_in(i)], dtype=np.int64)


def _renumber(values: Ints, size: int, order: str) -> tuple[Ints, Ints]:
    """Return the old ids in their new order, and the renumbered values."""
    if order == "index":
        old = np.flatnonzero(np.bincount(values, minlength=size))
    elif order == "appearance":
        first = np.full(size, len(values), dtype=np.int64)
        np.minimum.at(first, values, np.arange(len(values)))
        old = np.argsort(first, kind="stable")[: int((first < len(values)).sum())]
    else:
        raise DataError(f"order is '{order}'; allowed are 'index' and 'appearance'.")
    new = np.full(size, -1, dtype=np.int64)
    new[old] = np.arange(len(old))
    return old, new[values]
