"""Named tensors: arithmetic, digest, size, and safetensors on disk.

A `Params` is any mapping from names to tensors. No function here changes its arguments.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rescind.core.digests import digest_of
from rescind.core.files import write_atomically
from rescind.core.headers import apart, as_one
from rescind.core.saved import reading
from rescind.errors import DataError

Params = Mapping[str, Tensor]


def add(left: Params, right: Params, scale: float = 1.0) -> dict[str, Tensor]:
    """Return left + scale * right by name; a name that one side lacks counts as zero there."""
    out = dict(left)
    for name, value in right.items():
        scaled = value if scale == 1.0 else value * scale
        out[name] = out[name] + scaled if name in out else scaled
    return out


def times(params: Params, factor: float) -> dict[str, Tensor]:
    """Multiply every tensor by the same factor."""
    return {name: value * factor for name, value in params.items()}


def dot(left: Params, right: Params) -> float:
    """Return the inner product over the names both sides have, in float64."""
    shared = left.keys() & right.keys()
    return sum(float((left[n].double() * right[n].double()).sum()) for n in sorted(shared))


def norm(params: Params) -> float:
    """Return the Euclidean norm of all entries taken as one vector."""
    return math.sqrt(dot(params, params))


def nbytes(params: Params) -> int:
    """Return the size of the values in bytes."""
    return sum(value.numel() * value.element_size() for value in params.values())


def to(params: Params, device: str | torch.device) -> dict[str, Tensor]:
    """Copy the values to another device."""
    return {name: value.to(device) for name, value in params.items()}


def digest(params: Params) -> str:
    """Return SHA-256 over names, types, shapes and values, for any order of names."""
    found = []
    for name in sorted(params):
        value = params[name].detach().cpu().contiguous()
        bits = value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b""
        found.append((name, str(value.dtype), list(value.shape), bits))
    return digest_of(found)


def to_bytes(params: Params, notes: Mapping[str, str] | None = None) -> bytes:
    """Encode as safetensors bytes; `notes` go into the header."""
    from safetensors.torch import save as save_bytes

    values: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, given in params.items():
        value = given.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        # Safetensors refuses two names for one storage: copy the second.
        values[name] = value.clone() if storage in storages else value
        storages.add(storage)
    return save_bytes(values, as_one(notes or {}))


def from_bytes(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Decode safetensors bytes into tensors and notes. The caller has checked their digest."""
    from safetensors.torch import load as load_bytes

    length = int.from_bytes(data[:8], "little")
    return load_bytes(data), apart(json.loads(data[8 : 8 + length]).get("__metadata__", {}))


def save(path: Path, params: Params, notes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically, mode 600, with a digest of its content inside."""
    notes = dict(notes or {})
    data = to_bytes(params, {**notes, "digest": _file_digest(params, notes)})
    write_atomically(path, data, private=True)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and notes; raise `DataError` if the file is incomplete or changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with reading(path), safe_open(path, framework="pt") as file:
            notes = apart(file.metadata() or {})
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            stated = notes.pop("digest", "")
            found = _file_digest(params, notes)
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): it is no whole safetensors file. Use an older copy."
        ) from None
    if stated != found:
        raise DataError(f"{path} does not match the digest stored in it. Use an older copy.")
    return params, notes


def _file_digest(params: Params, notes: Mapping[str, str]) -> str:
    text = json.dumps([digest(params), sorted(notes.items())])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
