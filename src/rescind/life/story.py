"""The story: what happens in which block, made from a seed, as a file of events with a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Event
from rescind.data import GraphDataset
from rescind.storage.events import named_event

FORMAT = "rescind life 1"
LEARN = ("back", "arrive", "lend")
"""Steps from which methods learn. All others are requests to forget."""


@dataclass(frozen=True)
class Step:
    """Some events that belong together, and why they happen."""

    block: int
    why: str
    """One of `LEARN`, or unshare, erase, withdraw, burst, silo, item."""
    events: tuple[Event, ...]

    @property
    def asks(self) -> bool:
        """Return whether it is a request to forget."""
        return self.why not in LEARN


@dataclass(frozen=True)
class Story:
    """All steps, in order, and what they are about."""

    about: Mapping[str, Any]
    """dataset, digest of the data, task, seed, blocks, users, items."""
    steps: tuple[Step, ...]
    labels: Labels = field(repr=False)
    graph: GraphDataset | None = field(default=None, repr=False)
    """The graph, if the story is of nodes."""

    @property
    def users(self) -> int:
        return int(self.about["users"])

    @property
    def items(self) -> int:
        return int(self.about["items"])

    @property
    def blocks(self) -> int:
        return int(self.about["blocks"])

    def of_block(self, block: int) -> tuple[list[Step], list[Step]]:
        """Return the steps of a block: those to learn from, and the requests."""
        mine = [step for step in self.steps if step.block == block]
        return [s for s in mine if not s.asks], [s for s in mine if s.asks]

    @cached_property
    def text(self) -> str:
        """The file: a line that says what it is about, then one line per step."""
        lines = [json.dumps({"format": FORMAT, **self.about})]
        for step in self.steps:
            events = [named_event(event, self.labels) for event in step.events]
            lines.append(json.dumps({"block": step.block, "why": step.why, "events": events}))
        return "\n".join(lines) + "\n"

    @cached_property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.text.encode()).hexdigest()}"

    def write(self, path: Path) -> None:
        """Write the file."""
        write_atomically(path, self.text.encode())
