"""Backbone models, one file each: frozen dataclasses with `tables` are found by name."""

from __future__ import annotations

from typing import Any

from rescind.core.settings import classes

MARKER = "tables"


def all_models() -> dict[str, type]:
    """Return all models by name."""
    return classes(__name__, MARKER)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_models()
    if name in known:
        return known[name]
    raise AttributeError(f"unknown model '{name}'. Allowed: {', '.join(known)}.")
