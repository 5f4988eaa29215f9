"""Keep freed memory for the next large table. Changes speed only."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # malloc.h of glibc


def keep_freed_memory(largest: int = 2**28, most: int = 2**29) -> None:
    """Let glibc use freed tables again instead of giving each back to the system.

    Fresh pages are cleared by the system first, which takes three times as long as writing a table
    of item pairs. Where torch brings its own allocator, `rescind` sets its environment instead.

    largest: bytes of a table that is kept    most: bytes kept in all
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # the user has decided
        return
    with suppress(OSError, AttributeError):  # no glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, largest)
        libc.mallopt(_TRIM_THRESHOLD, most)
