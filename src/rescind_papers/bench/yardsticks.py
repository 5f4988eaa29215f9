"""Reference code for benchmarks: the touch, the naive twin, the plain step.

*touch* is one `index_select` and one `index_add_` of the rows a round samples, [rows, d] float32:
the least a round must move. The *naive twin* is a Python loop over clients: copy the item table,
`torch.optim.SGD`, one autograd step per batch, negatives drawn by numpy per client. The *plain
step* is FedShare's server step as one would write it down: sparse products, autograd, torch's Adam.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.state import Private, ServerState
from rescind.methods._lent_graph.graph import SharedGraph
from rescind.methods._lent_graph.steps import NEGATIVES
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN

Batches = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Opening:
    """Inputs of the clients in one round of a federation."""

    method: RankingMethod
    public: Params
    private: Private
    cohort: Cohort
    clock: Clock

    @classmethod
    def of(cls, data: Holdings, method: RankingMethod, seed: int = 0) -> Opening:
        """Return the inputs of the first round of a new federation."""
        return cls.next_of(Federation.start(data, method, seed=seed))

    @classmethod
    def next_of(cls, fed: Federation) -> Opening:
        """Return the inputs of a federation's next round."""
        method, vault = cast(RankingMethod, fed.method), fed.now.vault
        clock = fed.clock.at(fed.now.state.round + 1)
        ids = method.server_sample(fed.now.state, fed.world, clock)
        cohort = InProcess().cohort(method, vault, ids)
        return cls(method, fed.now.state.public, vault.read(ids), cohort, clock)

    @property
    def rows(self) -> int:
        """Return the number of sampled rows: two per pair, one per labelled sample."""
        plan = self.method.client_plan(self.public, self.private, self.cohort, self.clock)
        return self.method.epochs * sum(column.numel() for column in plan.items.values())


def alternate(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median CPU milliseconds of each work, in alternating turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            begin = time.process_time()
            work()
            if turn:
                times[name].append(1000 * (time.process_time() - begin))
    return {name: median(taken) for name, taken in times.items()}


def touch(rows: int, table: Tensor) -> Callable[[], object]:
    """Return one gather and one scatter of `rows` rows, as a function to time."""
    at = Clock(0).integers("touch", torch.arange(rows), 0, len(table))
    total, held = torch.zeros_like(table), table.new_empty(rows, table.shape[1])

    def work() -> None:  # no allocation: a fresh page now and then would make it look slower
        torch.index_select(table, 0, at, out=held)
        total.index_add_(0, at, held)

    return work


def twin_loss(
    method: RankingMethod, item: Tensor, user: Tensor, mine: Tensor, batch: Any
) -> Tensor:
    """Return a client's loss on one batch, on its copy of the table."""
    score: Callable[[Tensor], Tensor] = lambda at: item[at] @ user  # noqa: E731
    if isinstance(method.model, LightGCN):
        near = user / 2 + item[mine].sum(0) / math.sqrt(len(mine)) / 2
        score = lambda at: functional.cosine_similarity(near[None], item[at])  # noqa: E731
    if method.loss == "bpr":
        gap = (score(batch["positive"]) - score(batch["negative"])) / method.temperature
        each = -functional.logsigmoid(gap)
    else:
        each = functional.binary_cross_entropy_with_logits(
            score(batch["item"]) / method.temperature, batch["label"], reduction="none"
        )
    return each.mean() if method.reduce == "mean" else each.sum()


def twin_client(
    method: RankingMethod, table: Tensor, user: Tensor, mine: Tensor, batches: Batches
) -> tuple[Tensor, Tensor]:
    """Train one client by autograd on a copy of the table. Return (its change, new user)."""
    item, user = table.clone().requires_grad_(), user.clone().requires_grad_()
    rate = method.rate * (len(table) if method.rate_per_item else 1)
    groups: list[dict[str, Any]] = [
        {"params": [item], "lr": rate},
        {"params": [user], "lr": method.private_rate},
    ]
    optimiser = torch.optim.SGD(groups)
    for batch in batches:
        optimiser.zero_grad()
        torch.autograd.backward(twin_loss(method, item, user, mine, batch))
        optimiser.step()
    return item.detach() - table, user.detach()


def twin_batches(
    method: RankingMethod,
    cohort: Cohort,
    place: int,
    draw: np.random.Generator,  # noqa: TID251
) -> Batches:
    """Return the batches of one epoch of a client; numpy draws negatives and order."""
    mine = _of(cohort, "train", place).numpy()
    free = np.setdiff1d(np.arange(cohort.items), _of(cohort, "own", place).numpy())
    negative = draw.choice(free, len(mine) * method.negatives)
    if method.loss == "bpr":
        columns = {"positive": np.repeat(mine, method.negatives), "negative": negative}
    else:
        label = np.concatenate([np.ones(len(mine)), np.zeros(len(negative))]).astype(np.float32)
        columns = {"item": np.concatenate([mine, negative]), "label": label}
    count = len(next(iter(columns.values())))
    size = method.batch_size or count
    order = draw.permutation(count)
    return [
        {name: torch.from_numpy(column[order[at : at + size]]) for name, column in columns.items()}
        for at in range(0, count, size)
    ]


def twin_round(opening: Opening, places: Tensor, batches: Callable[[int], Batches]) -> Tensor:
    """Return the weighted sum of these clients' changes of the item table."""
    method, cohort, table = opening.method, opening.cohort, opening.public["item"]
    total = torch.zeros_like(table)
    for place in places.tolist():
        user, mine = opening.private["user"][place], _of(cohort, "train", place)
        change, _ = twin_client(method, table, user, mine, batches(place))
        total += cohort.weight[place] * change
    return total


def naive(
    opening: Opening, twins: int, one_round: Callable[..., Tensor] = twin_round
) -> tuple[Callable[[], Tensor], float]:
    """Return the naive twin on evenly spaced clients, as a function to time, and its scale."""
    cohort, method = opening.cohort, opening.method
    able = ((cohort.train.count > 0) & (cohort.own.count < cohort.items)).nonzero().squeeze(1)
    places = able[torch.linspace(0, len(able) - 1, min(twins, len(able))).long()]

    def work() -> Tensor:
        draw = np.random.default_rng(0)  # noqa: TID251
        return one_round(opening, places, lambda p: twin_batches(method, cohort, p, draw))

    return work, len(able) / len(places)


def plain_step(method: FedShare, state: ServerState, graph: SharedGraph, clock: Clock) -> Tensor:
    """Run one server step of FedShare (Eq. 17-18) from empty moments. Return the item table."""
    user = state.own["user"].index_select(0, graph.sharers).requires_grad_()
    item = state.public["item"].clone().requires_grad_()
    optimiser = torch.optim.Adam([user, item], lr=method.refine_rate)
    there, back = (
        torch.sparse_coo_tensor(
            torch.stack([s.row, s.place]), s.weight.to(item.dtype), s.shape, check_invariants=False
        )
        for s in graph.matrices
    )
    layer, seen = (user, item), (user, item)
    for _ in range(method.layers):
        layer = (torch.sparse.mm(there, layer[1]), torch.sparse.mm(back, layer[0]))
        seen = (seen[0] + layer[0], seen[1] + layer[1])
    people, things = (functional.normalize(t, dim=-1) for t in seen)
    owner, near, far = graph.sample(method.refine_pairs, clock.step(NEGATIVES))
    gap = ((things[far] - things[near]) * people[owner]).sum(-1)
    loss = method.refine_bpr * functional.softplus(gap / method.temperature).mean()
    chosen = graph.some_items(method.contrast_items, clock)
    logits = functional.normalize(item[chosen], dim=-1) @ things[chosen].T
    right = torch.arange(len(chosen))
    loss = loss + method.contrast * functional.cross_entropy(
        logits / method.contrast_temperature, right
    )
    torch.autograd.backward(loss)
    optimiser.step()
    return item.detach()


def _of(cohort: Cohort, name: str, place: int) -> Tensor:
    lot = getattr(cohort, name)
    first = int(lot.first[place])
    return lot.item[first : first + int(lot.count[place])]
