"""`rs.SeqGram`: what people have next, from sums of ordered pairs. Forgets by subtraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core.cohort import Cohort, Lot
from rescind.core.state import Private
from rescind.estimators.frames import Ints
from rescind.estimators.ranker import Ranker
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive import seq_gram
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive._solving import ROWS


@dataclass(kw_only=True, eq=False, repr=False)
class SeqGram(Ranker):
    """Recommend what comes next, from the order in which people had items; no federation.

    The model is that of `rs.methods.SeqGram`, the method of a federation, which says how it counts;
    here all records are in one place. Records need times, whole numbers or dates; only their order
    counts, and items of one time share a place. A pair that comes twice counts at its first time.

        m = rs.SeqGram.sequences().fit(frame)    # columns user, item and time
        m.forget(records=[("bob", "film 3")])    # also inside a sequence
        m.recommend(history=["film 1", "film 9"], k=5)
    """

    timed: ClassVar[bool] = True

    ridge: float = 30.0
    """As in `rs.methods.SeqGram`; so are all settings."""
    ridge_per_item: float = 0.3
    ridge_power: float = 1.0
    own_power: float = 0.0
    shown_power: float = 0.5
    sharpen: float = 1.0
    near: float = 10.0
    far: float = 160.0
    back: float = 0.5
    recent: float = 8.0
    floor: float = 0.1
    power: float = 0.25
    far_share: float = 0.0
    far_ridge: float = 30.0
    far_sharpen: float = 0.7
    far_recent: float = 20.0
    max_items: int = 20_000
    """Largest catalogue allowed: 16 bytes per ordered pair, and 32 more while solving."""

    @classmethod
    def sequences(cls, **settings: Any) -> SeqGram:
        """Return SeqGram for the next item of a sequence, with two time scales (docs/sequences.md).

        The settings are those of `rs.methods.SeqGram.sequences()`.
        """
        return cls(**{**seq_gram.SEQUENCES, **settings})

    def _method(self) -> seq_gram.SeqGram:
        return seq_gram.SeqGram(**self._checked())

    def _counting(self) -> Any:
        return self.near, self.far, self.power

    def _shape(self, slots: int) -> tuple[int, ...]:
        return (slots**2, 2)

    def _count(self, total: Tensor, lot: Lot, sign: int) -> None:
        signs = torch.full((lot.clients,), sign)
        ordered.add_sequences(total, lot, signs, self._method().nearness)

    def _in_order(self, slot: Ints) -> Tensor:
        at, total = torch.from_numpy(slot), self._state.total
        out, every = total.new_empty(len(at) ** 2, 2), torch.arange(len(at))
        for begin in range(0, len(at), ROWS):
            row = every[begin : begin + ROWS, None]
            out[ordered.shell(row, every)] = total[ordered.shell(at[row], at[every])]
        return out

    def _solve(self, total: Tensor) -> Tensor:
        if not len(total):
            return torch.zeros(0, 0)
        return self._method().server_weights({"gram/0000": total})

    def _scores(self, weights: Tensor, lot: Lot) -> Tensor:
        cohort = Cohort(torch.arange(lot.clients), weights.shape[-1], lot, lot)
        return self._method().client_scores({WEIGHTS: weights}, Private({}), cohort)
