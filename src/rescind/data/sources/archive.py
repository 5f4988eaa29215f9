"""Read files from a folder or a zip archive, without unpacking it to disk.

Archives are not trusted: names that lead out of the archive, links, encrypted members and members
that unpack to very large sizes are refused before anything is read.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from rescind.errors import DataError

_LARGEST = 4 * 2**30  # bytes unpacked; the largest known archive, HetRec, has 0.2 GB
_HIGHEST_RATIO = 200  # ratings as text shrink 3 to 10 times; a zip bomb a thousand times
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)
"""Exceptions of the zip reader for damaged archives (NotImplementedError is a RuntimeError)."""


class Files:
    """The files of a folder, a zip archive or a single file, by base name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder. Check the path.")
        packed = path.suffix in (".zip", ".whl", ".npz") or zipfile.is_zipfile(path)
        self._zip = _open_zip(path) if packed and not path.is_dir() else None
        self._members = self._list()

    def _list(self) -> dict[str, str]:
        """Map base name -> full name; for equal base names, the one highest in the tree."""
        if self._zip is not None:
            names = [info.filename for info in self._zip.infolist() if not info.is_dir()]
        elif self.path.is_dir():
            names = [str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file()]
        else:
            names = [self.path.name]
        names.sort(key=lambda name: (len(PurePosixPath(name).parts), name), reverse=True)
        return {PurePosixPath(name).name: name for name in names}

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name in any folder of the archive."""
        return name in self._members

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        if name not in self._members:
            raise DataError(
                f"{self.path}: there is no file '{name}' in it. Give the publisher's archive."
            )
        member = self._members[name]
        if self._zip is None:
            return (self.path / member if self.path.is_dir() else self.path).read_bytes()
        try:
            return self._zip.read(member)
        except DAMAGE as error:
            raise DataError(
                f"{self.path}: the member '{member}' is damaged ({error}). Download it again."
            ) from error

    def label(self, name: str) -> str:
        """Return the name of a file for messages: the archive, then the member."""
        return f"{self.path}/{self._members.get(name, name)}"


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise DataError(
            f"{path}: this is not a readable zip archive ({error}). Download it again."
        ) from error
    try:
        check_members(path, archive.infolist())
    except DataError:
        archive.close()
        raise
    return archive


def check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive with unsafe names, links, encryption or very large sizes."""
    for info in members:
        name, packed, size = info.filename, info.compress_size, info.file_size
        parts = PurePosixPath(name.replace("\\", "/")).parts
        out = ".." in parts or name.startswith(("/", "\\")) or ":" in (parts or ("",))[0]
        plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        most = max(2**24, _HIGHEST_RATIO * max(packed, 1))
        for wrong, why in (
            (out, "its name leads out of the archive"),
            (stat.S_ISLNK(info.external_attr >> 16), "it is a link"),
            (info.flag_bits & 1, "it is encrypted"),
            (not plain, "its compression method is not supported"),
            (size > most, f"{packed} bytes unpack to {size}"),
        ):
            if wrong:
                raise DataError(
                    f"{path}: member '{name}' is refused because {why}. Nothing was read."
                )
    total = sum(info.file_size for info in members)
    if total > _LARGEST:
        raise DataError(f"{path}: it unpacks to {total} bytes; at most {_LARGEST} are read.")
