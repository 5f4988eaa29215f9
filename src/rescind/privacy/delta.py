"""The delta at which epsilon is stated. Needs no torch."""

from __future__ import annotations

from rescind.errors import ConfigError

DELTA = 1e-5
"""Delta if none is given: below 1 / clients for all datasets here."""


def check_delta(delta: float) -> None:
    """Raise ConfigError if delta is not between 0 and 1."""
    if not 0 < delta < 1:
        hint = "Choose one well below 1 / (number of clients), for example 1e-5."
        raise ConfigError(f"delta must lie between 0 and 1, got {delta}. {hint}")
