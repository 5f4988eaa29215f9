"""Backbones, one file each: every frozen dataclass with `tables` here is found by name."""

from __future__ import annotations

from typing import Any

from rescind.core.settings import classes

MARKER = "tables"


def all_models() -> dict[str, type]:
    """Every model there is, by name."""
    return classes(__name__, MARKER)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_models()
    if name in known:
        return known[name]
    raise AttributeError(f"there is no model '{name}': there are {', '.join(known)}")
