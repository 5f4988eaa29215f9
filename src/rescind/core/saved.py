"""What saved files hold, stated as data: names, kinds, shapes and ranges of their values.

A digest tells that a file is as it was written, not who wrote it. So values are compared with what
their kind states before anything is computed from them: compiled code does not look where it reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescind.core.headers import FOREIGN
from rescind.errors import DataError, RescindError

Id = str | int
"""An original id."""
Shape = tuple[int | str, ...]
"""Lengths; a name stands for one length, whatever it is, everywhere in a file."""


@dataclass(frozen=True)
class Values:
    """What one tensor is."""

    kind: torch.dtype
    shape: Shape
    low: float = -math.inf
    """Least value."""
    below: float | str = math.inf
    """All values are smaller; a name stands for a length. Of fractions: they are finite."""


@dataclass(frozen=True)
class Ids:
    """Distinct original ids as text, `ids_as_bytes`. Their number is a length of this name."""


Schema = Mapping[str, Values | Ids]


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Tell whatever goes wrong with the content of a file as `DataError`."""
    try:
        yield
    except RescindError:
        raise
    except FOREIGN as error:
        raise DataError(
            f"{path} holds what this version does not write ({type(error).__name__}: {error})."
        ) from None


def fitting(
    tensors: Mapping[str, Tensor], schema: Schema, lengths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the values of a schema, ids as lists; raise `ValueError` unless they fit it.

    lengths: those that are known already
    """
    for name in tensors.keys() ^ schema.keys():
        must(name in tensors, f"{name} is missing")
        must(name in schema, f"{name} is not expected")
    known, found = dict(lengths or {}), dict[str, Any](tensors)
    for name in [name for name, stated in schema.items() if isinstance(stated, Ids)]:
        found[name] = ids_from_bytes(tensors[name])
        known[name] = len(found[name])
    for name, stated in schema.items():
        if isinstance(stated, Values):
            _check(name, tensors[name], stated, known)
    return found


def must(holds: bool, what: str) -> None:
    """Raise `ValueError` unless something holds of the values of a file."""
    if not holds:
        raise ValueError(what)


def must_be_like(name: str, value: Tensor | None, first: Tensor, length: int | None = None) -> None:
    """Raise `ValueError` unless a value has the kind and the rows of `first`, and this length."""
    if value is None:
        raise ValueError(f"{name} is missing")
    kind = value.is_floating_point() == first.is_floating_point()
    must(kind and value.dim() == first.dim(), f"{name} is of another kind")
    must(value.shape[1:] == first.shape[1:], f"{name} has other rows")
    must(length is None or len(value) == length, f"{name} has another length")


def must_count(facts: Mapping[str, Any], *names: str) -> None:
    """Raise `ValueError` unless these are counts that fit."""
    for name in names:
        value = facts[name]
        must(type(value) is int and 0 <= value < 2**31, f"{name} is {value!r}, not a count")


def _check(name: str, value: Tensor, stated: Values, lengths: dict[str, int]) -> None:
    """Compare a tensor with what is stated; note lengths that were not known."""
    must(value.dtype == stated.kind, f"{name} is {value.dtype}, not {stated.kind}")
    must(value.dim() == len(stated.shape), f"{name} has {value.dim()} dimensions")
    for length, one in zip(value.shape, stated.shape, strict=True):
        expected = one if isinstance(one, int) else lengths.setdefault(one, length)
        must(length == expected, f"{name} has length {length}, not {expected}")
    if not value.numel() or value.dtype == torch.bool:
        return
    below = lengths[stated.below] if isinstance(stated.below, str) else stated.below
    low, high = (float(each) for each in value.aminmax())  # NaN fails every comparison
    must(stated.low <= low and high < below, f"{name} has values from {low} to {high}")
    must(not value.is_floating_point() or math.isfinite(low), f"{name} is not finite")


def ids_as_bytes(ids: Collection[Id]) -> Tensor:
    """Write ids as text, so that 1 and "1" stay different. [n] uint8"""
    return torch.frombuffer(bytearray(json.dumps([*ids]).encode()), dtype=torch.uint8)


def ids_from_bytes(text: Tensor) -> list[Id]:
    must(text.dtype == torch.uint8 and text.dim() == 1, "ids are bytes")
    made = json.loads(text.numpy().tobytes())
    must(isinstance(made, list) and all(type(each) in (str, int) for each in made), "no ids")
    must(len({*made}) == len(made), "an id is there twice")
    "".join(each for each in made if isinstance(each, str)).encode()  # no half characters
    return list(made)


def table_in(notes: Mapping[str, str]) -> dict[str, Any]:
    """Return the table that stands as text in the notes of a file."""
    facts = json.loads(notes["facts"])
    must(isinstance(facts, dict), "its facts are no table")
    return dict(facts)
