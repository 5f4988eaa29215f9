"""Learners and unlearners: the command line and the tests find every class in a module here.

Adding a method is adding one file, here or anywhere else (`_outside.py`). Modules and packages
whose names begin with _ hold none.
"""

from __future__ import annotations

from typing import Any

from rescind.core.settings import classes, look_also, sought
from rescind.methods._outside import Outside

look_also(Outside())


def all_methods() -> dict[str, type]:
    return classes(__name__, "server_sample")


def all_unlearners() -> dict[str, type]:
    """Return everything that can forget, by name: learners, and classes that only forget."""
    return classes(__name__, "unlearn")


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_unlearners()
    if name in known:
        return known[name]
    outside = sought(__name__, "unlearn", name)
    if outside is not None and outside.__name__ == name:
        return outside
    raise AttributeError(f"there is no method '{name}'. There are {', '.join(known)}.")


def __dir__() -> list[str]:
    return sorted([*all_unlearners(), "all_methods", "all_unlearners"])
