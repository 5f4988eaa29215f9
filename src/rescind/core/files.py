"""Atomic writing of files. Does not need torch."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rescind.errors import DataError


def write_atomically(path: Path, data: bytes, private: bool = False, durable: bool = True) -> None:
    """Write a temporary file, sync, rename, sync the folder: readers see the old or new file.

    private: only its owner may read it (mode 600)    durable: False leaves syncing the folder to
    the caller, who writes many files
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        with open(temporary, "wb", opener=_private if private else None) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # also clean up after an interrupt
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. The old file is unchanged."
        ) from None
    if not durable:
        return
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            f"{path} is written, but its folder cannot be synced: {error.strerror or error}."
        ) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[None]:
    """Hold the lock of a folder; raise `DataError` if another process holds it.

    The system releases it when the process ends, however it ends.
    patience: seconds to wait for it
    """
    handle, end = os.open(folder, os.O_RDONLY), time.monotonic() + patience
    try:
        while not _taken(handle):
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            raise DataError(
                f"{folder} is in use by another rescind command{_holder(handle)}. End it, or wait "
                f"until it has ended. Nothing was changed."
            )
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    """Return which process holds the lock of an open folder, where the system tells (Linux)."""
    about = os.fstat(handle)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    found = [words[4] for words in lines if words[1] == "FLOCK" and words[5] == place]
    return f" (process {found[0]})" if found and int(found[0]) > 0 else ""


def in_use(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder."""
    try:
        with locked(folder):
            return False
    except DataError:
        return True


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, so that they survive a power failure."""
    missing = [p for p in (folder, *folder.parents) if not p.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        with suppress(PermissionError):  # the parent may be unreadable
            sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that changes of its entries survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)
