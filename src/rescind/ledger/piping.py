"""What passes between a service and its worker processes by pipes: facts and arrays, no pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int32]


def written(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Write facts and arrays."""
    out = io.BytesIO()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(out, facts=text, **arrays)
    return out.getvalue()


def read(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what `written` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("facts").tobytes()), arrays


def joined(name: str, parts: Sequence[Items]) -> dict[str, Any]:
    """Return the items of many people as two arrays."""
    counts = np.array([len(part) for part in parts], np.int64)
    return {
        f"{name}_count": counts,
        f"{name}_item": np.concatenate([np.empty(0, np.int32), *parts]),
    }


def parts_of(arrays: Mapping[str, Any], name: str) -> tuple[Items, ...]:
    """Return the items of each person again."""
    ends = np.cumsum(arrays[f"{name}_count"])
    return tuple(np.split(arrays[f"{name}_item"], ends[:-1])) if len(ends) else ()
