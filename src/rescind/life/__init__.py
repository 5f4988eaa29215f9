"""LIFE: a benchmark in which people join, lend, regret, leave and come back while blocks arrive.

`story` says what happens, `ledger` what is true after each step, `entry` what a method must be
able to do, `rows` which methods take part, `audit` how far they are from never-there, `run` plays.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Arrival": "entry",
    "Asked": "entry",
    "Entry": "entry",
    "Refit": "adapters",
    "Setting": "entry",
    "Story": "story",
    "play": "run",
    "verify": "lines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"rescind.life has no '{name}'. It has {', '.join(sorted(_HOME))}.")
    return getattr(importlib.import_module(f"rescind.life.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
