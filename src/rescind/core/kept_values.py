"""Values that a method from outside keeps between calls: in its file, class, functions or object.

They would go from one seed to the next, and from a model to the one that is trained again without
somebody, so that forgetting would not be exact. What counts is that they change during a call.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from rescind.core.in_place import changes_of
from rescind.core.returns import ours

Kept = dict[tuple[str, str], tuple[int, int]]
"""By place and name: which value it is, and how often it changed."""

Diaries = list[tuple[str, list[Any], list[Any]]]
"""Lists that calls may grow: name, the list, and what it has without these calls."""

_NOBODYS = {*sys.stdlib_module_names, "torch"}
_NO_VALUES = (type, ModuleType, FunctionType, cached_property)
_OURS = {"held_to", "__wrapped__"}
"""What wrapping puts on a function (`returns`)."""


def kept_by(method: object) -> Kept:
    """Return what a method from outside keeps.

    A list may grow: people collect in one what they want to look at later (`diaries`).
    """
    return {
        (place, name): (id(value), _changes(value))
        for place, name, value in _values(method)
        if not isinstance(value, _NO_VALUES)
    }


@contextmanager
def diaries(method: object) -> Iterator[Diaries]:
    """Give the lists that a method keeps, and note what a call in the block leaves in them.

    What a list has when a call begins is its author's, unless calls have left just that: then it
    is what it had before the first of these.
    """
    found = [
        (name, value, _before(value))
        for _, name, value in _values(method)
        if isinstance(value, list) and (len(value) <= DATA or id(value) in _LEFT)
    ]
    try:
        yield found
    finally:
        for _, kept, first in found:
            if _same(kept, first):
                _LEFT.pop(id(kept), None)
            else:
                _LEFT[id(kept)] = (kept, first, [*kept])


@contextmanager
def without_calls(lists: Diaries) -> Iterator[None]:
    """Let lists be as no call has changed them; put back what they have.

    An answer that differs then comes from what an earlier call left in them.
    """
    now = [[*kept] for _, kept, _ in lists]
    for _, kept, first in lists:
        kept[:] = first
    try:
        yield
    finally:
        for (_, kept, _), content in zip(lists, now, strict=True):
            kept[:] = content


DATA = 10_000
"""A list with more entries, when it is seen first, is data: to copy it in each call costs much."""
_LEFT: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}
"""By identity: a list, so that nothing else gets its identity, what it had before calls changed it,
and what they left in it."""


def _before(kept: list[Any]) -> list[Any]:
    _, first, left = _LEFT.get(id(kept), (kept, kept, kept))
    return first if first is not kept and _same(kept, left) else [*kept]


def _same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(map(operator.is_, one, two))


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
    if not isinstance(written, FunctionType):  # what torch.func or functools wraps may be built in
        return
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
        return changes_of(value)
    return len(value) if isinstance(value, dict | set) else 0
