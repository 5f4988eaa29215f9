"""What lives of the auditor answered, kept for other rows: a life takes a training, an answer none.

No-op, score shift and fine-tuning differ in how they forget. Without requests they live the same
life, so it is lived once. Answers are kept in memory, as long as the process lives.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_BYTES = 2**30
"""Kept at most; the answers that nobody asked for longest go first."""


class Answers:
    """Arrays by what they depend on."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most, self.bytes = most, 0
        self._kept: OrderedDict[bytes, Floats] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Floats]) -> Floats:
        """Return the answer of this key; made if it is not kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        made = self._kept[key] = make()
        self.bytes += made.nbytes
        while self.bytes > self.most:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.nbytes
        return made


KEPT = Answers()


def key_of(*parts: str | int | bytes | NDArray[Any]) -> bytes:
    """Return a key that no other parts have."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            state.update(f"array {part.dtype} {part.shape} ".encode())
            state.update(np.ascontiguousarray(part).tobytes())
        else:
            state.update(f"{part!r} ".encode())
    return state.digest()
