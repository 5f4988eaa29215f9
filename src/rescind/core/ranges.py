"""Check that settings are in range."""

from __future__ import annotations

import math

from rescind.errors import ConfigError


def must_lie(settings: object, interval: str, *fields: str) -> None:
    """Raise unless these settings lie in an interval, such as "(0, 1]"; "inf)": finite."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for field in fields:
        value = getattr(settings, field)
        above = value > low if interval[0] == "(" else value >= low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):  # also for NaN
            least = f"{'above' if interval[0] == '(' else 'at least'} {low:g}"
            most = f"{'at most' if interval[-1] == ']' else 'below'} {high:g}"
            limits = least if high == math.inf else f"{least} and {most}"
            raise ConfigError(f"{type(settings).__name__}.{field} must be {limits}; got {value}.")
