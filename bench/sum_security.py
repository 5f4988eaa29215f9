"""How hard it is thought to be to break `sum_hash`: an estimate, with what it rests on.

NOT REVIEWED BY CRYPTOGRAPHERS. Both figures are bits of work under the core-SVP count: lattice
reduction (BKZ) with blocks of b costs 2**(0.292 b), and reaches the root Hermite factor that Chen
(2013) states. Lower costs may be found; memory and repetitions are counted as free.

    binding   two short sums with one hash: SIS over all columns, norm 2 * `largest`, by the best
              number of columns (Micciancio and Regev 2009): 2**(2 sqrt(1024 * 64 * log2(delta)))
    hiding    a line against random bytes: LWE of dimension 2,048 with 1,024 samples, modulus 2**64,
              secret and error uniform on 16 bits, by the primal attack (Alkim and others 2016)

It is taken for granted that AES-128 under a public key looks random, that SHAKE-256 does, and that
the ring of a1 and a2 helps no attacker.
"""

from __future__ import annotations

import math

from rescind.proof.sum_hash import LENGTH, SMALL, largest

_COST = 0.292
_MODULUS = 64
_LARGEST_BLOCK = 4_000


def root_hermite(block: int) -> float:
    """Return log2 of the factor delta that BKZ with this block reaches; good from about 50 on."""
    inside = math.log2(math.pi * block) / block + math.log2(block / (2 * math.pi * math.e))
    return inside / (2 * (block - 1))


def binding_bits(lines: int, items: int) -> float:
    """Return the estimate for two sums with one hash, for a roster of this size."""
    norm, size = largest(lines, items)
    goal = math.log2(2 * math.hypot(norm, size * math.sqrt(3 * LENGTH)))
    for block in range(50, _LARGEST_BLOCK):
        if 2 * math.sqrt(LENGTH * _MODULUS * root_hermite(block)) <= goal:
            return _COST * block
    return _COST * _LARGEST_BLOCK


def hiding_bits() -> float:
    """Return the estimate for telling anything from one line."""
    error = math.log2(2 ** (SMALL + 1) / math.sqrt(12))
    for block in range(50, _LARGEST_BLOCK):
        delta = root_hermite(block)
        for samples in range(16, LENGTH + 1, 16):
            size = 2 * LENGTH + samples + 1
            found = (2 * block - size - 1) * delta + _MODULUS * samples / size
            if error + math.log2(block) / 2 <= found:
                return _COST * block
    return _COST * _LARGEST_BLOCK
