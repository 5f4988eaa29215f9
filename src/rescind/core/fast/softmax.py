"""One softmax step of a cohort as products over all items, without row copies per client.

After a single SGD step from the broadcast values, the sum of all clients' updates is the gradient
of the sum of their losses: one table is enough, the largest array is [clients, items].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast.dispatch import plain
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.tasks.ranking import candidates, scores
from rescind.core.update import Sum


def fits(method: Any, base: type) -> bool:
    """Return whether a client does exactly one plain SGD step on a softmax."""
    return method.loss == "softmax" and method.epochs == 1 and plain(method, base)


def client_sum(
    method: Any, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Run one local round for `loss = "softmax"`: the sum that `client_train` would give."""
    (step,) = method.client_steps(public)
    total, moved = summed(method, public, private.values, step.rates, cohort, clock)
    return total, private.with_(**moved)


def summed(
    method: Any,
    public: Params,
    private: Params,
    rates: Mapping[str, float],
    cohort: Cohort,
    clock: Clock,
) -> tuple[Sum, dict[str, Tensor]]:
    """Return (weighted sum of all updates, new private values) after one step at these rates."""
    trained = {n: v for n, v in {**public, **private}.items() if n in rates}
    leaves = {n: v.detach().requires_grad_() for n, v in trained.items()}
    table = {n: leaves.get(n, v) for n, v in public.items()}
    own = {n: leaves.get(n, v) for n, v in private.items()}
    trained_on = replace(cohort, own=cohort.train)
    logit = scores(method.model, table, own, trained_on) / method.temperature
    loss, sent, shown = _loss(method, logit, cohort, clock.step(0))
    weight = cohort.weight.to(logit.dtype)
    total = (loss * weight).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    totals, moved = {}, {}
    for name, grad in zip(leaves, grads, strict=True):
        step_by = torch.zeros_like(leaves[name]) if grad is None else -rates[name] * grad
        if name in public:
            totals[name] = step_by
        else:  # private values do not depend on the weight in the sum
            each = weight.clamp(min=1e-30).view(-1, *[1] * (step_by.dim() - 1))
            moved[name] = (leaves[name] + step_by / each).detach()
    touched = weight @ shown.to(weight.dtype)
    tables = [n for n in totals if n in method.model.tables]
    each_row = sum(4 + totals[n][0].numel() * totals[n].element_size() for n in tables)
    rest = sum(v.numel() * v.element_size() for n, v in totals.items() if n not in tables)
    return Sum(
        totals=totals,
        weight=float(cohort.weight.double().sum()),
        clients=int((cohort.weight != 0).sum()),
        touched={n: touched for n in tables},
        up=sent * each_row + len(cohort) * rest,
    ), moved


def _loss(method: Any, logit: Tensor, cohort: Cohort, clock: Clock) -> tuple[Tensor, int, Tensor]:
    """Return (cross-entropy of own items [C], number of touched rows, which ones [C, I])."""
    train = cohort.train
    near = torch.zeros(len(cohort), dtype=logit.dtype, device=logit.device)
    near = near.index_add(0, train.owner, logit[train.owner, train.item])
    if method.candidates is None:
        shown = torch.ones_like(logit, dtype=torch.bool)
        if len(cohort.own) > len(train):  # shared: neither positive nor negative
            shown[cohort.own.owner, cohort.own.item] = False
            shown[train.owner, train.item] = True
            logit = logit.masked_fill(~shown, -torch.inf)
    else:  # an item drawn twice counts twice
        owner, item, values = candidates(method, cohort, clock)
        times = torch.zeros_like(logit, requires_grad=False)
        each = torch.exp(values["shift"].to(logit.dtype))
        times.index_put_((owner, item), each, accumulate=True)
        shown = times > 0
        logit = logit + torch.log(times)
    whole, count = torch.logsumexp(logit, 1), train.count.to(logit.dtype)
    loss = count * whole - near if method.reduce == "sum" else whole - near / count.clamp(min=1)
    return loss, int(shown.sum()), shown
