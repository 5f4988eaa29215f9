"""AutoGram: Gram, or LocalGram if the catalogue is large."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import ClassVar

from rescind.core.method import Method
from rescind.methods.additive._solve import seconds_to_solve
from rescind.methods.additive.gram import DENSE_ITEMS, PAIR_BYTES, Gram
from rescind.methods.additive.local_gram import LocalGram

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AutoGram(Gram):
    """Gram up to 10,000 items, LocalGram above (`DENSE_ITEMS`); in a recipe, also "auto".

    A federation that starts with it has one of the two as its method, with the settings that were
    changed here.
    """

    paper: ClassVar[str] = "ours; chooses between Gram and LocalGram"

    def for_items(self, items: int) -> Method:
        names = [field.name for field in fields(self) if field.init]
        if items <= DENSE_ITEMS:
            return Gram(**{name: getattr(self, name) for name in names})
        new = AutoGram()
        changed = {n: getattr(self, n) for n in names if getattr(self, n) != getattr(new, n)}
        return LocalGram(**changed)

    def say_choice(self, items: int) -> None:
        """Log which method a catalogue gets; as a warning if it keeps neighbours only."""
        if items > DENSE_ITEMS:
            log.warning("%s", why_local(items))
        else:
            log.info("%s items: Gram is used, with all pairs.", f"{items:,}")


def why_local(items: int, most: int = DENSE_ITEMS) -> str:
    """Return in a line why neighbours are used instead of all pairs."""
    need, time = PAIR_BYTES * items * items / 1e9, seconds_to_solve(items)
    return (
        f"{items:,} items are more than {most:,}: all pairs would take {need:.1f} GB and about "
        f"{time:,.0f} CPU s for each solve, so LocalGram is used, with the "
        f"{LocalGram().model.many} nearest neighbours of each item."
    )
