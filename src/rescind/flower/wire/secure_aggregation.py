"""Secure sums: silos mask their sums, so the server can read only the total.

SecAgg (Bonawitz et al., CCS 2017) over all pairs of silos, as docs/secure-sums.md describes it
message by message. Flower's SecAgg+ is not used: it draws masks from a 32-bit seed, and its silos
accept any threshold. This module has what both sides compute; `silo/secure_sum.py` and
`server/secure_round.py` have the two sides.

An entry above the range is an error instead of being clipped, because a clipped sum gives a wrong
model without warning. The weight of a silo is inside its masked vector.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor

from rescind.core import params
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.wire.messages import SENDER, Letter
from rescind.privacy.shares import Numbers, expanded
from rescind.storage.packing import Facts, drawer

MIN_SILOS = 3
"""With two silos, each could compute the other's sum from the total."""
TOO_FEW = "too few silos to mask"
MAX_SILOS = 999
"""An entry has 40 bits, so a total has 50 of the 64 bits of a mask."""
BITS = 40
"""Entries are sent in steps of range / 2**BITS."""
SECURE, VECTOR = "secure", "masked"
"""Names in messages: the facts of a stage, and the tensor of a masked sum."""
KEYS, SHARES, MASK, UNMASK = "keys", "shares", "mask", "unmask"
"""The stages of a round, in order."""
_DOMAIN = "rescind secure sum 2"
"""Part of every derived key and signature. Version 1 was Flower's SecAgg+."""
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Masked:
    """Settings of masked sums."""

    range: float = 1024.0
    """The largest entry that a silo's sum may have. Entries are sent in steps of range / 2**40."""

    def __post_init__(self) -> None:
        if not 0 < self.range < 2.0**31:
            raise ConfigError(
                f"the range of masked sums must be above 0 and below 2**31; got {self.range}."
            )


def check_silos(silos: int) -> None:
    """Check that sums of this number of silos can be masked."""
    if not MIN_SILOS <= silos <= MAX_SILOS:
        raise ConfigError(
            f"masked sums need {MIN_SILOS} to {MAX_SILOS} silos; got {silos}. With fewer, a silo "
            f"could compute another silo's sum from the total. Run without --secure."
        )


def threshold_of(silos: int) -> int:
    """Return how many silos must agree to remove masks: two thirds, and at least three.

    Above one half, a server that tells silos different things (one is lost, one is not) cannot
    collect both secrets of a silo; at two thirds not even with the help of almost a third of them.
    """
    return max(MIN_SILOS, -(-2 * silos // 3))


# -- sums as vectors ---------------------------------------------------------------------------


def flatten_sum(total: Sum) -> tuple[Vector, list[Any]]:
    """Return the parts of a sum that can be added as one vector, and a description of them."""
    if total.parts:
        raise ConfigError("single updates cannot be masked. Choose a method that sends sums.")
    tables = [("totals", total.totals), ("touched", total.touched)]
    parts = [(kind, name, value) for kind, table in tables for name, value in table.items()]
    spec = [[k, n, [*v.shape], str(v.dtype).removeprefix("torch.")] for k, n, v in parts]
    vectors = [value.detach().cpu().double().numpy().reshape(-1) for _, _, value in parts]
    for vector, (kind, name, *_) in zip(vectors, spec, strict=True):
        if kind == "touched" and not bool((vector == vector.round()).all()):
            raise ConfigError(
                f"the weights of '{name}' are not whole numbers, and masking would change them. "
                f"Choose a method that counts clients or records."
            )
    return np.concatenate([*vectors, [total.weight, float(total.clients)]]), spec


def unflatten_sum(vector: Vector, spec: list[Any]) -> Sum:
    """Build a sum from the output of `flatten_sum`. Raises `DataError` if they do not fit.

    Integers are rounded. So are row weights: a row that no client touched must have weight 0.
    """
    tables: dict[str, dict[str, Tensor]] = {"totals": {}, "touched": {}}
    try:
        sizes = [int(np.prod(shape)) for _, _, shape, _ in spec]
        *values, last = torch.split(torch.from_numpy(vector), [*sizes, 2])
        for value, (kind, name, shape, dtype) in zip(values, spec, strict=True):
            kept = getattr(torch, dtype)
            whole = kind == "touched" or not kept.is_floating_point
            shaped = value.reshape(shape)
            tables[kind][name] = (shaped.round() if whole else shaped).to(kept)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(f"a masked sum cannot be read ({error}). {SENDER}") from None
    weight, clients = last.round().tolist()
    return Sum(tables["totals"], float(weight), int(clients), tables["touched"])


def to_steps(vector: Vector, range_: float) -> Numbers:
    """Round a vector to steps of the range, as numbers modulo 2**64."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest <= range_:
        raise DataError(
            f"an entry of a silo's sum is larger than the range of masked sums, {range_:g}. "
            f"Run with a larger --secure-range."
        )
    return np.rint(vector * (2.0**BITS / range_)).astype(np.int64).view(np.uint64)


def from_steps(total: Numbers, range_: float) -> Vector:
    """Return the vector of a total in steps of the range."""
    return np.asarray(total.view(np.int64) * (range_ / 2.0**BITS), dtype=np.float64)


# -- keys and masks ------------------------------------------------------------------------------


def as_bytes(*parts: object) -> bytes:
    """Return parts as unambiguous bytes, under the name of this protocol."""
    return json.dumps([_DOMAIN, *parts], sort_keys=True).encode()


def digest_of(*parts: object) -> str:
    """Return the SHA-256 of parts, under the name of this protocol."""
    return hashlib.sha256(as_bytes(*parts)).hexdigest()


def task_of(request: Letter) -> str:
    """Return a digest of what a round computes: run, method, seed, round, epoch and model.

    It is part of every mask. So masks of silos that were sent different models do not cancel, and
    a server cannot single out a silo by giving all others a model on which they compute zero.
    """
    facts = {n: request.facts.get(n) for n in ("run", "method", "seed", "round", "epoch")}
    return digest_of("task", facts, params.digest(drawer("public", request.tensors)))


def public_of(secret: bytes) -> str:
    """Return the public half of an X25519 key as hexadecimal digits."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()


def shared_key(secret: bytes, other: str, purpose: str, *about: object) -> bytes:
    """Derive a 256-bit key that two silos share, for one purpose and one round.

    other: the other silo's public key    about: what both know and the key depends on
    """
    theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(other))
    agreed = X25519PrivateKey.from_private_bytes(secret).exchange(theirs)
    return _derived(agreed, purpose, *sorted((public_of(secret), other)), *about)


def own_key(seed: bytes, *about: object) -> bytes:
    """Derive the key of a silo's own mask from its seed."""
    return _derived(seed, "own mask", *about)


def _derived(secret: bytes, *info: object) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=as_bytes(*info)).derive(secret)


def pair_mask(secret: bytes, other: str, size: int, *about: object) -> Numbers:
    """Return the mask of two silos as one of them adds it; the other's is the negative. [size]"""
    mask = expanded(shared_key(secret, other, "pair mask", *about), size)
    return mask if public_of(secret) < other else np.negative(mask)


def sealed(seed: bytes) -> str:
    """Return a commitment to a silo's seed, so that the server can check what it recovers."""
    return digest_of("seed", seed.hex())


def fields_of(letter: Letter, **kinds: type) -> Facts:
    """Return the facts of a stage. Raises `DataError` if one is missing or of another type."""
    given = letter.facts.get(SECURE)
    facts = given if isinstance(given, dict) else {}
    for name, kind in kinds.items():
        if type(facts.get(name)) is not kind:
            raise DataError(f"a message of a secure sum has no valid '{name}'. {SENDER}")
    return facts


def by_silo(table: Facts) -> dict[int, Any]:
    """Return a table of a message with silo numbers as keys, which JSON makes text."""
    if not all(str(key).isdecimal() for key in table):
        raise DataError(f"a message of a secure sum names silos {[*table]}. {SENDER}")
    return {int(key): value for key, value in table.items()}
