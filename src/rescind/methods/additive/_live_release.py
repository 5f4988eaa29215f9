"""A release without torch: solve, temper and cut the weights, write the file, make lists of it.

The weights are those of `Gram(release="neighbours")` on the same sum. The file (`to_bytes`) is what
people download and what their browser scores with:

    8 bytes       "rescind1"
    u32           length of the head
    head          JSON: format, items (original ids), entries, popular, wide
    u32 [I + 1]   where the row of each item begins; the last is the number of entries
    u16 or u32    [entries] the scored item, by place; u32 if `wide`
    f32 [entries] its weight: what owning the row's item adds to the score
    u32 [popular] items by how many people lend them, the most first

Numbers are little-endian, and each array begins at a multiple of 4 bytes. It depends on the sum and
the settings only, so whoever may add up the loans gets the same digest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _live_kernels as kernels
from rescind.methods.additive._kernels import unfold
from rescind.methods.additive._live_sum import Items, Totals
from rescind.methods.additive._solving import ROWS, TUNED, Floats, Solving

MAGIC = b"rescind1"
FEWEST = 5
"""Loans below which a list shows what is popular: fewer say too little, and a list of one item is a
probe of that item's weights."""
REASONS = 3
LARGEST = 1 << 30
"""Bytes of a release at most, unpacked: 20,000 items with 200 neighbours have 25 MB."""
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Arrays = tuple[Ints, Ints, Singles, Ints]


@dataclass(frozen=True)
class Form:
    """How a release is made of a sum."""

    solving: Solving = field(default_factory=lambda: Solving(**TUNED))
    neighbours: int = 200
    """Weights kept for each item, the largest."""
    min_count: int = 5
    """Items that fewer people lend are hidden: a rare item names its owners."""
    rounding: float = 0.0
    """Weights are rounded to multiples of so many times their mean, and those that become 0 are
    left out; 0: not rounded. What few people change then rarely shows."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Form:
        form = cls(**{**facts, "solving": Solving(**facts["solving"])})
        form.solving.check_solving()
        if form.neighbours < 1 or form.min_count < 0 or not form.rounding >= 0:
            raise ConfigError("neighbours, min_count or rounding of a release are out of range.")
        return form


@dataclass(frozen=True)
class Reasoned:
    """One line of a list."""

    item: int
    because: tuple[tuple[int, float], ...] = ()
    """Owned items that add most to its score, with their share; empty: it is only popular."""
    without: dict[int, int] = field(default_factory=dict)
    """The rank that it would have without each of these items."""


@dataclass(frozen=True)
class Weights:
    """The largest weights of each item, by the item that one owns."""

    first: NDArray[np.int64]
    """[I + 1] where the row of each item begins."""
    target: NDArray[np.int32]
    weight: Singles
    popular: NDArray[np.int32]
    """Items that are not hidden, the one most lent first."""

    @property
    def items(self) -> int:
        return len(self.first) - 1

    def scores(self, own: Items) -> Singles:
        """Compute x B, x the owned items. [I]"""
        score = np.zeros(self.items, np.float32)
        kernels.add_rows(self.first, self.target, self.weight, own, score)
        return score

    def recommend(self, own: Items, k: int = 20) -> list[Reasoned]:
        """Return the k best items that are not owned, with their reasons. own: sorted"""
        if len(own) < FEWEST:
            return popular(self.popular, own, k)
        found = self.reasoned(own, k)
        return filled(listed(own, *found), self.popular, own, k)

    def reasoned(self, own: Items, k: int) -> Arrays:
        """Return a list as arrays: items [k], and their reasons, shares and ranks [k, REASONS]."""
        rows = (self.first, self.target, self.weight)
        found: Arrays = kernels.reasoned(*rows, own, k, REASONS)
        return found

    def to_bytes(self, ids: Sequence[str]) -> bytes:
        """Return the release file, unpacked. ids: original ids of the items"""
        wide = self.items > 1 << 16
        head = {
            "entries": len(self.weight),
            "format": 1,
            "items": list(ids),
            "popular": len(self.popular),
            "wide": wide,
        }
        text = json.dumps(head, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(len(MAGIC) + 4 + len(text)) % 4)
        arrays = (
            self.first.astype("<u4"),
            self.target.astype("<u4" if wide else "<u2"),
            self.weight.astype("<f4"),
            self.popular.astype("<u4"),
        )
        bodies = (array.tobytes() + bytes(-array.nbytes % 4) for array in arrays)
        return b"".join((MAGIC, struct.pack("<I", len(text)), text, *bodies))


def read(data: bytes) -> tuple[Weights, list[str]]:
    """Read a release file; return weights and original ids. Raise `DataError` if it is not one."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as one")
        (length,) = struct.unpack_from("<I", data, len(MAGIC))
        at = len(MAGIC) + 4 + length
        head = json.loads(data[len(MAGIC) + 4 : at])
        ids, arrays = [str(each) for each in head["items"]], []
        kinds = ("<u4", "<u4" if head["wide"] else "<u2", "<f4", "<u4")
        counts = (len(ids) + 1, head["entries"], head["entries"], head["popular"])
        for kind, count in zip(kinds, counts, strict=True):
            array = np.frombuffer(data, kind, count, at)
            arrays.append(array)
            at += array.nbytes + (-array.nbytes % 4)
        first, target, weight, shown = arrays
        inside = all(each.max(initial=0) < len(ids) for each in (target, shown))
        if at != len(data) or not inside or first[-1] != len(weight) or (np.diff(first) < 0).any():
            raise ValueError("its parts do not fit together")
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise DataError(f"this is not a release file: {error}. Make the release again.") from None
    weights = Weights(
        first.astype(np.int64),
        target.astype(np.int32),
        weight.astype(np.float32),
        shown.astype(np.int32),
    )
    return weights, ids


def file_digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def packed(data: bytes) -> bytes:
    """Compress a release file: the same bytes for the same file."""
    return gzip.compress(data, compresslevel=1, mtime=0)


def unpacked(data: bytes) -> bytes:
    """Decompress a release file; raise `DataError` if it is not one or far too large."""
    import zlib

    try:
        stream = zlib.decompressobj(wbits=31)
        out = stream.decompress(data, LARGEST)
    except zlib.error as error:
        raise DataError(f"this is not a compressed release: {error}.") from None
    if not stream.eof:
        raise DataError(f"this release is cut, or has more than {LARGEST:,} bytes.")
    return out


def release_of(sums: Totals, form: Form) -> Weights:
    return cut(sums.inverse(form.solving.ridges), sums.owners, form)


def cut(inverse: Floats, owners: NDArray[np.int64], form: Form) -> Weights:
    """Keep the largest weights of each scored item. inverse: lower half [I (I + 1) / 2], or [I, I]

    B_ij = -C_ij / C_jj, times C_ii^own C_jj^shown, then raised to a power (`Temper`). The factor of
    j and the power keep the order within j, so they are left for what is kept.
    """
    items, temper = len(owners), form.solving.temper
    full = inverse
    if full.ndim == 1:
        full = np.empty((items, items))
        unfold(inverse, full)
    rare = owners < form.min_count
    diagonal = full.diagonal()
    own = np.where(rare, 0.0, diagonal**temper.own).astype(np.float32)
    shown = (diagonal**temper.shown).astype(np.float32)
    count, kept = min(form.neighbours, items), []
    for begin in range(0, items, ROWS):
        rows = slice(begin, min(begin + ROWS, items))
        here = np.arange(rows.start, rows.stop)
        part = (full[rows] * (-1 / diagonal[rows, None])).astype(np.float32) * own
        part[here - begin, here] = 0.0
        part[rare[rows]] = 0.0
        place = np.empty((len(here), count), np.int64)
        kernels.largest_places(np.abs(part), count, place)
        value = np.take_along_axis(part, place, 1)
        if temper.shown:
            value *= shown[rows, None]
        if temper.sharp != 1:
            # In float64: the single power of NumPy has other last bits on other processors.
            power = np.abs(value, dtype=np.float64) ** temper.sharp
            value = np.copysign(power.astype(np.float32), value)
        scored = np.broadcast_to(here[:, None], place.shape)
        some = value != 0
        kept.append((place[some], scored[some], value[some]))
    source, target, value = (np.concatenate(each) for each in zip(*kept, strict=True))
    if form.rounding and len(value):
        value = _rounded(value, form.rounding)
        source, target, value = (each[value != 0] for each in (source, target, value))
    order = np.argsort(source.astype(np.uint16 if items <= 1 << 16 else np.uint32), kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=items))])
    return Weights(
        first, target[order].astype(np.int32), value[order], most_lent(owners, form.min_count)
    )


def _rounded(value: Singles, times: float) -> Singles:
    """Round weights to multiples of `times` their mean size.

    The step has six digits: the order in which a mean is added up does not change it.
    """
    step = float(f"{times * np.abs(value).mean(dtype=np.float64):.6g}")
    return (np.rint(value / step) * step).astype(np.float32)


def most_lent(owners: NDArray[np.int64], min_count: int) -> NDArray[np.int32]:
    order = np.argsort(-owners, kind="stable")
    return order[owners[order] >= max(min_count, 1)].astype(np.int32)


def popular(order: NDArray[np.int32], own: Items, k: int) -> list[Reasoned]:
    head = order[: k + len(own)]
    return [Reasoned(int(item)) for item in head[~np.isin(head, own)][:k]]


def filled(found: list[Reasoned], order: NDArray[np.int32], own: Items, k: int) -> list[Reasoned]:
    if len(found) == k:
        return found
    shown = np.union1d(own, np.array([line.item for line in found], np.int32))
    return found + popular(order, shown, k - len(found))


def chosen_reasons(parts: Singles) -> tuple[NDArray[np.int64], Singles]:
    """Return which owned items add most to each listed one, and their shares. [k, REASONS]"""
    chosen = np.empty((parts.shape[1], REASONS), np.int64)
    share = np.empty((parts.shape[1], REASONS), np.float32)
    kernels.main_reasons(parts, chosen, share)
    return chosen, share


def listed(
    own: Items,
    best: NDArray[np.int64],
    chosen: NDArray[np.int64],
    share: Singles,
    rank: NDArray[np.int64],
) -> list[Reasoned]:
    names = own.tolist()
    return [
        Reasoned(
            item,
            tuple((names[n], s) for n, s in zip(mine, shares, strict=True) if n >= 0),
            {names[n]: r for n, r in zip(mine, ranks, strict=True) if n >= 0},
        )
        for item, mine, shares, ranks in zip(
            best.tolist(), chosen.tolist(), share.tolist(), rank.tolist(), strict=True
        )
    ]
