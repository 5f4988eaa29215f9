"""Digests of named values, the same for tensors and for numpy arrays; loads no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_of(values: Iterable[tuple[str, str, list[int], Any]]) -> str:
    """Return SHA-256 over (name, type, shape, bytes) of each value, in the given order."""
    hasher = hashlib.sha256()
    for name, kind, shape, bits in values:
        hasher.update(json.dumps([name, kind, shape]).encode())
        hasher.update(bits)
    return "sha256:" + hasher.hexdigest()


def array_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return what `params.digest` returns for tensors of the same names, types and values."""
    plain = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    return digest_of(  # a contiguous copy of a number by itself would have a shape
        (name, f"torch.{v.dtype}", list(arrays[name].shape), v.data if v.size else b"")
        for name, v in plain.items()
    )
