"""Checks that refuse invalid updates, with a reason, and keep the others.

`gate` checks single updates, `gate_sum` a sum from a remote silo, and `sound` decides from a fused
sum whether the single updates must be checked.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from rescind.core.params import Params
from rescind.core.state import REFERENCE
from rescind.core.update import Rows, Sum, Update

# Largest norms of updates seen in training: 120 (ego-LightGCN, ML-1M), 341 (FedMF, ML-100K).
HEALTHY = 1000.0
HEAVIEST = 1e6
"""The largest allowed weight of a client: no user has a million records."""

KIND, SHAPE, NAME = "wrong kind of number", "wrong shape", "unknown name"
RANGE, TWICE = "row out of range", "row sent twice"
WEIGHT, INFINITE = "weight not allowed", "not finite"


def gate(
    update: Update,
    limit: float,
    public: Params | None = None,
    weight: Tensor | None = None,
    also: Collection[str] = (),
) -> tuple[Update, Tensor, dict[str, int]]:
    """Refuse updates that are not finite, have too large a norm, or do not match `public`.

    Return (the update without them, which clients are kept [C] bool, number refused by reason).
    The first reason that applies counts. A flaw of a whole entry refuses all its senders.

    public: the broadcast values; names, shapes and types must match
    weight: [C] the weight each client asks for    also: names allowed in addition to `public`
    """
    tensors = [value_of(entry) for entry in update.entries.values()]
    device = next((t.device for t in (*tensors, weight) if t is not None), None)
    kept = torch.ones(update.clients, dtype=torch.bool, device=device)
    refused: dict[str, int] = {}

    def refuse(reason: str, bad: Tensor) -> None:
        count = int((kept & bad).sum())
        if count:
            refused[reason] = refused.get(reason, 0) + count
            kept.logical_and_(~bad)

    entries: dict[str, Rows | Tensor] = {}
    for name, entry in update.entries.items():
        like = None if public is None else public.get(name)
        flaw = _flaw(entry, update.clients, like)
        if public is not None and not _known(name, public, also):
            flaw = NAME
        if flaw is not None:
            refuse(flaw, _senders(entry, kept))
            continue
        if isinstance(entry, Rows):
            for reason, bad in _row_flaws(entry, update.clients):
                refuse(reason, bad)
        entries[name] = _cast(entry, like)
    if weight is not None:
        refuse(WEIGHT, ~allowed(weight))
    left = Update(update.clients, entries).only(kept) if refused else Update(len(kept), entries)
    norms = left.norms().to(kept.device)
    refuse(INFINITE, _holds_non_finite(left, norms))
    refuse(f"norm above {limit:g}", ~(norms <= limit))
    return (left.only(kept) if refused else left), kept, refused


def allowed(weight: Tensor) -> Tensor:
    """Return which weights are from 0 to `HEAVIEST`. [C] bool"""
    return (weight >= 0) & (weight <= HEAVIEST)


def chosen(update: Update, kept: Tensor) -> Update:
    """Return the update of the kept clients only, renumbered. kept: [C] bool"""
    if bool(kept.all()):
        return update
    place = torch.cumsum(kept, 0) - 1
    entries = {
        name: replace(e, owner=place[e.owner]) if isinstance(e, Rows) else e[kept]
        for name, e in update.only(kept).entries.items()
    }
    return Update(int(kept.sum()), entries)


def sound(total: Sum, public: Params, limit: float, weight: Tensor) -> bool:
    """Return whether a fused sum shows no sign of a bad update; if False, check single updates.

    Its norm must stay below the limit of one update: only updates that cancel out could hide. For
    very many clients it may reach the sum of healthy updates: a bad update hidden there changes
    the mean by no more than a healthy update changes that of a small cohort.
    """
    if not bool(allowed(weight).all()):
        return False
    ceiling = limit * max(1.0, total.weight / max(total.clients, 1))
    ceiling = max(ceiling, HEALTHY * total.weight)
    for name, value in total.totals.items():
        if value.is_floating_point():
            norm = float(torch.linalg.vector_norm(value))
            if not math.isfinite(norm) or (name in public and norm > ceiling):
                return False
    return True


def gate_sum(total: Sum, public: Params, limit: float, also: Collection[str] = ()) -> Sum:
    """Return a remote sum if it is valid, else an empty sum that counts its clients as refused."""
    reason = _sum_flaw(total, public, limit, also)
    if reason is None:
        return total
    count = total.clients if 0 < total.clients <= HEAVIEST else 1
    return Sum({}, 0.0, 0, refused={reason: count})


def _sum_flaw(total: Sum, public: Params, limit: float, also: Collection[str]) -> str | None:
    for name, value in total.totals.items():
        like = public.get(name)
        if not _known(name, public, also):
            return NAME
        if like is not None and value.shape != like.shape:
            return SHAPE
        if _wrong_kind(value, like):
            return KIND
    for name, value in total.touched.items():
        if name not in total.totals or value.shape != total.totals[name].shape[:1]:
            return SHAPE
        if not bool(((value >= 0) & (value <= total.weight * (1 + 1e-6))).all()):
            return WEIGHT
    if total.who.dim() != 1 or len(total.who) not in (0, total.clients):
        return SHAPE
    if len(torch.unique(total.who)) < len(total.who):
        return TWICE
    if total.clients < 0 or not 0 <= total.weight <= HEAVIEST * total.clients:
        return WEIGHT
    if not all(bool(torch.isfinite(value).all()) for value in total.totals.values()):
        return INFINITE
    norm = math.sqrt(sum(float(v.double().square().sum()) for v in total.totals.values()))
    return None if norm <= limit * total.weight else f"norm above {limit:g}"


def value_of(entry: Rows | Tensor) -> Tensor:
    return entry.value if isinstance(entry, Rows) else entry


def _known(name: str, public: Params, also: Collection[str]) -> bool:
    return name in also or (name in public and not name.startswith(REFERENCE))


def _wrong_kind(value: Tensor, like: Tensor | None) -> bool:
    if value.is_complex() or value.dtype == torch.bool:
        return True
    return like is not None and value.is_floating_point() != like.is_floating_point()


def _is_integer(value: Tensor) -> bool:
    return value.dtype in (torch.int64, torch.int32)


def _flaw(entry: Rows | Tensor, clients: int, like: Tensor | None) -> str | None:
    value = value_of(entry)
    if isinstance(entry, Rows):
        if not (_is_integer(entry.owner) and _is_integer(entry.index)):
            return KIND
        shapes = {tuple(entry.owner.shape), tuple(entry.index.shape), tuple(value.shape[:1])}
        if shapes != {(entry.owner.numel(),)} or not _inside(entry.owner, clients):
            return SHAPE
        if like is not None and (entry.size, *value.shape[1:]) != tuple(like.shape):
            return SHAPE
    elif value.shape[:1] != (clients,) or (like is not None and value.shape[1:] != like.shape):
        return SHAPE
    return KIND if _wrong_kind(value, like) else None


def _inside(index: Tensor, size: int) -> bool:
    return not len(index) or (int(index.min()) >= 0 and int(index.max()) < size)


def _senders(entry: Rows | Tensor, like: Tensor) -> Tensor:
    """Return which clients send an entry; all if it does not list valid owners. [C] bool"""
    owner = entry.owner if isinstance(entry, Rows) else None
    if owner is None or owner.dim() != 1 or not _is_integer(owner) or not _inside(owner, len(like)):
        return torch.ones_like(like)
    return _mask(owner, len(like))


def _mask(owner: Tensor, clients: int) -> Tensor:
    mask = torch.zeros(clients, dtype=torch.bool, device=owner.device)
    mask[owner.long()] = True
    return mask


def _row_flaws(rows: Rows, clients: int) -> list[tuple[str, Tensor]]:
    """Return which clients send rows out of range, or a row twice (its norm looks too small)."""
    flaws = []
    owner, index = rows.owner, rows.index
    if not _inside(index, rows.size):
        inside = (index >= 0) & (index < rows.size)
        flaws.append((RANGE, _mask(owner[~inside], clients)))
        owner, index = owner[inside], index[inside]
    key = owner.long() * rows.size + index
    if len(key) > 1 and not bool((key[1:] > key[:-1]).all()):
        ordered, order = torch.sort(key)
        repeated = order[1:][ordered[1:] == ordered[:-1]]
        flaws.append((TWICE, _mask(owner[repeated], clients)))
    return flaws


def _cast(entry: Rows | Tensor, like: Tensor | None) -> Rows | Tensor:
    """Convert floating-point values to the precision of the broadcast."""
    value = value_of(entry)
    if like is None or value.dtype == like.dtype or not like.is_floating_point():
        return entry
    cast = value.to(like.dtype)
    return replace(entry, value=cast) if isinstance(entry, Rows) else cast


def _holds_non_finite(update: Update, norms: Tensor) -> Tensor:
    """Return which clients send a NaN or an infinity (a norm can overflow without). [C] bool"""
    bad = torch.zeros(update.clients, dtype=torch.bool, device=norms.device)
    if bool(torch.isfinite(norms).all()):
        return bad
    for entry in update.entries.values():
        finite = torch.isfinite(value_of(entry))
        each = ~(finite.flatten(1).all(1) if finite.dim() > 1 else finite)
        bad |= _mask(entry.owner[each], update.clients) if isinstance(entry, Rows) else each
    return bad
