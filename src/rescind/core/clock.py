"""Random numbers without generators: every draw is a hash of where it is used.

A draw depends only on (seed, purpose, round, step, id, k). So a client draws the same numbers in
any cohort, on CPU or GPU, in process or on a network; a run can be resumed without generator
state; and a client that never took part does not change the draws of others.

Privacy noise is the only exception: it comes from the operating system's entropy (`guards.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

# Odd 64-bit constants, as signed integers because torch has no unsigned arithmetic. The first is
# the golden-ratio increment of splitmix64; the two multipliers are those of its finaliser
# (Steele, Lea, Flood 2014; Stafford's variant 13); the second stride is the fractional part of
# sqrt(2) made odd, so that sums of id and k strides do not collide for realistic counts.
_ID_STRIDE = 0x9E3779B97F4A7C15 - 2**64
_K_STRIDE = 0x6A09E667F3BCC909
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


@lru_cache(maxsize=4096)
def _key(seed: int, purpose: str, round_: int, step: int) -> int:
    text = f"{seed}/{purpose}/{round_}/{step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers in place, one to one (splitmix64's finaliser)."""
    x ^= (x >> 30) & 0x3FFFFFFFF  # the masks turn arithmetic shifts into logical ones
    x *= _MIX_1
    x ^= (x >> 27) & 0x1FFFFFFFFF
    x *= _MIX_2
    x ^= (x >> 31) & 0x1FFFFFFFF
    return x


@dataclass(frozen=True)
class Clock:
    """A position in a run (seed, round, step), from which random numbers are drawn."""

    seed: int
    round: int = 0
    step_: int = 0

    def at(self, round_: int) -> Clock:
        """Return the clock of a round, at its first step."""
        return Clock(self.seed, round_)

    def step(self, step: int) -> Clock:
        """Return the clock of a step inside the round: a local epoch or a mini-batch."""
        return replace(self, step_=step)

    def batch(self, wave: int) -> Clock:
        """Return the clock of a mini-batch inside a local epoch: the same in any cohort."""
        return replace(self, step_=(self.step_ + 1) * 2**32 + wave)

    def key(self, purpose: str) -> int:
        """Return the 64-bit key of a purpose at this position; compiled code uses it too."""
        return _key(self.seed, purpose, self.round, self.step_)

    def bits(self, purpose: str, ids: Tensor, k: Tensor | int = 0) -> Tensor:
        """Draw 64 random bits for each (id, k), as int64; `ids` and `k` are broadcast."""
        offset = k.long() * _K_STRIDE if isinstance(k, Tensor) else _signed(k * _K_STRIDE)
        return _mix(ids.long() * _ID_STRIDE + offset + self.key(purpose))

    def uniform(self, purpose: str, ids: Tensor, k: Tensor | int = 0) -> Tensor:
        """Draw numbers in [0, 1) with 53 random bits, float64."""
        return ((self.bits(purpose, ids, k) >> 11) & 0x1FFFFFFFFFFFFF).double().mul_(2.0**-53)

    def integers(self, purpose: str, ids: Tensor, k: Tensor | int, high: int) -> Tensor:
        """Draw integers in [0, high), high < 2**31, by multiplying the upper 32 bits."""
        return (((self.bits(purpose, ids, k) >> 32) & 0xFFFFFFFF) * high) >> 32

    def normal(self, purpose: str, ids: Tensor, k: Tensor | int = 0) -> Tensor:
        """Draw standard normal numbers, float64, by inverting the distribution function."""
        inside = (self.uniform(purpose, ids, k) + 2.0**-54).clamp_(max=1 - 2.0**-53)
        return torch.special.ndtri(inside)


def _signed(value: int) -> int:
    """Return the value modulo 2**64 as a signed integer."""
    return (value + 2**63) % 2**64 - 2**63
