"""Functions of a method leave their arguments as they are.

A federation is a value: restore points, the best round and a model that is trained again share
tensors with the state that a function gets. One that is changed in place would be changed there,
too, and forgetting would not be exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from rescind.errors import BoundaryError

COPIED = 64 << 20
"""Bytes of a tensor up to which it is compared by its values. Of all others, and where a copy would
cost too much, torch counts the changes; it does not see those through numpy or `.data`."""


class Unchanged:
    """The tensors in the arguments of one call, as they are before it."""

    def __init__(self, given: Mapping[str, Any], copy: bool) -> None:
        """given: arguments by name    copy: also compare values"""
        found = {id(tensor): (place, tensor) for place, tensor in _tensors(given)}
        self.before = [
            (place, tensor, changes_of(tensor), _copy(tensor, copy))
            for place, tensor in found.values()
        ]

    def check(self, name: str) -> None:
        """Refuse a function, given by name, that has changed one of them."""
        for place, tensor, version, values in self.before:
            changed = values is not None and not _same(tensor, values)
            if changed or changes_of(tensor) != version:
                raise BoundaryError(
                    f"{name} changed its argument {place} in place, which restore points share. "
                    f"Write new = old + step, not old += step, or work on old.clone()."
                )


def changes_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 of one of inference mode: nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def _copy(tensor: Tensor, asked: bool) -> Tensor | None:
    wanted = asked or tensor.is_inference()
    return tensor.detach().clone() if wanted and tensor.nbytes <= COPIED else None


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _tensors(given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield what arguments hold, with the words by which their author reaches it."""
    todo: list[tuple[str, Any]] = [*given.items()]
    seen = set[int]()
    while todo:
        place, value = todo.pop()
        if isinstance(value, Tensor):
            yield place, value
        elif id(value) in seen:
            continue
        elif isinstance(value, dict):  # other mappings may be read from a disk
            todo += [(f"{place}[{name!r}]", one) for name, one in value.items()]
        elif isinstance(value, tuple | list):
            todo += [(f"{place}[{n}]", one) for n, one in enumerate(value)]
        elif is_dataclass(value):
            known = [f.name for f in fields(value) if hasattr(value, f.name)]
            todo += [(f"{place}.{name}", getattr(value, name)) for name in known]
        seen.add(id(value))
