"""One file per method: the command line and the tests find every `Method` in a module here."""

from __future__ import annotations

from typing import Any

from rescind.core.settings import classes

MARKER = "server_sample"


def all_methods() -> dict[str, type]:
    """Every method there is, by name."""
    return classes(__name__, MARKER)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_methods()
    if name in known:
        return known[name]
    raise AttributeError(f"there is no method '{name}': there are {', '.join(known)}")
