"""Benchmarks of continual learners: rounds, their naive twin, and a whole stream of F3CRec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.federation import Federation
from rescind.core.loss_terms import preference_shift, replay_size
from rescind.core.model import private_names
from rescind.experiments.streams import Blocks, Stream, run_stream
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.models.ncf import NCF
from rescind.models.pfedrec import PFedRec
from rescind_papers.bench.yardsticks import Batches, Opening

WARM = 20
"""Rounds of the first block before a round of the second is timed, so that lists exist."""


def openings(stream: Stream) -> Iterator[tuple[str, Opening, Mapping[str, float]]]:
    """Yield the rounds to time: (name, inputs of the clients, bound of each form)."""
    for name, model in (("linear FedNCF", NCF()), ("PFedRec", PFedRec())):
        method = FineTune(model=model, rate=0.05, private_rate=0.05)
        yield f"{name}, ML-100K block 0", Opening.of(stream.first, method), {"fused": 2.0}
    fed = Federation.start(stream.first, F3CRec(), seed=0).run(WARM)
    fed = fed.apply(next(iter(stream.later)))
    yield "F3CRec with FedMF, ML-100K block 1", Opening.next_of(fed), {"fused": 4.0}


def whole_run(stream: Stream, how: Blocks | None = None) -> tuple[float, dict[str, float]]:
    """Run F3CRec with FedMF on all blocks. Return (CPU seconds, counts of blocks and rounds)."""
    begin = time.process_time()
    done = run_stream(stream, F3CRec(), 0, how)
    took = time.process_time() - begin
    return took, {"blocks": len(done.blocks), "rounds": sum(b.rounds for b in done.blocks)}


def twin_round(opening: Opening, places: Tensor, batches: Callable[[int], Batches]) -> Tensor:
    """Return the weighted sum of these clients' changes of the item table, one by one."""
    total = torch.zeros_like(opening.public["item"])
    for place in places.tolist():
        total += opening.cohort.weight[place] * _twin(opening, place, batches(place))
    return total


def _twin(opening: Opening, place: int, batches: Batches) -> Tensor:
    """Train one client on the whole table by autograd. Return the change of the table."""
    method, private, model = opening.method, opening.private, opening.method.model
    item = opening.public["item"].clone().requires_grad_()
    own = {n: private[n][place : place + 1].clone() for n in private_names(model)}
    leaves = {"item": item, **{n: v.requires_grad_() for n, v in own.items()}}
    for batch in batches:
        for step in method.client_steps(opening.public):
            logit = model.scores({"item": item}, own)  # type: ignore[attr-defined]
            loss = functional.binary_cross_entropy_with_logits(
                logit[0, batch["item"]], batch["label"].to(logit.dtype)
            )
            if isinstance(method, F3CRec):
                loss = loss + _replayed(method, logit, opening, place)
            moved = [leaves[name] for name in step.rates]
            grads = torch.autograd.grad(loss, moved)
            for name, leaf, grad in zip(step.rates, moved, grads, strict=True):
                leaf.data -= step.rates[name] * grad
    return item.detach() - opening.public["item"]


def _replayed(method: F3CRec, logit: Tensor, opening: Opening, place: int) -> Tensor | float:
    """Return the distillation loss on the top of a client's list, Eq. (2)-(4)."""
    top = opening.private["top"][place : place + 1]
    if int(top[0, 0]) < 0:
        return 0.0
    shift = preference_shift(logit.detach(), top)
    count = int(replay_size(shift, method.top_n, method.shift_scale)) if method.adaptive else None
    chosen, taught = top[0, :count], opening.private["teacher"][place, :count]
    if not len(chosen):
        return 0.0
    label = torch.sigmoid(taught).to(logit.dtype)
    return method.distil * functional.binary_cross_entropy_with_logits(logit[0, chosen], label)
