"""Inputs and outputs of the compiled round for models with s = v . q + shift.

Private values of a client are packed into one row, as `pieces` of the model says. The loss may
have extra terms (`LossTerms`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.loss_terms import LossTerms, Proximal, Replay
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.update import Sum
from rescind.errors import DataError

SORT_BUCKETS = 8192
"""Most buckets when samples are sorted by hash; a power of two."""


class Linear(Protocol):
    """A model whose score is linear in the item row."""

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Return the parts of a client's packed row as (name, from, to) of flat private values.

        v, then the bias if there is a shift, then a and p if the shift contains a . p.
        """
        ...


@dataclass(frozen=True)
class Scores:
    """Scores of the rows that clients touched, after their last local step."""

    owner: Tensor
    """[n] sorted"""
    item: Tensor
    score: Tensor


def fits(method: Any, public: Params) -> bool:
    """Return whether the kernel computes the steps of this method."""
    model: Any = method.model
    names = {name for name, _, _ in model.pieces()}
    steps = [set(step.rates) for step in method.client_steps(public)]
    return steps in ([{"item", *names}], [names, {"item"}]) and method.loss == "bce"


def client_sum(
    method: Any,
    public: Params,
    private: Private,
    cohort: Cohort,
    clock: Clock,
    terms: LossTerms | None = None,
    asked: bool = False,
) -> tuple[Sum, Private, Scores | None]:
    """Run one local round. Return (sum, new private values, scores of touched rows if asked)."""
    from rescind.core.fast import linear_kernel
    from rescind.core.fast.ego_kernel import BUCKETS

    terms = terms or LossTerms()
    model: Any = method.model
    table = public["item"].contiguous()
    items, dim = table.shape
    own = packed(model, private.values, table.dtype)
    total = torch.zeros_like(table)  # torch aligns rows with cache lines, numpy does not
    kind = table.numpy().dtype.type
    out = total.numpy().reshape(-1), np.zeros(items, kind), np.zeros(len(cohort), np.int64)
    steps = method.client_steps(public)
    rates = {name: rate for step in steps for name, rate in step.rates.items()}
    pace = np.concatenate([np.full(z - a, rates[n], kind) for n, a, z in model.pieces()])
    each = method.negatives + 1
    samples = each * (max(1, int(cohort.train.count.max())) if len(cohort) else 1)
    if samples > linear_kernel.MOST_SAMPLES:
        raise DataError(f"{samples:,} samples of a client in an epoch: use fewer negatives.")
    size = method.batch_size or samples
    batches = -(-samples // size)
    waves = method.epochs * batches
    longest = samples + (0 if terms.replay is None else terms.replay.item.shape[1])
    numbers = scratch(table.dtype, samples, (waves + 1) * dim, waves, waves, items * waves, longest)
    numbers[0][::each] = 1  # labels
    places = [np.zeros(items, np.int32), np.empty(BUCKETS + 2, np.int64)]
    places += [np.empty(n, np.int32) for n in (samples, samples, longest, items)]
    places += [np.empty(samples, np.uint64), np.empty(samples, np.uint64)]
    places += [np.empty(SORT_BUCKETS + 1, np.int32), np.empty(items, np.int32)]
    clocks = [clock.step(epoch) for epoch in range(method.epochs)]
    keys = (np.array([unsigned(c.key(w)) for c in clocks]) for w in ("negatives", "order"))
    scores = _score_arrays(cohort, table, samples * method.epochs) if asked else None
    settings = (method.negatives, size, kind(method.temperature), kind(rates["item"]))
    with uncollected():
        linear_kernel.linear_bce(
            dim,
            table.numpy().reshape(-1),
            own.numpy().reshape(-1),
            pace,
            clients_of(cohort, table),
            tuple(keys),
            (*settings, method.reduce == "mean", len(steps)),
            out,
            tuple(numbers),
            tuple(places),
            _replay_args(terms.replay, table, clocks, batches),
            _proximal_args(terms.proximal, model, table, longest),
            scores,
        )
    after = private.with_(**unpacked(model, own, private.values))
    return sum_of(cohort, total, *out[1:]), after, _scores(scores)


def packed(model: Linear, values: Params, dtype: torch.dtype) -> Tensor:
    """Copy the private values that the kernel uses, one row per client. [C, width]"""
    cut = [values[n].unsqueeze(-1).flatten(1)[:, a:z] for n, a, z in model.pieces()]
    return torch.cat(cut, 1).to(dtype)


def unpacked(model: Linear, rows: Tensor, like: Params) -> dict[str, Tensor]:
    """Return the private values of packed rows, in their original shapes."""
    found: dict[str, list[tuple[int, Tensor]]] = {}
    at = 0
    for name, first, last in model.pieces():
        found.setdefault(name, []).append((first, rows[:, at : at + last - first]))
        at += last - first
    whole = {n: [part for _, part in sorted(p, key=lambda one: one[0])] for n, p in found.items()}
    joined = {n: p[0] if len(p) == 1 else torch.cat(p, 1) for n, p in whole.items()}
    return {n: rows.reshape(like[n].shape) for n, rows in joined.items()}


def _replay_args(
    term: Replay | None, table: Tensor, clocks: list[Clock], batches: int
) -> tuple[Any, ...] | None:
    if term is None:
        return None
    kind, length = table.numpy().dtype.type, term.item.shape[1]
    keys = [unsigned(c.batch(wave).key("replay")) for c in clocks for wave in range(batches)]
    return (
        term.item.numpy().reshape(-1),
        term.label.to(table.dtype).numpy().reshape(-1),
        length,
        np.array(keys),
        kind(term.factor),
        term.mean,
        -1.0 if term.shift_scale is None else float(term.shift_scale),
        np.empty(len(table), kind),
        np.arange(len(table), dtype=np.int32),
        np.empty(2 * length, np.int64),
    )


def _proximal_args(term: Proximal | None, model: Any, table: Tensor, n: int) -> Any:
    if term is None:
        return None
    kind, gap = table.numpy().dtype.type, torch.zeros_like(table)
    gap[: len(term.item)] = table[: len(term.item)] - term.item
    old = packed(model, term.own, table.dtype)
    return (
        gap.numpy().reshape(-1),
        len(term.item),
        old.numpy().reshape(-1),
        term.known.numpy(),
        kind(term.strength),
        np.zeros(len(table), kind),
        np.empty(n, kind),
        np.empty(old.shape[1], kind),
    )


def _score_arrays(cohort: Cohort, table: Tensor, samples: int) -> tuple[Any, Any, Any]:
    size = len(cohort) * min(samples, len(table))
    count, item = np.zeros(len(cohort), np.int64), np.empty(size, np.int64)
    return count, item, np.empty(size, table.numpy().dtype)


def _scores(arrays: tuple[Any, Any, Any] | None) -> Scores | None:
    if arrays is None:
        return None
    count, item, score = (torch.from_numpy(part) for part in arrays)
    n = int(count.sum())
    return Scores(jagged.owners_of(count), item[:n], score[:n])


# -- shared with the other kernel ----------------------------------------------------------------


def clients_of(cohort: Cohort, table: Tensor) -> tuple[Any, ...]:
    """Return ids, weights, and (items, first, count) of the items to train on and of all items."""
    lots = [t for lot in (cohort.train, cohort.own) for t in (lot.item, lot.first, lot.count)]
    return tuple(t.numpy() for t in (cohort.ids, cohort.weight.to(table.dtype), *lots))


def sum_of(cohort: Cohort, total: Tensor, touched: Any, sent: Any) -> Sum:
    """Return what a kernel wrote as a sum."""
    weight = cohort.weight.numpy()
    return Sum(
        totals={"item": total},
        weight=float(weight.sum(dtype=np.float64)),
        clients=int(np.count_nonzero(weight)),
        touched={"item": torch.from_numpy(touched)},
        up=int(sent.sum()) * (total.shape[1] * total.element_size() + 4),
    )


def scratch(dtype: torch.dtype, *sizes: int) -> list[Any]:
    """Allocate zero arrays of these sizes in one block, each aligned to a cache line."""
    padded = [-(-size // 16) * 16 for size in sizes]  # 16 numbers are at least 64 bytes
    block = torch.zeros(sum(padded), dtype=dtype).numpy()
    ends = accumulate(padded)
    return [block[end - size :][:n] for n, size, end in zip(sizes, padded, ends, strict=True)]


def unsigned(key: int) -> np.uint64:
    """Convert a key to the unsigned integer that the kernels use."""
    return np.uint64(key % 2**64)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: compiling makes millions of objects and little garbage."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
