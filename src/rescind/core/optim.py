"""Optimisers: on clients, a whole cohort at once, and on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.state import Private

# Adam's usual decay rates and epsilon (Kingma and Ba 2015), as in torch.optim.Adam.
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Step:
    """One optimiser step on a batch: the parameters it changes, their rates, and the rule."""

    rates: Mapping[str, float]
    optimiser: Literal["sgd", "adam"] = "sgd"
    decay: float = 0.0
    """Weight decay, added to the gradient of every named parameter of an active client."""


@dataclass
class LocalOptimiser:
    """Updates the parameters of a `Work` in place, for clients with a sample in the batch."""

    work: Work
    keep: bool = False
    """Keep Adam's moments for the next round (dense and private parameters only)."""
    moments: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def begin(cls, work: Work, private: Private, keep: bool) -> LocalOptimiser:
        """Start with the moments that the devices kept, if `keep`."""
        kept = {n: v.clone() for n, v in private.values.items() if n.startswith("adam/")}
        return cls(work, keep, kept if keep else {})

    @torch.no_grad()
    def step(self, step: Step, grads: Mapping[str, Tensor | None], batch: Batch) -> None:
        """Apply one step to the parameters it names."""
        leaves = self.work.leaves(step.rates)
        active = batch.active if step.optimiser == "adam" or step.decay else None
        for name, leaf in leaves.items():
            grad = grads[name]
            if grad is None:
                continue
            if active is None:
                leaf.sub_(grad, alpha=step.rates[name])
                continue
            each = active[self.work.shelf.owner] if name in self.work.rows else active
            each = each.view(-1, *[1] * (leaf.dim() - 1))
            if step.decay:
                grad = grad.add(leaf, alpha=step.decay)
            move = grad if step.optimiser == "sgd" else self._adam(name, grad, each)
            leaf.sub_(torch.where(each, move, torch.zeros_like(move)), alpha=step.rates[name])

    def _adam(self, name: str, grad: Tensor, active: Tensor) -> Tensor:
        """Return Adam's direction. Steps are counted per client; only active clients change."""
        one, two, steps = f"adam/first/{name}", f"adam/second/{name}", f"adam/steps/{name}"
        if one not in self.moments:
            self.moments |= {one: torch.zeros_like(grad), two: torch.zeros_like(grad)}
            self.moments[steps] = torch.zeros_like(active, dtype=grad.dtype)
        first, second, count = self.moments[one], self.moments[two], self.moments[steps]
        if count.dim() != grad.dim():  # kept counts are flat, one per client
            count = self.moments[steps] = count.view(active.shape)
        first.copy_(torch.where(active, first * FIRST + grad * (1 - FIRST), first))
        second.copy_(torch.where(active, second * SECOND + grad.square() * (1 - SECOND), second))
        count.add_(active.to(count.dtype))
        bias_one, bias_two = _bias(count, grad.dtype)
        return first / bias_one / (second / bias_two).sqrt_().add_(TINY)

    def kept(self) -> dict[str, Tensor]:
        """Return the moments to keep, by name. Those of table rows are dropped each round."""
        if not self.keep:
            return {}
        return {n: v for n, v in self.moments.items() if n.split("/", 2)[2] not in self.work.rows}


def _bias(steps: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return 1 - beta**steps of both moments, in float64: float32 has an error of 1e-5 here."""
    count = steps.clamp(min=1).double()
    return (1 - FIRST**count).to(dtype), (1 - SECOND**count).to(dtype)


def server_move(
    public: Params,
    own: Params,
    direction: Params,
    kind: Literal["plain", "momentum", "adam"],
    rate: float,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Move the public parameters along `direction`, the mean update. Return (public, own).

    plain: w + rate * m.    momentum: v <- .9 v + m, w + rate * v.    adam: as FedAdam (Reddi et
    al. 2021) with the usual constants. Moments are stored in `own` and grow with their table.
    """
    public, own = dict(public), dict(own)
    for name, mean in direction.items():
        if kind == "plain":
            public[name] = public[name] + (mean if rate == 1.0 else rate * mean)
            continue
        first = _grown(own.get(f"server/first/{name}"), mean)
        if kind == "momentum":
            move = first = FIRST * first + mean
        else:
            first = FIRST * first + (1 - FIRST) * mean
            second = _grown(own.get(f"server/second/{name}"), mean)
            second = SECOND * second + (1 - SECOND) * mean.square()
            steps = own.get(f"server/steps/{name}", torch.zeros((), device=mean.device)) + 1
            bias_one, bias_two = _bias(steps, mean.dtype)
            move = first / bias_one / ((second / bias_two).sqrt() + TINY)
            own |= {f"server/second/{name}": second, f"server/steps/{name}": steps}
        own[f"server/first/{name}"] = first
        public[name] = public[name] + rate * move
    return public, own


def _grown(moment: Tensor | None, like: Tensor) -> Tensor:
    """Return the moment, with zeros for new rows of the table."""
    if moment is None:
        return torch.zeros_like(like)
    if moment.shape == like.shape:
        return moment
    longer = torch.zeros_like(like)
    longer[: len(moment)] = moment
    return longer
