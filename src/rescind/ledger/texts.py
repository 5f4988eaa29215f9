"""Texts that a database cannot keep. PostgreSQL has no NUL in a text, and SQLite cuts some there.

The error would come with the commit, when nobody knows any more whose text it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from rescind.errors import ConfigError


def unkeepable(value: Any) -> ConfigError | None:
    """Return why an operation, or a value in it, cannot be kept; None if it can."""
    if isinstance(value, str):
        wrong = "\0" in value
        return (
            ConfigError("a text has the character NUL (0) in it. Leave it out.") if wrong else None
        )
    if isinstance(value, Mapping):
        inside: Sequence[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        inside = value if value and not isinstance(value[0], int) else ()  # items are many
    else:
        inside = tuple(vars(value).values()) if is_dataclass(value) else ()
    return next((found for one in inside if (found := unkeepable(one)) is not None), None)
