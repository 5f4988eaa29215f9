"""Compile what answers need before anybody asks: the first call of a kernel takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rescind.ledger.release_worker import Copy, make_here

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

ITEMS, PEOPLE, EACH = 24, 12, 8


def warm_up(ledger: Ledger) -> None:
    """Play a few people on a sum of its own, as this ledger's options are; nothing is kept."""
    live = type(ledger.live)(ITEMS, min_count=ledger.options.min_count)
    nothing = np.empty(0, np.int32)
    loans = [np.sort(np.unique((np.arange(EACH) * 3 + n) % ITEMS)).astype(np.int32)
             for n in range(PEOPLE)]  # fmt: skip
    for n, items in enumerate(loans):
        live.change(bytes([n]), nothing, items)
    live.change(b"\x00", loans[0], loans[0][1:].copy())
    live.change(b"\x00", loans[0][1:].copy(), loans[0][2:].copy())
    if ledger.options.instant:
        live.ready().recommend(loans[1], 5)
        return
    copy = Copy.of(*live.settle())
    form = ledger.releases.form
    weights = make_here(copy, [str(n) for n in range(ITEMS)], form).weights
    weights.reasoned(loans[1], 5)
    weights.recommend(loans[1], 5)
