"""When a round may take the compiled form, and how its result becomes a `Sum`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rescind import flat
from rescind.clock import Clock
from rescind.cohort import Cohort, Lot
from rescind.params import Params
from rescind.state import Private
from rescind.update import Sum

if TYPE_CHECKING:
    from rescind.method import Method

VERBS = ("client_plan", "client_loss", "client_steps", "client_train")
"""A method that overrides one of these computes something else than the kernels do."""


@lru_cache(maxsize=1)
def compiled() -> bool:
    """Whether numba is installed; without it everything runs in the readable form."""
    return find_spec("numba") is not None


def fits(method: Method, base: type, public: Params) -> bool:
    """Whether a kernel computes exactly what this method would."""
    kernel = getattr(method.model, "kernel", "")
    plain = method.optimiser == "sgd" and not method.decay and not method.weight_decay
    shape = {
        "ego": method.loss == "bpr" and method.epochs == 1 and method.batch_size is None,
        "mf": method.loss == "bce",
    }
    same = all(getattr(type(method), verb) is getattr(base, verb) for verb in VERBS)
    if not (plain and same and shape.get(kernel, False)):
        return False
    if all(value.device.type == "cpu" for value in public.values()):
        return compiled()
    return kernel == "ego" and method.aggregate != "rows"  # flat.py counts no distinct rows


def client_sum(
    method: Method, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """One round of a cohort by the kernel of its model."""
    if public["item"].device.type != "cpu":
        return flat.ego_bpr(method, public, private, cohort, clock)
    table = public["item"].contiguous()
    users = private["user"].clone().contiguous()
    total = torch.zeros_like(table)  # torch aligns rows with cache lines, numpy does not
    filled = total.numpy().reshape(-1)
    touched = np.zeros(len(table), filled.dtype)
    sent = np.zeros(len(cohort), np.int64)
    run = _ego_bpr if getattr(method.model, "kernel", "") == "ego" else _mf_bce
    with _uncollected():
        run(method, cohort, clock, table, users, [filled, touched, sent])
    weight = cohort.weight.numpy()
    return Sum(
        totals={"item": total},
        weight=float(weight.sum(dtype=np.float64)),
        clients=int(np.count_nonzero(weight)),
        touched={"item": torch.from_numpy(touched)},
        up=int(sent.sum()) * (table.shape[1] * table.element_size() + 4),
    ), private.with_(user=users)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: compiling makes objects by the million and little garbage."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _common(method: Method, cohort: Cohort, table: Tensor) -> tuple[list[Any], list[Any]]:
    """What both kernels take: (the clients and their items, the settings)."""
    kind = table.numpy().dtype.type
    weight = cohort.weight.to(table.dtype).numpy()
    train = _flat(cohort.train)
    own = train if cohort.own is cohort.train else _flat(cohort.own)
    clients = [cohort.ids.numpy(), weight, *train, *own]
    rate = method.rate * (len(table) if method.rate_per_item else 1)
    numbers = [kind(method.temperature), kind(rate), kind(method.private_rate)]
    return clients, [*numbers, method.reduce == "mean"]


def _ego_bpr(
    method: Method, cohort: Cohort, clock: Clock, table: Tensor, users: Tensor, out: list[Any]
) -> None:
    """Call `kernels.ego_bpr`; out: the arrays it fills."""
    from rescind import kernels

    items, dim = table.shape
    clients, settings = _common(method, cohort, table)
    n, many = len(cohort.train), len(cohort.train) * method.negatives
    mine = users.numpy().reshape(-1)
    shorter, inward, pull, along, far = _scratch(
        table.dtype, items, items, len(cohort) * dim, n, many
    )
    kernels.ego_bpr(
        dim,
        table.numpy().reshape(-1),
        shorter,
        mine,
        *clients,
        _unsigned(clock.step(0).key("negatives")),
        method.negatives,
        *settings,
        *out,
        np.zeros(items, np.int32),
        inward,
        np.empty(kernels.SHELVES + 2, np.int64),
        mine.copy(),
        pull,
        along,
        far,
        np.zeros(many, np.int32),
    )


def _mf_bce(
    method: Method, cohort: Cohort, clock: Clock, table: Tensor, users: Tensor, out: list[Any]
) -> None:
    """Call `kernels.mf_bce`; out: the arrays it fills."""
    from rescind import kernels

    items, dim = table.shape
    clients, settings = _common(method, cohort, table)
    each = method.negatives + 1
    many = each * (max(1, int(cohort.train.count.max())) if len(cohort) else 1)
    size = method.batch_size or many
    waves = method.epochs * -(-many // size)
    label, *scratch, given, error = _scratch(
        table.dtype, many, waves * dim, waves, waves, items * waves, many
    )
    label[::each] = 1
    sample, order, row, hashes = np.empty((4, many), np.int64)
    clocks = [clock.step(epoch) for epoch in range(method.epochs)]
    keys = [np.array([_unsigned(c.key(w)) for c in clocks]) for w in ("negatives", "order")]
    numbers = [method.negatives, size, *settings]
    seen, start = np.zeros(items, np.int32), np.empty(kernels.SHELVES + 2, np.int64)
    wide, mine = table.numpy().reshape(-1), users.numpy().reshape(-1)
    scratch = [*scratch, given, sample, order, row, error, hashes.view(np.uint64)]
    buckets = np.empty(257, np.int64)
    kernels.mf_bce(
        dim, wide, mine, *clients, *keys, *numbers, *out, seen, start, label, *scratch, buckets
    )


def _scratch(dtype: torch.dtype, *sizes: int) -> list[Any]:
    """Arrays of zeros of these sizes out of one piece, each on a cache line of its own."""
    rooms = [-(-size // 16) * 16 for size in sizes]  # sixteen are at least 64 bytes
    piece = torch.zeros(sum(rooms), dtype=dtype).numpy()
    ends = accumulate(rooms)
    return [piece[end - room :][:n] for n, room, end in zip(sizes, rooms, ends, strict=True)]


def _flat(lot: Lot) -> tuple[Any, Any, Any]:
    """A lot as (items, first, count) in numpy."""
    return lot.item.numpy(), lot.first.numpy(), lot.count.numpy()


def _unsigned(key: int) -> np.uint64:
    return np.uint64(key % 2**64)
