"""The place of privacy guards: on each client's update before the sum, and on the sum.

A guard that bounds (clipping) acts in `each`. A guard that adds noise acts in `each` where single
updates leave the devices, and otherwise once in `total`, by one draw of the summed law. Noise
comes from the operating system's entropy, never from the clock.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rescind.update import Sum, Update


class Guard(Protocol):
    """Something between the devices and the server."""

    def each(self, update: Update, leaves: bool) -> Update:
        """The update with each client's part made safe; `leaves`: single updates are sent on."""
        ...

    def total(self, total: Sum) -> Sum:
        """The sum of a role made safe; called only where single updates do not leave."""
        ...


def gate(update: Update, limit: float) -> tuple[Update, Tensor, dict[str, int]]:
    """Refuse updates that are not finite or of absurd norm.

    Returns the update without them, who is kept [C] bool, and how many were refused by reason.
    """
    norms = update.norms()
    finite = torch.isfinite(norms)
    small = norms <= limit
    kept = finite & small
    if bool(kept.all()):
        return update, kept, {}
    reasons = {
        "not finite": int((~finite).sum()),
        f"norm above {limit:g}": int((finite & ~small).sum()),
    }
    return update.only(kept), kept, {r: n for r, n in reasons.items() if n}
