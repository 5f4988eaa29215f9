"""What a run over silos was asked to do, as it travels to the process that does it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

SILO = "silo"
"""The one key of a node's configuration: where its resident process listens, in hexadecimal."""
LOG = "server.log"
"""Where a run says how it is doing, in its own folder."""
ASKED = "asked"
"""The one key of a run's configuration: what `rescind flower run` was told, as JSON."""


@dataclass(frozen=True)
class RunRequest:
    """A cell of a recipe over silos."""

    recipe: str
    silos: int
    out: str
    cell: str | None = None
    changes: tuple[str, ...] = ()
    deadline: float = 300.0
    """Seconds in which a silo must answer."""
    wait: float = 300.0
    """Seconds in which all silos must have joined."""
    least: float = 0.5
    """Share of the silos that a round needs to count."""
    resume: bool = False
    take_back: int | None = None
    """After training, this client takes back everything it lent."""
    withdraw: int | None = None
    """After training, this client leaves."""
    erase: tuple[int, tuple[int, ...]] | None = None
    """After training, this client erases these items."""
    unlearner: str | None = None
    """The method that forgets; the learner's own way unless given."""
    masked: float | None = None
    """Silos mask their sums, whose entries are at most this large; None: they do not."""

    @property
    def requests(self) -> str:
        """What was asked to be forgotten, and by whom."""
        return json.dumps([self.take_back, self.withdraw, self.erase, self.unlearner])

    def to_json(self) -> str:
        """For the run's configuration."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunRequest:
        """What `to_json` wrote."""
        told = json.loads(text)
        if told["erase"] is not None:
            told["erase"] = (told["erase"][0], tuple(told["erase"][1]))
        return cls(**{**told, "changes": tuple(told["changes"])})
