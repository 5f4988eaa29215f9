"""How much memory is free, and freed memory kept for the next large table."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

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


def free_memory() -> int | None:
    """Return the bytes that programs can still take, or None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    known = dict(line.split(":", 1) for line in lines)
    return 1024 * int(known["MemAvailable"].split()[0]) if "MemAvailable" in known else None
