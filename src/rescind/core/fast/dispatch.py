"""Choice of the compiled form of a round, and conversion of its result to a `Sum`."""

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
"""The kernels do not fit a method that overrides one of these."""


@lru_cache(maxsize=1)
def compiled() -> bool:
    """Return whether numba is installed; without it the plain PyTorch form is used."""
    return find_spec("numba") is not None


def fits(method: LocalTraining, base: type, public: Params) -> bool:
    """Return whether a kernel computes exactly the same as this method."""
    kernel = getattr(method.model, "kernel", "")
    plain = method.optimiser == "sgd" and not method.decay and not method.weight_decay
    same = all(getattr(type(method), verb) is getattr(base, verb) for verb in VERBS)
    on_cpu = all(value.device.type == "cpu" for value in public.values())
    if not (kernel and plain and same and (compiled() or not on_cpu)):
        return False
    if kernel == "linear":
        return on_cpu and linear.fits(method, public)
    one_pair = method.loss == "bpr" and method.epochs == 1 and method.batch_size is None
    return one_pair and (on_cpu or method.aggregate != "rows")  # ego_gpu: no distinct rows


def client_sum(
    method: LocalTraining, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Run one local round with the kernel of the model."""
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
    """Call `ego_kernel.ego_bpr`. out: total, touched, sent"""
    from rescind.core.fast import ego_kernel

    items, dim = table.shape
    kind = table.numpy().dtype.type
    rate = method.rate * (items if method.rate_per_item else 1)
    n, negatives = len(cohort.train), len(cohort.train) * method.negatives
    flat_users = users.numpy().reshape(-1)
    inv_norm, radial, grad, pos, neg = scratch(
        table.dtype, items, items, len(cohort) * dim, n, negatives
    )
    ego_kernel.ego_bpr(
        dim,
        table.numpy().reshape(-1),
        inv_norm,
        flat_users,
        *clients_of(cohort, table),
        unsigned(clock.step(0).key("negatives")),
        method.negatives,
        kind(method.temperature),
        kind(rate),
        kind(method.private_rate),
        method.reduce == "mean",
        *out,
        np.zeros(items, np.int32),
        radial,
        np.empty(ego_kernel.BUCKETS + 2, np.int64),
        flat_users.copy(),
        grad,
        pos,
        neg,
        np.zeros(negatives, np.int32),
    )
