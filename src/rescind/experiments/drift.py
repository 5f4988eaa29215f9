"""Who and what changed between blocks: static and dynamic people, static and dynamic items.

F3CRec's Tables 4, 5 and 7. These are measurements of the one who simulates; no method sees them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.loss_terms import preference_shift
from rescind.core.run_state import RoundResult
from rescind.core.tasks.metrics import Ranking, top_k
from rescind.experiments.streams import mean

SHARE = 0.2
"""Static is the fifth that moved least, dynamic the fifth that moved most (section 5.3)."""
LONG = 30  # items of a list, N in the paper


@dataclass
class Drift:
    """Watches a stream: give it as a watcher, and `ended` after every block.

    A run that was stopped and goes on has not seen the blocks before, so it has none of this.
    """

    before: Federation | None = None
    """The federation as it was when the last block ended."""
    lists: Tensor | None = None
    """[clients, N] the best items of everybody when the first block ended."""
    people: dict[str, Tensor] = field(default_factory=dict)
    users: dict[str, float] = field(default_factory=dict)
    items: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, moment: RoundResult) -> None:
        """After the first round of the second block: how far lists have moved, Eq. (2)."""
        before, now = self.before, moment.now
        if before is None or self.people or now.vault.holdings.now != 1 or self.lists is None:
            return
        here = before.now.vault.holdings.available
        back = now.vault.holdings.available[: len(here)] & here
        ids = back.nonzero().squeeze(1)
        after = Federation(**{**vars(before), "now": now})
        shift = preference_shift(scores_of(after, ids), self.lists[ids])
        order = ids[torch.argsort(shift, stable=True)]
        many = math.ceil(SHARE * len(order))
        self.people = {"static": order[:many], "dynamic": order[len(order) - many :]}

    def ended(self, number: int, fed: Federation) -> Federation:
        """A block has ended; the federation itself is left alone."""
        before = self.before
        if number == 0:
            ids = fed.now.vault.holdings.available.nonzero().squeeze(1)
            empty = torch.full((len(fed.world.members), LONG), -1, device=ids.device)
            self.lists = empty.index_copy(0, ids, top_k(scores_of(fed, ids), None, LONG))
        elif before is not None and self.lists is not None:
            if number == 1:
                self.users = self._kept(before, fed)
            for name, value in moved_ranks(before, fed).items():
                self.items.setdefault(name, []).append(value)
        self.before = fed
        return fed

    def _kept(self, before: Federation, fed: Federation) -> dict[str, float]:
        """What is left of the first block: a_(1,0), and the part of a_(0,0) that is lost."""
        metric, out = Ranking(mask=("own", "valid"), block=0), {}
        for name, ids in self.people.items():
            then, now = (f.evaluate(metric=metric, clients=ids)["NDCG@20"] for f in (before, fed))
            out[f"{name} users NDCG@20"] = now
            out[f"{name} users loss"] = (then - now) / then if then else math.nan
        return out

    def found(self) -> dict[str, float]:
        """Everything by name; what could not be measured is left out."""
        found = {**self.users, **{f"{n} items": mean(v) for n, v in self.items.items()}}
        return {name: value for name, value in found.items() if not math.isnan(value)}


def scores_of(fed: Federation, ids: Tensor) -> Tensor:
    """Scores of all items for these people, as their devices have them. [len(ids), I]"""
    executor, vault = fed.executor, fed.now.vault
    assert isinstance(executor, InProcess), "a simulation holds its devices"
    cohort = executor.cohort(fed.method, vault, ids)
    return fed.method.client_scores(fed.now.state.public, vault.read(ids), cohort)


def moved_ranks(before: Federation, after: Federation) -> dict[str, float]:
    """How much ranks changed for people who stayed away: |rank' - rank| / rank, by kind of item.

    An item is static or dynamic by how far its row moved, Eq. (8). Ranks count from 1. Where items
    have no rows of their own (a closed form), nothing is static or dynamic.
    """
    if "item" not in before.now.state.public:
        return {}
    old, new = (f.now.state.public["item"] for f in (before, after))
    there, here = (f.now.vault.holdings.available for f in (before, after))
    away = (there & ~here[: len(there)]).nonzero().squeeze(1)
    if not len(away):
        return {}
    shift = (old - new[: len(old)]).square().sum(1)
    order, many = torch.argsort(shift, stable=True), math.ceil(SHARE * len(old))
    kinds = {"static": order[:many], "dynamic": order[len(order) - many :]}
    then, now = (_ranks(scores_of(f, away)[:, : len(old)]) for f in (before, after))
    change = (now - then).abs() / then
    return {name: float(change[:, rows].mean()) for name, rows in kinds.items()}


def _ranks(scores: Tensor) -> Tensor:
    """The place of each item in its row, from 1. [C, I] float64"""
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).double()
