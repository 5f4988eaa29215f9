"""Work of a silo between two rounds, and the ids of its saved states.

A *moment* is the id of a saved state of a silo, either of its holdings or of its private values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from rescind.core.params import Params
from rescind.core.records import Event

HELD, PRIVATE = "held", "private"
MOMENT = "moment"
"""The only private value of a remote vault: [silos] the private moment of each silo."""


@dataclass(frozen=True, eq=False)
class Step:
    """An event that a silo has not acknowledged yet, and the moments it starts from.

    The moments it leads to are known in advance. So the server can continue, go back and train
    again from there before the silo has taken the step.
    """

    silo: int
    event: Event
    held: int
    private: int
    public: Params = field(default_factory=dict)
    """The model at the end of a block: devices use it for the next one, however late they are."""

    @property
    def after(self) -> tuple[int, int]:
        """Return the moments it leads to: (holdings, private)."""
        name = f"{self.held}/{self.private}/{self.event.digest()}"
        return moment_of(name, HELD), moment_of(name, PRIVATE)


def opened(held: int, left_out: Iterable[Event], clients: int, items: int) -> int:
    """Return the moment of holdings with which devices start again, known in advance."""
    for event in left_out:
        held = moment_of(f"{held}/never/{event.digest()}", HELD)
    return moment_of(f"{held}/{clients}/{items}", HELD)


def moment_of(text: str, kind: str) -> int:
    """Return the id of a moment: 62 bits of a digest of how it was computed."""
    digest = hashlib.blake2b(f"{kind}/{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
