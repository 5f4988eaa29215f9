"""ReLoop2: a small memory of recent errors corrects the scores of a model.

RLP2-R of F3CRec's Table 2 (Zhu et al., KDD 2023; a reading, baselines.md 5.4). Training is fine-
tuning; each device stores its errors by item and adds the mean error of similar items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import fast, jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast.linear import Scores
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import Private
from rescind.methods.continual.finetune import FineTune

# Similarities (clients x items x memory) held at a time: 64 MB of float32. Changes speed only.
_CELLS = 2**24
# Speed of the compiled form only: cosines sampled per row, bins they are sorted into, and rows held
# at a time (4 MB on Last.fm-2K).
_SAMPLE, _BINS, _ROWS = 256, 256, 256


@dataclass(frozen=True, kw_only=True)
class ReLoop2(FineTune):
    """Fine-tuning with an error memory on each device.

    DEPARTS Zhu et al., KDD 2023: keys are item numbers with rows from the current table, and each
    user has a memory of at most `capacity` entries of 12 bytes, so it cannot grow. F3CRec's authors
    run out of memory on HetRec2011.
    """

    notes: ClassVar[bool] = True
    paper: ClassVar[str] = "Zhu et al., KDD 2023 (a reading), as in Lim et al., CIKM 2025"

    capacity: int = 200
    """Entries per device; the oldest are dropped."""
    nearest: int = 10
    """Number of similar entries that correct a score."""
    sharpness: float = 0.1
    """Temperature of the weights of similar entries."""
    trust: float = 0.3
    """Weight of the correction, lambda."""
    least: float = 0.05
    """Smaller errors are not stored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, inf]", "capacity", "nearest", "sharpness")

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """Return an empty memory. wrong/item: [C, M], -1 where empty    wrong/error: [C, M]"""
        empty = torch.full((len(ids), self.capacity), -1, device=ids.device)
        error = torch.zeros(empty.shape, device=ids.device)
        return super().client_init(ids, clock).with_(**{"wrong/item": empty, "wrong/error": error})

    def client_note(
        self, private: Private, scores: Scores, cohort: Cohort, clock: Clock
    ) -> Mapping[str, Tensor]:
        items, train = cohort.items, cohort.train
        cell, mine = scores.owner * items + scores.item, train.owner * items + train.item
        label = _among(cell, mine, len(cohort) * items)  # drawn negatives are False
        error = label.to(scores.score.dtype) - torch.sigmoid(scores.score)
        large = error.abs() > self.least
        owner, item, error = scores.owner[large], scores.item[large], error[large]
        bits = clock.bits("error memory", cohort.ids[owner], item)
        return remembered(private, owner, item, error, bits)

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Return sigma(s) + lambda times the mean error of the most similar entries. [C, I]"""
        scores = torch.sigmoid(super().client_scores(public, private, cohort))
        if not self.trust:
            return scores
        return scores + self.trust * self.client_correction(public["item"], private)

    def client_correction(self, table: Tensor, private: Private) -> Tensor:
        """Return the mean error of similar memory entries for every item. [C, I]

        The sum of a_m e_m, a_m = softmax over the nearest of cos(q_i, q_m) / sharpness.
        """
        unit = functional.normalize(table, dim=1)
        item, error = private["wrong/item"], private["wrong/error"].to(unit.dtype)
        if fast.compiled() and unit.device.type == "cpu":
            return self._compiled(unit, item, error)
        near = unit @ unit.T
        together = max(1, _CELLS // max(1, len(near) * self.capacity))
        cuts = torch.split(torch.arange(len(item), device=item.device), together)
        parts = [self._plain(near, item[cut], error[cut]) for cut in cuts]
        return torch.cat(parts) if parts else near.new_zeros((0, len(near)))

    def _plain(self, near: Tensor, item: Tensor, error: Tensor) -> Tensor:
        mine = torch.where((item >= 0).unsqueeze(2), near[item.clamp(min=0)], -torch.inf)
        value, at = mine.topk(min(self.nearest, item.shape[1]), dim=1)
        weight = torch.softmax(value / self.sharpness, 1).nan_to_num(0.0)  # an empty memory
        wrong = error.unsqueeze(2).expand(-1, -1, len(near)).gather(1, at)
        return (weight * wrong).sum(1)

    def _compiled(self, unit: Tensor, item: Tensor, error: Tensor) -> Tensor:
        from rescind.methods.continual import _reloop2_kernels as memory_kernels

        items, clients, kept = len(unit), len(item), int((item >= 0).sum())
        number, wide = unit.numpy().dtype, np.uint64  # unsigned indices need no check for -1
        memory = np.empty(clients + 1, np.int64), np.empty(kept, np.uint32), np.empty(kept, number)
        lists = np.zeros(items + 1, wide), np.empty(kept, np.uint32), np.empty(kept, number)
        memory_kernels.listed(item.numpy(), error.numpy(), *memory, *lists)
        scratch = (
            np.empty(_BINS, np.int64), np.empty(_BINS, np.int64),
            np.empty(items + 1, np.uint32), np.empty(items, np.uint32), np.empty(items, number),
            np.empty(clients, np.int64), np.empty((2, clients)), np.empty((2, self.nearest)),
        )  # fmt: skip
        out = unit.new_empty((clients, items))
        for start, rows in zip(range(0, items, _ROWS), torch.split(unit, _ROWS), strict=True):
            memory_kernels.corrections(
                (rows @ unit.T).numpy(), start, memory, lists, self.nearest, self.sharpness,
                max(1, items // _SAMPLE), scratch, out.numpy(),
            )  # fmt: skip
        return out


def remembered(
    private: Private, owner: Tensor, item: Tensor, error: Tensor, bits: Tensor
) -> dict[str, Tensor]:
    """Add new entries in front of the memory, one per item; drop the oldest.

    New entries of one round are ordered by random bits, independent of the cohort.
    owner, item, error, bits: [n] new entries, sorted by owner
    """
    held, errors = private["wrong/item"], private["wrong/error"]
    clients, capacity = held.shape
    added = jagged.counts(owner, clients)
    # Owners keep their order; only new entries that fit are used.
    at = jagged.places(owner, clients)
    fits = at < capacity
    order = jagged.shuffle(bits, owner)[fits]
    owner, at, item, error = owner[fits], at[fits], item[order], error[order].to(errors)
    there = (held >= 0) & (added < capacity).unsqueeze(1)  # else new entries fill it
    old_owner, place = there.nonzero(as_tuple=True)
    old = held[old_owner, place]
    width = 1 + int(max(item.max() if len(item) else 0, old.max() if len(old) else 0))
    stale = _among(old_owner * width + old, owner * width + item, clients * width)
    old_owner, place = old_owner[~stale], place[~stale]
    old_at = added[old_owner] + jagged.places(old_owner, clients)
    fits = old_at < capacity
    old_owner, place, old_at = old_owner[fits], place[fits], old_at[fits]
    new_item, new_error = torch.full_like(held, -1), torch.zeros_like(errors)
    new_item[owner, at], new_error[owner, at] = item, error
    new_item[old_owner, old_at] = held[old_owner, place]
    new_error[old_owner, old_at] = errors[old_owner, place]
    return {"wrong/item": new_item, "wrong/error": new_error}


def _among(cell: Tensor, wanted: Tensor, cells: int) -> Tensor:
    """Return which cells are wanted, by a table: `torch.isin` would sort. [n] bool"""
    there = torch.zeros(cells, dtype=torch.bool, device=cell.device)
    there[wanted] = True
    return there[cell]
