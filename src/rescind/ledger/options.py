"""What an operator may choose about a running service."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rescind.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Settings of releases, deadlines and waiting. Defaults: the specification of the service."""

    people: int = 200
    """A release is due when this many people of the last one have other loans now."""
    least_hours: float = 24.0
    """And when the last one is so old: one burst of changes cannot choose the moment."""
    hours: float = 336.0
    """A release is due so long after the first change, with fewer people: receipts say so. Two
    weeks are half of what the law gives."""
    neighbours: int = 200
    """Weights per item that a release keeps."""
    min_count: int = 5
    """Items that fewer people lend are hidden in what is served: a rare item names its owners."""
    rounding: float = 2.0
    """Step of the weights in a release, by their mean size; 0: none. docs/results/difference.md
    measures what it hides and what it costs."""
    instant: bool = False
    """Whether a change shows at once in what is served (demonstrations, trusted groups)."""
    noise: float | None = None
    """Noise multiplier of a schedule of releases (`ledger.noising`); None: no noise, no epsilon."""
    noise_releases: int = 365
    """Releases of the schedule; after them no release is made."""
    noise_changes: int = 3
    """Parts of one person that the schedule covers: coming is one, each change one more."""
    noise_delta: float = 1e-6
    """Delta of the stated epsilon; choose it well below 1 / people."""
    deadline_days: int = 30
    """Days until a request must be fulfilled."""
    cosign_wait: float = 30.0
    """Seconds that a receipt's proof waits for witnesses."""
    accept_lost_keys: bool = False
    """Whether a start goes on without the keys of its ledger: every loan is dropped then."""
    sweep: bool = True
    """Whether a start destroys keys without a box. False is for the test that shows why."""

    def __post_init__(self) -> None:
        allowed = {
            "people": (self.people >= 1, "1 or more"),
            "least_hours": (self.least_hours >= 0, "0 or more"),
            "hours": (self.hours >= self.least_hours, f"{self.least_hours} or more"),
            "neighbours": (self.neighbours >= 1, "1 or more"),
            "min_count": (self.min_count >= 1, "1 or more"),
            "rounding": (self.rounding >= 0, "0 or more"),
            "deadline_days": (self.deadline_days >= 1, "1 or more"),
            "cosign_wait": (self.cosign_wait >= 0, "0 or more"),
        }
        if self.noise is not None:
            allowed |= {
                "noise": (0 < self.noise < math.inf, "above 0 and finite"),
                "noise_releases": (1 <= self.noise_releases <= 1000, "from 1 to 1,000"),
                "noise_changes": (self.noise_changes >= 1, "1 or more"),
                "noise_delta": (0 < self.noise_delta < 1, "between 0 and 1"),
                "instant": (not self.instant, "left out: the instant form has no noise"),
            }
        for name, (fits, what) in allowed.items():
            if not fits:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be {what}.")
