"""Named tensors: arithmetic, digest, size, and safetensors on disk.

A `Params` is any mapping from names to tensors. Nothing here changes its arguments.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rescind.core.files import write_atomically
from rescind.errors import DataError

Params = Mapping[str, Tensor]


def add(left: Params, right: Params, scale: float = 1.0) -> dict[str, Tensor]:
    """left + scale * right, name by name; a name only the left has is kept as it is."""
    out = dict(left)
    for name, value in right.items():
        scaled = value if scale == 1.0 else value * scale
        out[name] = out[name] + scaled if name in out else scaled
    return out


def times(params: Params, factor: float) -> dict[str, Tensor]:
    """Every tensor multiplied by the same factor."""
    return {name: value * factor for name, value in params.items()}


def dot(left: Params, right: Params) -> float:
    """The inner product over the names both sides have, in float64."""
    shared = left.keys() & right.keys()
    return sum(float((left[n].double() * right[n].double()).sum()) for n in sorted(shared))


def norm(params: Params) -> float:
    """The Euclidean norm of all entries taken as one vector."""
    return math.sqrt(dot(params, params))


def nbytes(params: Params) -> int:
    """How many bytes the values take."""
    return sum(value.numel() * value.element_size() for value in params.values())


def to(params: Params, device: str | torch.device) -> dict[str, Tensor]:
    """The same values on another device."""
    return {name: value.to(device) for name, value in params.items()}


def digest(params: Params) -> str:
    """SHA-256 over names, types, shapes and values, independent of the order of names."""
    seen = hashlib.sha256()
    for name in sorted(params):
        value = params[name].detach().cpu().contiguous()
        seen.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        seen.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return "sha256:" + seen.hexdigest()


def to_bytes(params: Params, notes: Mapping[str, str] | None = None) -> bytes:
    """Safetensors bytes; `notes` travel in the header."""
    from safetensors.torch import save as save_bytes

    values: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, given in params.items():
        value = given.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        # Safetensors refuses two names for one memory: only the second is copied.
        values[name] = value.clone() if place in places else value
        places.add(place)
    return save_bytes(values, dict(notes or {}))


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of safetensors bytes (the header's notes are left out)."""
    from safetensors.torch import load as load_bytes

    return load_bytes(data)


def save(path: Path, params: Params, notes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that is there whole or not at all, with its own digest inside."""
    notes = dict(notes or {})
    write_atomically(path, to_bytes(params, {**notes, "digest": _seal(params, notes)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and notes; a file that is torn or altered anywhere is a `DataError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); it may be torn or not a safetensors "
            f"file. Use an older copy, or make the run again."
        ) from None
    if notes.pop("digest", "") != _seal(params, notes):
        raise DataError(
            f"{path} does not match the digest it carries: it was changed or torn. "
            f"Use an older copy, or make the run again."
        )
    return params, notes


def _seal(params: Params, notes: Mapping[str, str]) -> str:
    """A digest of tensors and notes together: a changed round is as bad as a changed weight."""
    text = json.dumps([digest(params), sorted(notes.items())])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
