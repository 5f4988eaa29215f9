"""A round of a backbone with s = v . q + shift by compiled code: what goes in, what comes out.

What a client keeps to itself is packed into a row (`pieces` of the model say how), and a loss may
hold more than samples (`beside`).
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
from rescind.core.cohort import Cohort, Lot
from rescind.core.fast.local import LocalTraining
from rescind.core.loss_terms import LossTerms, Proximal, Replay
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.update import Sum


class Linear(Protocol):
    """A model whose score is linear in the item row."""

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Where a client's row lies in its private values, as (name, from, to) of each flattened:

        v; for a shift its bias; for one with a . p also a and p.
        """
        ...


@dataclass(frozen=True)
class Scores:
    """What clients say of the rows they touched, after their last step."""

    owner: Tensor
    """[n] sorted"""
    item: Tensor
    score: Tensor


def fits(method: LocalTraining, public: Params) -> bool:
    """Whether this method's steps are those that the kernel takes."""
    model: Any = method.model
    names = {name for name, _, _ in model.pieces()}
    steps = [set(step.rates) for step in method.client_steps(public)]
    return steps in ([{"item", *names}], [names, {"item"}]) and method.loss == "bce"


def client_sum(
    method: LocalTraining,
    public: Params,
    private: Private,
    cohort: Cohort,
    clock: Clock,
    beside: LossTerms | None = None,
    asked: bool = False,
) -> tuple[Sum, Private, Scores | None]:
    """One round of a cohort: (the sum, private values afterwards, what is said where asked)."""
    from rescind.core.fast import linear_kernel as linear_kernels
    from rescind.core.fast.ego_kernel import SHELVES

    beside = beside or LossTerms()
    model: Any = method.model
    table = public["item"].contiguous()
    items, dim = table.shape
    own = packed(model, private.values, table.dtype)
    total = torch.zeros_like(table)  # torch aligns rows with cache lines, numpy does not
    touched, sent = np.zeros(items, table.numpy().dtype), np.zeros(len(cohort), np.int64)
    kind = table.numpy().dtype.type
    steps = method.client_steps(public)
    rates = {name: rate for step in steps for name, rate in step.rates.items()}
    pace = np.concatenate([np.full(z - a, rates[n], kind) for n, a, z in model.pieces()])
    each = method.negatives + 1
    many = each * (max(1, int(cohort.train.count.max())) if len(cohort) else 1)
    size = method.batch_size or many
    batches = -(-many // size)
    waves = method.epochs * batches
    listed = 0 if beside.replay is None else beside.replay.item.shape[1]
    label, past, cross, echo, given, error = scratch(
        table.dtype, many, (waves + 1) * dim, waves, waves, items * waves, many + listed
    )
    label[::each] = 1
    sample, order, hashes = np.empty((3, many), np.int64)
    clocks = [clock.step(epoch) for epoch in range(method.epochs)]
    with uncollected():
        linear_kernels.linear_bce(
            dim,
            table.numpy().reshape(-1),
            own.numpy().reshape(-1),
            pace,
            *clients_of(cohort, table),
            *(np.array([unsigned(c.key(w)) for c in clocks]) for w in ("negatives", "order")),
            method.negatives,
            size,
            kind(method.temperature),
            kind(rates["item"]),
            method.reduce == "mean",
            len(steps),
            total.numpy().reshape(-1),
            touched,
            sent,
            np.zeros(items, np.int32),
            np.empty(SHELVES + 2, np.int64),
            label,
            past,
            cross,
            echo,
            given,
            sample,
            order,
            np.empty(many + listed, np.int64),
            error,
            np.empty(items, np.int64),
            hashes.view(np.uint64),
            np.empty(257, np.int64),
            _replay_args(beside.replay, table, clocks, batches),
            _proximal_args(beside.proximal, model, table, many + listed),
            said := _asked(cohort, table, many * method.epochs) if asked else None,
        )
    weight = cohort.weight.numpy()
    summed = Sum(
        totals={"item": total},
        weight=float(weight.sum(dtype=np.float64)),
        clients=int(np.count_nonzero(weight)),
        touched={"item": torch.from_numpy(touched)},
        up=int(sent.sum()) * (dim * table.element_size() + 4),
    )
    return summed, private.with_(**unpacked(model, own, private.values)), _said(said)


def packed(model: Linear, values: Params, dtype: torch.dtype) -> Tensor:
    """A copy of what the kernel reads and moves of each client, one row each. [C, width]"""
    parts = [values[name].flatten(1) if values[name].dim() > 1 else values[name].unsqueeze(1)
             for name, _, _ in model.pieces()]  # fmt: skip
    cut = [part[:, a:z] for part, (_, a, z) in zip(parts, model.pieces(), strict=True)]
    return torch.cat(cut, 1).to(dtype)


def unpacked(model: Linear, rows: Tensor, like: Params) -> dict[str, Tensor]:
    """The private values that rows were packed from, in their own shapes."""
    found: dict[str, list[tuple[int, Tensor]]] = {}
    at = 0
    for name, first, last in model.pieces():
        found.setdefault(name, []).append((first, rows[:, at : at + last - first]))
        at += last - first
    whole = {n: [part for _, part in sorted(p, key=lambda one: one[0])] for n, p in found.items()}
    return {n: torch.cat(parts, 1).view(like[n].shape) for n, parts in whole.items()}


def _replay_args(
    wanted: Replay | None, table: Tensor, clocks: list[Clock], batches: int
) -> tuple[Any, ...] | None:
    """What the kernel takes to rehearse."""
    if wanted is None:
        return None
    kind, length = table.numpy().dtype.type, wanted.item.shape[1]
    keys = [unsigned(c.batch(wave).key("replay")) for c in clocks for wave in range(batches)]
    return (
        wanted.item.numpy().reshape(-1),
        wanted.label.to(table.dtype).numpy().reshape(-1),
        length,
        np.array(keys),
        kind(wanted.factor),
        wanted.mean,
        -1.0 if wanted.shift_scale is None else float(wanted.shift_scale),
        np.empty(len(table), kind),
        np.arange(len(table), dtype=np.int32),
        np.empty(2 * length, np.int64),
    )


def _proximal_args(
    wanted: Proximal | None, model: Any, table: Tensor, many: int
) -> tuple[Any, ...] | None:
    """What the kernel takes to stay near old values."""
    if wanted is None:
        return None
    kind, gap = table.numpy().dtype.type, torch.zeros_like(table)
    gap[: len(wanted.item)] = table[: len(wanted.item)] - wanted.item
    then = packed(model, wanted.own, table.dtype)
    return (
        gap.numpy().reshape(-1),
        len(wanted.item),
        then.numpy().reshape(-1),
        wanted.known.numpy(),
        kind(wanted.strength),
        np.zeros(len(table), kind),
        np.empty(many, kind),
        np.empty(then.shape[1], kind),
    )


def _asked(cohort: Cohort, table: Tensor, many: int) -> tuple[Any, Any, Any]:
    """Room for what clients say of the rows they touched."""
    room = len(cohort) * min(many, len(table))
    count, item = np.zeros(len(cohort), np.int64), np.empty(room, np.int64)
    return count, item, np.empty(room, table.numpy().dtype)


def _said(given: tuple[Any, Any, Any] | None) -> Scores | None:
    if given is None:
        return None
    count, item, score = (torch.from_numpy(part) for part in given)
    many = int(count.sum())
    return Scores(jagged.owners_of(count), item[:many], score[:many])


# -- what the other kernel needs, too ------------------------------------------------------------


def clients_of(cohort: Cohort, table: Tensor) -> list[Any]:
    """The clients and their items in numpy."""
    train = _flat(cohort.train)
    own = train if cohort.own is cohort.train else _flat(cohort.own)
    return [cohort.ids.numpy(), cohort.weight.to(table.dtype).numpy(), *train, *own]


def _flat(lot: Lot) -> tuple[Any, Any, Any]:
    """A lot as (items, first, count) in numpy."""
    return lot.item.numpy(), lot.first.numpy(), lot.count.numpy()


def scratch(dtype: torch.dtype, *sizes: int) -> list[Any]:
    """Arrays of zeros of these sizes out of one piece, each on a cache line of its own."""
    rooms = [-(-size // 16) * 16 for size in sizes]  # sixteen are at least 64 bytes
    piece = torch.zeros(sum(rooms), dtype=dtype).numpy()
    ends = accumulate(rooms)
    return [piece[end - room :][:n] for n, room, end in zip(sizes, rooms, ends, strict=True)]


def unsigned(key: int) -> np.uint64:
    """A key as the kernels hash from it."""
    return np.uint64(key % 2**64)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection: compiling makes objects by the million and little garbage."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
