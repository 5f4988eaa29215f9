"""How an import's advice names a setting: as an argument in Python, as an option in a command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_IN_COMMAND: ContextVar[bool] = ContextVar("in_command", default=False)


@contextmanager
def as_options() -> Iterator[None]:
    """Name settings as options of the command line in here."""
    before = _IN_COMMAND.set(True)
    try:
        yield
    finally:
        _IN_COMMAND.reset(before)


def setting(name: str, value: Any) -> str:
    """Return how to give a setting: `drop_bad_rows=True`, or `--drop-bad-rows`."""
    if not _IN_COMMAND.get():
        return f"{name}={value!r}"
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    values = value if isinstance(value, list) else [value]
    return " ".join(f"--{option} {shlex.quote(str(one))}" for one in values)


def column(role: str, name: str = "COLUMN") -> str:
    """Return how to name the column of a role: `columns={'user': 'who'}`, or `--user who`."""
    return columns_of({role: name})


def columns_of(names: Mapping[str, str]) -> str:
    """Return how to name the columns of several roles."""
    if not _IN_COMMAND.get():
        return setting("columns", dict(names))
    return " ".join(setting(role, name) for role, name in names.items())
