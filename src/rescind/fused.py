"""When a round may take the compiled form, and how its result becomes a `Sum`."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

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
    table = public["item"].contiguous().numpy()
    users = private["user"].clone().contiguous()
    total = torch.zeros_like(public["item"])  # torch aligns rows with cache lines, numpy does not
    touched = torch.zeros(len(table), dtype=total.dtype)
    run = _ego_bpr if getattr(method.model, "kernel", "") == "ego" else _mf_bce
    rows = run(method, public, cohort, clock, table, users.numpy(), total.numpy(), touched.numpy())
    return Sum(
        totals={"item": total},
        weight=float(cohort.weight.double().sum()),
        clients=int((cohort.weight != 0).sum()),
        touched={"item": touched},
        up=int(rows) * (table.shape[1] * table.itemsize + 4),
    ), private.with_(user=users)


def _common(method: Method, public: Params, cohort: Cohort, table: Any) -> tuple[Any, Any]:
    """What both kernels take: (the clients and their items, the settings)."""
    kind = table.dtype.type
    weight = cohort.weight.to(public["item"].dtype).numpy()
    clients = [cohort.ids.numpy(), weight, *_flat(cohort.train), *_flat(cohort.own)]
    rate = method.rate * (len(table) if method.rate_per_item else 1)
    numbers = [kind(method.temperature), kind(rate), kind(method.private_rate)]
    return clients, [*numbers, method.reduce == "mean"]


def _most(cohort: Cohort) -> int:
    return max(1, int(cohort.train.count.max())) if len(cohort) else 1


def _ego_bpr(
    method: Method,
    public: Params,
    cohort: Cohort,
    clock: Clock,
    table: Any,
    users: Any,
    total: Any,
    touched: Any,
) -> int:
    from rescind import kernels

    items, dim = table.shape
    clients, settings = _common(method, public, cohort, table)
    n, many = len(cohort.train), len(cohort.train) * method.negatives
    norm = torch.linalg.vector_norm(public["item"], dim=1).clamp_(min=1e-12)
    unit = (public["item"] / norm.unsqueeze(1)).view(-1).numpy()
    user, pull, near, along, far, size = _scratch(
        norm.dtype, len(cohort) * dim, len(cohort) * dim, _most(cohort), n, many, n
    )
    inward, drawn = np.zeros(items, table.dtype), np.empty(many, np.int64)
    rows = kernels.ego_bpr(
        dim,
        unit,
        norm.numpy(),
        users.reshape(-1),
        *clients,
        _unsigned(clock.step(0).key("negatives")),
        method.negatives,
        *settings,
        touched,
        np.full(items, -1, np.int32),
        inward,
        np.empty(256, np.int64),
        user,
        pull,
        near,
        along,
        far,
        size,
        drawn,
    )
    kernels.ego_scatter(
        dim,
        unit,
        norm.numpy(),
        clients[1],
        *clients[2:5],
        method.negatives,
        settings[1],
        inward,
        user,
        pull,
        along,
        far,
        size,
        drawn,
        total.reshape(-1),
    )
    return int(rows)


def _mf_bce(
    method: Method,
    public: Params,
    cohort: Cohort,
    clock: Clock,
    table: Any,
    users: Any,
    total: Any,
    touched: Any,
) -> int:
    from rescind import kernels

    items, dim = table.shape
    clients, settings = _common(method, public, cohort, table)
    many = _most(cohort) * (method.negatives + 1)
    size = method.batch_size or many
    waves = method.epochs * -(-many // size)
    scratch = _scratch(public["item"].dtype, dim, waves * dim, waves, waves)
    clocks = [clock.step(epoch) for epoch in range(method.epochs)]
    return int(
        kernels.mf_bce(
            dim,
            table.reshape(-1),
            users.reshape(-1),
            *clients,
            np.array([_unsigned(c.key("negatives")) for c in clocks]),
            np.array([_unsigned(c.key("order")) for c in clocks]),
            method.negatives,
            size,
            *settings,
            total.reshape(-1),
            touched,
            np.full(items, -1, np.int32),
            np.empty(256, np.int64),
            *scratch,
            np.zeros((items, waves), table.dtype),
            np.empty(many, np.int64),
            np.empty(many, np.int64),
            np.empty(many, table.dtype),
            np.empty(many, table.dtype),
            np.empty(many, np.uint64),
            np.empty(257, np.int64),
        )
    )


def _scratch(dtype: torch.dtype, *sizes: int) -> list[Any]:
    """Arrays of these sizes out of one piece, each on a cache line of its own."""
    step = 16  # at least 64 bytes
    ends = np.cumsum([-(-size // step) * step for size in sizes])
    piece = torch.empty(int(ends[-1]), dtype=dtype).numpy()
    return [piece[end - -(-s // step) * step :][:s] for s, end in zip(sizes, ends, strict=True)]


def _flat(lot: Lot) -> tuple[Any, Any, Any]:
    """A lot as (items, first, count) in numpy."""
    return lot.item.numpy(), lot.first.numpy(), lot.count.numpy()


def _unsigned(key: int) -> np.uint64:
    return np.uint64(key % 2**64)
