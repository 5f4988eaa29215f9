"""Name the right argument where a wrong one was given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from rescind.errors import ConfigError, suggest

F = TypeVar("F", bound=Callable[..., Any])


def hinted(method: F) -> F:
    """Let a method answer an unknown keyword with the nearest of its own."""
    known = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        for name in named:
            if name not in known:
                raise ConfigError(f"{method.__name__} has no '{name}'; {suggest(name, known)}")
        return method(*given, **named)

    return cast(F, call)
