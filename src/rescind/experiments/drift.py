"""Static and dynamic users and items between blocks (F3CRec, Tables 4, 5 and 7).

Only a simulation can measure this; methods do not see it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.executor import Executor, InProcess
from rescind.core.federation import Federation
from rescind.core.loss_terms import preference_shift
from rescind.core.run_state import RoundResult
from rescind.core.saved import reading
from rescind.core.tasks.metrics import Ranking, top_k
from rescind.experiments.streams import mean
from rescind.storage.federations import load_federation, save_federation

FRACTION = 0.2
"""Fraction that counts as static (moved least) and as dynamic (moved most), section 5.3."""
BEFORE, NOTED = "before", "drift.safetensors"
"""In a checkpoint: the federation at the end of the block before, and what was measured."""
LENGTH = 30  # length of a list, N in the paper


@dataclass
class Drift:
    """Measures drift in a stream: pass it as a watcher, and `ended` as the answer after a block.

    A run that is resumed reads what was measured before it stopped. Without that it measures
    nothing.
    """

    before: Federation | None = None
    """The federation at the end of the last block."""
    lists: Tensor | None = None
    """[clients, N] the best items of all users at the end of the first block."""
    people: dict[str, Tensor] = field(default_factory=dict)
    users: dict[str, float] = field(default_factory=dict)
    items: dict[str, list[float]] = field(default_factory=dict)
    place: Path | None = None
    """Where to write what was measured, for a run that stops; None: nowhere."""

    def save(self, place: Path) -> None:
        """Write it all into the folder of a block that starts, and what is found in it later."""
        self.place = place
        if self.before is not None:
            save_federation(self.before, place / BEFORE)
        self._note()

    def load(self, place: Path, executor: Executor | None) -> None:
        """Go on from what a block's folder has."""
        self.place = place
        if (place / BEFORE).is_dir():
            self.before = load_federation(place / BEFORE, executor)
        if (place / NOTED).is_file():
            found, notes = params.load(place / NOTED)
            with reading(place / NOTED):
                self.lists = found.pop("lists", None)
                self.people, told = found, json.loads(notes["told"])
                self.users, self.items = told["users"], told["items"]

    def _note(self) -> None:
        if self.place is None:
            return
        lists = {} if self.lists is None else {"lists": self.lists}
        told = json.dumps({"users": self.users, "items": self.items})
        params.save(self.place / NOTED, {**self.people, **lists}, {"told": told})

    def __call__(self, moment: RoundResult) -> None:
        """Measure after the first round of the second block how far lists have moved, Eq. (2)."""
        before, now = self.before, moment.now
        if before is None or self.people or now.vault.holdings.now != 1 or self.lists is None:
            return
        had_data = before.now.vault.holdings.available
        ids = (now.vault.holdings.available[: len(had_data)] & had_data).nonzero().squeeze(1)
        after = Federation(**{**vars(before), "now": now})
        shift = preference_shift(scores_of(after, ids), self.lists[ids])
        order = ids[torch.argsort(shift, stable=True)]
        n = math.ceil(FRACTION * len(order))
        self.people = {"static": order[:n], "dynamic": order[len(order) - n :]}
        self._note()  # later rounds of the block do not measure it again

    def ended(self, number: int, fed: Federation) -> Federation:
        """Measure at the end of a block. Return the federation unchanged."""
        before = self.before
        if number == 0:
            ids = fed.now.vault.holdings.available.nonzero().squeeze(1)
            empty = torch.full((len(fed.world.members), LENGTH), -1, device=ids.device)
            self.lists = empty.index_copy(0, ids, top_k(scores_of(fed, ids), None, LENGTH))
        elif before is not None and self.lists is not None:
            if number == 1:
                self.users = self._retention(before, fed)
            for name, value in moved_ranks(before, fed).items():
                self.items.setdefault(name, []).append(value)
        self.before = fed
        return fed

    def _retention(self, before: Federation, fed: Federation) -> dict[str, float]:
        """Measure retention of the first block: a_(1,0), and the lost fraction of a_(0,0)."""
        metric, out = Ranking(mask=("own", "valid"), block=0), {}
        for name, ids in self.people.items():
            then, now = (f.evaluate(metric=metric, clients=ids)["NDCG@20"] for f in (before, fed))
            out[f"{name} users NDCG@20"] = now
            out[f"{name} users loss"] = (then - now) / then if then else math.nan
        return out

    def found(self) -> dict[str, float]:
        """Return all measures by name, without those that could not be measured."""
        found = {**self.users, **{f"{n} items": mean(v) for n, v in self.items.items()}}
        return {name: value for name, value in found.items() if not math.isnan(value)}


def scores_of(fed: Federation, ids: Tensor) -> Tensor:
    """Score all items for these users on their devices. [len(ids), I]"""
    executor, vault = fed.executor, fed.now.vault
    assert isinstance(executor, InProcess), "drift can only be measured in a simulation"
    cohort = executor.cohort(fed.method, vault, ids)
    return fed.method.checked_scores(fed.now.state.public, vault.read(ids), cohort)


def moved_ranks(before: Federation, after: Federation) -> dict[str, float]:
    """Measure how much ranks changed for absent users: |rank' - rank| / rank, by kind of item.

    An item is static or dynamic by how far its row moved, Eq. (8). Ranks start at 1. Models
    without item rows (closed forms) give no measure.
    """
    if "item" not in before.now.state.public:
        return {}
    old, new = (f.now.state.public["item"] for f in (before, after))
    available_before, available_after = (f.now.vault.holdings.available for f in (before, after))
    absent = (available_before & ~available_after[: len(available_before)]).nonzero().squeeze(1)
    if not len(absent):
        return {}
    shift = (old - new[: len(old)]).square().sum(1)
    order, n = torch.argsort(shift, stable=True), math.ceil(FRACTION * len(old))
    kinds = {"static": order[:n], "dynamic": order[len(order) - n :]}
    then, now = (_ranks(scores_of(f, absent)[:, : len(old)]) for f in (before, after))
    change = (now - then).abs() / then
    return {name: float(change[:, rows].mean()) for name, rows in kinds.items()}


def _ranks(scores: Tensor) -> Tensor:
    """Rank each item in its row, from 1. [C, I] float64"""
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).double()
