"""Metrics of full rankings: HR, NDCG, Recall, Precision, MRR @K, coverage, popularity bias.

A metric turns the scores of a cohort into totals that can be added over cohorts and silos; only
the totals reach the server, which divides at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core import fast
from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.errors import ConfigError

KERNEL_TYPES = (torch.float32, torch.float64)
FEW = 2**18
"""Scores that torch ranks sooner than numba is loaded."""


@dataclass(frozen=True)
class InParts:
    """The scores of a cohort, computed for a few clients at a time: they never leave the cache."""

    parts: Callable[[], Iterable[Tensor]]
    """Compute the scores of the first clients, of the next ones, and so on. [c, I] each"""


Scores = Tensor | InParts


def without_items(scores: Scores, items: Sequence[int]) -> Scores:
    """Return the scores with -inf for some items, so that no list has them."""
    if not items:
        return scores
    if isinstance(scores, InParts):
        parts = scores.parts
        return InParts(lambda: (_filled(part, items) for part in parts()))
    return _filled(scores, items)


def _filled(scores: Tensor, items: Sequence[int]) -> Tensor:
    return scores.index_fill(-1, torch.tensor(items, device=scores.device), -torch.inf)


def top_k(scores: Scores, masked: Lot | None, k: int) -> Tensor:
    """Return the k best unmasked items of each row, best first; ties: lower item first. [C, k]

    Missing entries are -1 (a user with fewer than k unmasked items). NaN ranks last.
    """
    if isinstance(scores, InParts):
        tops: list[Tensor] = []
        begin = 0
        for part in scores.parts():
            end = begin + len(part)
            tops.append(top_k(part, None if masked is None else masked.part(begin, end), k))
            begin = end
        return torch.cat(tops)
    pays = "numba" in sys.modules or scores.numel() > FEW
    on_cpu = scores.device.type == "cpu" and scores.dtype in KERNEL_TYPES
    if pays and k and on_cpu and fast.compiled():
        return _top_k_compiled(scores, masked, k)
    most = torch.finfo(scores.dtype).max
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=most, neginf=-torch.inf)
    if masked is not None:
        scores[masked.owner, masked.item] = -torch.inf
    items = scores.shape[1]
    length = min(k, items)
    # One more than needed, to see whether a tie crosses the end of the list.
    value, item = torch.topk(scores, min(length + 1, items), dim=1)
    tied = (value[:, 1:] == value[:, :-1]) & (value[:, 1:] > -torch.inf)
    rows = tied.any(1).nonzero().squeeze(1)
    if len(rows):
        order = torch.argsort(scores[rows], dim=1, descending=True, stable=True)
        item[rows] = order[:, : item.shape[1]]
        value[rows] = scores[rows].gather(1, item[rows])
    item = torch.where(value == -torch.inf, -1, item)[:, :length]
    if length < k:
        item = torch.nn.functional.pad(item, (0, k - length), value=-1)
    return item


def _top_k_compiled(scores: Tensor, masked: Lot | None, k: int) -> Tensor:
    from rescind.core.fast.best_items import best_items

    rows = len(scores)
    first = torch.zeros(rows + 1, dtype=torch.int64)
    if masked is not None:
        torch.cumsum(masked.count, 0, out=first[1:])
    items = first[:0] if masked is None else masked.item
    best = torch.empty(rows, k, dtype=torch.int64)
    best_items(*(part.detach().numpy() for part in (scores.contiguous(), first, items, best)))
    return best


@dataclass(frozen=True)
class Ranking:
    """Full ranking against held-out items, averaged over the clients that have any.

    HR@K: any hit. Recall@K: hits / held. Precision@K: hits / K. MRR@K: 1 / rank of the first hit.
    NDCG@K: binary gain, ideal over min(K, held). coverage@K: fraction of items shown to any client.
    popularity@K: mean fraction of members that own a shown item (the bias to popular items).
    """

    split: str = "test"
    k: tuple[int, ...] = (20,)
    mask: tuple[str, ...] = ("own",)
    """Items to exclude: "own" (training items), and "valid" if listed."""
    block: int | None = None
    """The block whose held-out items are used; None: the current one."""
    only_lists: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.split not in ("valid", "test"):
            raise ConfigError(f"Ranking.split must be 'valid' or 'test', got '{self.split}'.")
        if not self.k or min(self.k) < 1:
            raise ConfigError(f"Ranking.k needs list lengths of at least 1, got {self.k}.")

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Return totals by name, and the number of clients in them."""
        if cohort.held is None:
            raise ConfigError("Ranking needs a cohort with held-out items.")
        held = cohort.held
        longest = min(max(self.k), cohort.items)  # a list is never longer than the catalogue
        top = top_k(scores, masked, longest)
        relevant = torch.zeros((len(cohort), cohort.items + 1), dtype=torch.bool, device=top.device)
        relevant[held.owner, held.item] = True
        hit = relevant.gather(1, torch.where(top < 0, cohort.items, top)).double()
        counted = held.count > 0
        hit, count = hit[counted], held.count[counted].double()
        out: dict[str, Tensor] = {}
        discount = 1 / torch.log2(torch.arange(longest, device=top.device).double() + 2)
        ideal = torch.cumsum(discount, 0)
        for k in self.k:
            cut = hit[:, :k]
            hits = cut.sum(1)
            rank = torch.arange(1, cut.shape[1] + 1, device=top.device)
            best = count.clamp(max=cut.shape[1]).long() - 1
            out[f"HR@{k}"] = (hits > 0).double().sum()
            out[f"NDCG@{k}"] = ((cut * discount[:k]).sum(1) / ideal[best]).sum()
            out[f"Recall@{k}"] = (hits / count).sum()
            out[f"Precision@{k}"] = (hits / k).sum()
            out[f"MRR@{k}"] = (cut / rank).max(1).values.sum() if len(cut) else cut.sum()
            shown = top[counted, :k].reshape(-1)
            shown = shown[shown >= 0]
            out[f"shown@{k}"] = torch.bincount(shown, minlength=cohort.items)
        out["owners"] = torch.bincount(cohort.own.item, minlength=cohort.items)
        out["clients"] = torch.tensor(float(len(cohort)), dtype=torch.float64, device=top.device)
        return out, int(counted.sum())

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """Compute the means from the totals over all clients."""
        out: dict[str, float] = {}
        owners = totals["owners"].double() / totals["clients"].clamp(min=1)
        for k in self.k:
            for name in ("HR", "NDCG", "Recall", "Precision", "MRR"):
                total = float(totals[f"{name}@{k}"])
                out[f"{name}@{k}"] = total / weight if weight else float("nan")
            shown = totals[f"shown@{k}"].double()
            out[f"coverage@{k}"] = float((shown > 0).double().mean())
            out[f"popularity@{k}"] = float((shown * owners).sum() / shown.sum().clamp(min=1))
        return out


@dataclass(frozen=True)
class Owners:
    """Number of clients that own each item: the baseline of a popularity ranking."""

    split: str = "valid"
    mask: tuple[str, ...] = ()
    block: int | None = None
    wants_scores = False

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Count the owners of each item."""
        return {"owners": torch.bincount(cohort.own.item, minlength=cohort.items)}, len(cohort)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """Compute the fraction of all records that belong to the most popular 10 % of items."""
        ordered = totals["owners"].double().sort(descending=True).values
        head = ordered[: max(len(ordered) // 10, 1)].sum() / ordered.sum().clamp(min=1)
        return {"head share": float(head)}


def masked_lot(cohort: Cohort, lots: list[Lot]) -> Lot:
    """Join several lots of one cohort, for masking (duplicates are fine)."""
    none = cohort.ids.new_zeros(0)
    owner = torch.cat([none, *(lot.owner for lot in lots)])
    order = torch.argsort(owner, stable=True)
    item = torch.cat([none, *(lot.item for lot in lots)])
    return Lot(owner[order], item[order], len(cohort))
