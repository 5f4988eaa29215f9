"""The silo's own process: data, torch and compiled code stay loaded between messages.

Flower starts a process for every message. That process only carries it here, through a socket in a
folder that nobody else may enter, so that it neither imports torch nor ever opens the silo's data.
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LENGTH = struct.Struct("!Q")
MOST = 2**34
"""Bytes of a message at most (16 GB): a length beyond is not believed."""


class Resident:
    """Answers messages, one after another, until it is closed."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.folder = Path(tempfile.mkdtemp(prefix="rescind-"))  # 0700; and a path that is short
        self.path = self.folder / "silo"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(16)
        self._socket.settimeout(0.5)

    def serve(self, alive: Callable[[], bool]) -> None:
        """Answer as long as somebody may ask."""
        while alive():
            try:
                there, _ = self._socket.accept()
            except TimeoutError:
                continue
            with there, suppress(OSError):  # who asked may have been killed: the next one asks
                there.settimeout(60.0)
                _send(there, self._answer(_receive(there)))

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def carried(path: str, message: bytes) -> bytes:
    """The resident process's answer to a message."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        _send(there, message)
        return _receive(there)


def _send(there: socket.socket, data: bytes) -> None:
    there.sendall(LENGTH.pack(len(data)))
    if data:  # whoever was sent nothing may have answered and gone already
        there.sendall(data)


def _receive(there: socket.socket) -> bytes:
    (many,) = LENGTH.unpack(_exactly(there, LENGTH.size))
    if many > MOST:
        raise OSError(f"a message of {many} bytes is not believed")
    return _exactly(there, many)


def _exactly(there: socket.socket, many: int) -> bytes:
    parts, left = [], many
    while left:
        part = there.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("the other side has gone")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
