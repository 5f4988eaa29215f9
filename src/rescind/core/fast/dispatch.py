"""Choice of the compiled form of a round, and conversion of its result to a `Sum`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core import fast
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast import ego_gpu, linear
from rescind.core.fast.linear import clients_of, scratch, sum_of, uncollected, unsigned
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.update import Sum
from rescind.errors import BoundaryError

VERBS = ("client_plan", "client_loss", "client_steps", "client_train")
"""The kernels do not fit a method that overrides one of these."""


def plain(method: Any, base: type) -> bool:
    """Return whether a method does plain SGD with the samples, loss and steps of `base`."""
    decays = method.decay or method.weight_decay
    same = all(getattr(type(method), verb) is getattr(base, verb) for verb in VERBS)
    return method.optimiser == "sgd" and not decays and same


def fits(method: Any, base: type, public: Params) -> bool:
    """Return whether a kernel computes exactly the same as this method."""
    kernel = getattr(method.model, "kernel", "")
    on_cpu = all(value.device.type == "cpu" for value in public.values())
    if not (kernel and plain(method, base) and (fast.compiled() or not on_cpu)):
        return False
    if kernel == "linear":
        return on_cpu and linear.fits(method, public)
    one_pair = method.loss == "bpr" and method.epochs == 1 and method.batch_size is None
    return one_pair and (on_cpu or method.aggregate != "rows")  # ego_gpu: no distinct rows


def client_sum(
    method: Any, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Run one local round with the kernel of the model."""
    if getattr(method.model, "kernel", "") == "linear":
        (name, start, stop), *_ = method.model.pieces()
        _check_alike(public["item"], name, private[name].flatten(1)[:, start:stop])
        summed, after, _ = linear.client_sum(method, public, private, cohort, clock)
        return summed, after
    _check_alike(public["item"], "user", private["user"])
    if public["item"].device.type != "cpu":
        return ego_gpu.ego_bpr(method, public, private, cohort, clock)
    return _ego_bpr(method, public["item"].contiguous(), private, cohort, clock)


def _check_alike(table: Tensor, name: str, rows: Tensor) -> None:
    """Refuse rows of another kind, and of other widths: compiled code reads past their end."""
    public, private = ((each.dtype, list(each.shape[1:])) for each in (table, rows))
    if public != private:
        raise BoundaryError(f"'item' has rows {public}, '{name}' {private}; expected one kind.")


def _ego_bpr(
    method: Any, table: Tensor, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    from rescind.core.fast import ego_kernel

    items, dim = table.shape
    kind = table.numpy().dtype.type
    users = private["user"].clone().contiguous()
    flat_users, flat_table = (part.numpy().reshape(-1) for part in (users, table))
    total = torch.zeros_like(table)  # torch aligns rows with cache lines, numpy does not
    out = total.numpy().reshape(-1), np.zeros(items, kind), np.zeros(len(cohort), np.int64)
    rate = method.rate * (items if method.rate_per_item else 1)
    rates = (kind(number) for number in (method.temperature, rate, method.private_rate))
    n, negatives = len(cohort.train), len(cohort.train) * method.negatives
    memory = (
        *scratch(table.dtype, items, items, len(cohort) * dim, n, negatives),
        *(np.zeros(size, np.int32) for size in (items, negatives)),
        np.empty(ego_kernel.BUCKETS + 2, np.int64),
        flat_users.copy(),
    )
    key = unsigned(clock.step(0).key("negatives"))
    settings = (method.negatives, *rates, method.reduce == "mean")
    clients = clients_of(cohort, table)
    with uncollected():
        ego_kernel.ego_bpr(dim, flat_table, flat_users, clients, key, settings, out, memory)
    return sum_of(cohort, total, *out[1:]), private.with_(user=users)
