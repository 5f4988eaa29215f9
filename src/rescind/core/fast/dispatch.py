"""When a round may take the compiled form, and how its result becomes a `Sum`."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast import ego_gpu, linear
from rescind.core.fast.linear import clients_of, scratch, uncollected, unsigned
from rescind.core.fast.local import LocalTraining
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.update import Sum

VERBS = ("client_plan", "client_loss", "client_steps", "client_train")
"""A method that overrides one of these computes something else than the kernels do."""


@lru_cache(maxsize=1)
def compiled() -> bool:
    """Whether numba is installed; without it everything runs in the readable form."""
    return find_spec("numba") is not None


def fits(method: LocalTraining, base: type, public: Params) -> bool:
    """Whether a kernel computes exactly what this method would."""
    kernel = getattr(method.model, "kernel", "")
    plain = method.optimiser == "sgd" and not method.decay and not method.weight_decay
    same = all(getattr(type(method), verb) is getattr(base, verb) for verb in VERBS)
    on_cpu = all(value.device.type == "cpu" for value in public.values())
    if not (kernel and plain and same and (compiled() or not on_cpu)):
        return False
    if kernel == "linear":
        return on_cpu and linear.fits(method, public)
    one_pair = method.loss == "bpr" and method.epochs == 1 and method.batch_size is None
    return one_pair and (on_cpu or method.aggregate != "rows")  # ego_gpu.py counts no distinct rows


def client_sum(
    method: LocalTraining, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """One round of a cohort by the kernel of its model."""
    if getattr(method.model, "kernel", "") == "linear":
        summed, after, _ = linear.client_sum(method, public, private, cohort, clock)
        return summed, after
    if public["item"].device.type != "cpu":
        return ego_gpu.ego_bpr(method, public, private, cohort, clock)
    table = public["item"].contiguous()
    users = private["user"].clone().contiguous()
    total = torch.zeros_like(table)  # torch aligns rows with cache lines, numpy does not
    filled = total.numpy().reshape(-1)
    touched = np.zeros(len(table), filled.dtype)
    sent = np.zeros(len(cohort), np.int64)
    with uncollected():
        _ego_bpr(method, cohort, clock, table, users, [filled, touched, sent])
    weight = cohort.weight.numpy()
    return Sum(
        totals={"item": total},
        weight=float(weight.sum(dtype=np.float64)),
        clients=int(np.count_nonzero(weight)),
        touched={"item": torch.from_numpy(touched)},
        up=int(sent.sum()) * (table.shape[1] * table.element_size() + 4),
    ), private.with_(user=users)


def _ego_bpr(
    method: LocalTraining,
    cohort: Cohort,
    clock: Clock,
    table: Tensor,
    users: Tensor,
    out: list[Any],
) -> None:
    """Call `ego_kernel.ego_bpr`; out: the arrays it fills."""
    from rescind.core.fast import ego_kernel

    items, dim = table.shape
    kind = table.numpy().dtype.type
    rate = method.rate * (items if method.rate_per_item else 1)
    n, many = len(cohort.train), len(cohort.train) * method.negatives
    mine = users.numpy().reshape(-1)
    shorter, inward, pull, along, far = scratch(
        table.dtype, items, items, len(cohort) * dim, n, many
    )
    ego_kernel.ego_bpr(
        dim,
        table.numpy().reshape(-1),
        shorter,
        mine,
        *clients_of(cohort, table),
        unsigned(clock.step(0).key("negatives")),
        method.negatives,
        kind(method.temperature),
        kind(rate),
        kind(method.private_rate),
        method.reduce == "mean",
        *out,
        np.zeros(items, np.int32),
        inward,
        np.empty(ego_kernel.SHELVES + 2, np.int64),
        mine.copy(),
        pull,
        along,
        far,
        np.zeros(many, np.int32),
    )
