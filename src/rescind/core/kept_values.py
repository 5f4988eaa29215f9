"""Values that a method from outside keeps between calls: in its file, class, functions or object.

They would go from one seed to the next, and from a model to the one that is trained again without
somebody, so that forgetting would not be exact. What counts is that they change during a call.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from rescind.core.returns import ours

Kept = dict[tuple[str, str], tuple[int, int]]
"""By place and name: which value it is, and how often it changed."""

_NOBODYS = {*sys.stdlib_module_names, "torch"}
_NO_VALUES = (type, ModuleType, FunctionType, cached_property)
_OURS = {"held_to", "__wrapped__"}
"""What wrapping puts on a function (`returns`)."""


def kept_by(method: object) -> Kept:
    """Return what a method from outside keeps.

    A list may grow: people collect in one what they want to look at later (`as_loaded`).
    """
    return {
        (place, name): (id(value), _changes(value))
        for place, name, value in _values(method)
        if not isinstance(value, _NO_VALUES)
    }


@contextmanager
def as_loaded(method: object) -> Iterator[None]:
    """Let the lists that a method keeps be as they were at first; put back what they had.

    An answer that differs then comes from what an earlier call left in them.
    """
    now = [(kept, [*kept]) for kept in _lists(method)]
    for kept, _ in now:
        kept[:] = _AT_FIRST[id(kept)][1]
    try:
        yield
    finally:
        for kept, content in now:
            kept[:] = content


def note_lists(method: object) -> None:
    """Note what the lists of a method have before it is called for the first time."""
    for kept in _lists(method):
        _AT_FIRST.setdefault(id(kept), (kept, [*kept]))


_AT_FIRST: dict[int, tuple[list[Any], list[Any]]] = {}
"""By identity: a list, so that nothing else gets its identity, and what it had."""


def _lists(method: object) -> list[list[Any]]:
    return [value for *_, value in _values(method) if isinstance(value, list)]


def _values(method: object) -> Iterator[tuple[str, str, Any]]:
    """Yield place, name and value of everything that outlives a call."""
    for part in (method, getattr(method, "model", method)):
        for cls in type(part).__mro__:
            if ours(cls) or cls.__module__.partition(".")[0] in _NOBODYS:
                continue
            file = sys.modules.get(cls.__module__)
            for place, values in (("", vars(file) if file else {}), (cls.__qualname__, vars(cls))):
                for name, value in [*values.items()]:
                    if name[:2] == "__":
                        continue
                    yield f"{cls.__module__} {place}", name, value
                    if isinstance(value, FunctionType) and not ours(value):
                        yield from _of_function(f"{cls.__module__} {place}.{name}", value)
        yield from _of_object(part)


def _of_function(place: str, function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Yield what a function has: values set on it, and defaults that can change."""
    written: Any = inspect.unwrap(function)
    for name, value in vars(written).items():
        if name not in _OURS:
            yield place, f"{written.__name__}.{name}", value
    code, given = written.__code__, written.__defaults__ or ()
    last = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    for name, value in (*zip(last, given, strict=True), *(written.__kwdefaults__ or {}).items()):
        if isinstance(value, dict | set | list | Tensor):
            yield place, name, value


def _of_object(part: object) -> Iterator[tuple[str, str, Any]]:
    """Yield what was put into a method beside its settings."""
    if ours(type(part)) or not is_dataclass(part):
        return
    for name in vars(part).keys() - {field.name for field in fields(part)}:
        if not isinstance(inspect.getattr_static(type(part), name, None), cached_property):
            yield "an object", name, vars(part)[name]


def _changes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value._version
    return len(value) if isinstance(value, dict | set) else 0
