"""Backbones, one file each: every frozen dataclass with `tables` here is found by name."""

from __future__ import annotations

from typing import Any

from rescind.core.settings import classes


def all_models() -> dict[str, type]:
    return classes(__name__, "tables")


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_models()
    if name in known:
        return known[name]
    raise AttributeError(f"there is no model '{name}'. There are {', '.join(known)}.")


def __dir__() -> list[str]:
    return sorted([*all_models(), "all_models"])
