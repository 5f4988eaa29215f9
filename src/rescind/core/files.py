"""Write files whole or not at all. Needs no torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rescind.errors import DataError


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, sync, rename, sync the folder: readers see the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:  # an interrupt, too, leaves no half file behind
        with suppress(OSError):
            beside.unlink()
        if not isinstance(error, OSError):
            raise
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. "
            f"Free some space or choose another folder; the old file is untouched."
        ) from None
    _sync_or_say(path)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they survive a loss of power."""
    missing = [p for p in (folder, *folder.parents) if not p.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        with suppress(PermissionError):  # one may write below a folder one may not list
            sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove the half files that writers which were killed left in a folder."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def _sync_or_say(path: Path) -> None:
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            f"{path} is written, but its folder cannot be synced: {error.strerror or error}. "
            f"Make room or mend the disk, and write it again."
        ) from None
