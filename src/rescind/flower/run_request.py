"""The settings of a run over silos, as sent to the server process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rescind.requests.words import Words

SILO = "silo"
"""The only key of a node's configuration: path of its resident process's socket, in hex."""
LOG = "server.log"
"""Log file in a run's folder."""
ASKED = "asked"
"""The only key of a run's configuration: path of a file with its `RunRequest` (handed_over.py)."""


@dataclass(frozen=True)
class RunRequest:
    """A cell of a recipe to run over silos, and requests to forget after training."""

    recipe: str
    silos: int
    out: str
    cell: str | None = None
    changes: tuple[str, ...] = ()
    deadline: float = 300.0
    """Seconds a silo has to reply."""
    wait: float = 300.0
    """Seconds to wait until all silos have joined."""
    least: float = 0.5
    """Fraction of the silos that must reply, or the round is abandoned."""
    resume: bool = False
    requests: tuple[Words, ...] = ()
    """Answered after training, one after another. A run that is finished is not trained again."""
    at: int | None = None
    """Whose people are meant, if several silos have the same ids; None: only one has."""
    unlearner: str | None = None
    """The method that forgets. Default: the learner's own."""
    masked: float | None = None
    """Largest entry of a masked sum; None: sums are not masked."""
    limit: float = 1000.0
    """Largest norm of an update, as a mean over a silo's clients."""
    trim: float = 0.0
    """Fraction of silos left out at each end of a trimmed mean; 0: plain means."""
    roster: str | None = None
    """The public folder for the lines of all devices (docs/proof.md); None: no roster."""
    log: str | None = None
    """The folder of the log that states them. Default: log/ beside the server's keys."""

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> RunRequest:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        requests = tuple(map(_words, fields["requests"]))
        return cls(**{**fields, "changes": tuple(fields["changes"]), "requests": requests})


def _words(fields: Mapping[str, Any]) -> Words:
    records = {user: items and tuple(items) for user, items in fields["records"].items()}
    days = {
        name: datetime.fromisoformat(fields[name]) for name in ("received", "due") if fields[name]
    }
    return Words(**{**fields, "records": records, **days})


def silo_names(silos: Iterable[int]) -> str:
    """Return silos as people read them: "silo 1", "silos 0, 2"."""
    numbers = sorted(silos)
    return f"silo{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
