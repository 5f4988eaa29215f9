"""What a silo does between two rounds, as the server asks for it, and names of moments."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rescind.core.params import Params
from rescind.core.records import Event

HELD, PRIVATE = "held", "private"
MOMENT = "moment"
"""The one private value of a vault elsewhere: [silos] which private moment each silo is at."""


@dataclass(frozen=True, eq=False)
class Step:
    """An event that a silo has not acknowledged yet, and the moments that it follows on.

    What comes of it has its name already, so that the server can go on, come back and train again
    from there, whenever the silo takes the step.
    """

    silo: int
    event: Event
    held: int
    private: int
    public: Params = field(default_factory=dict)
    """The model that a block ended with: devices turn with it, however late."""

    @property
    def after(self) -> tuple[int, int]:
        """The moments that it leads to: of holdings, and private."""
        name = f"{self.held}/{self.private}/{self.event.digest()}"
        return moment_of(name, HELD), moment_of(name, PRIVATE)


def moment_of(text: str, kind: str) -> int:
    """The name of a moment: 62 bits of a digest of how it came about."""
    seen = hashlib.blake2b(f"{kind}/{text}".encode(), digest_size=8).digest()
    return int.from_bytes(seen, "little") >> 2
