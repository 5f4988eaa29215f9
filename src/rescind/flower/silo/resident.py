"""The silo's resident process: data, torch and compiled code stay loaded between messages.

Flower starts a process for every message. That process only forwards the message to this one,
through a socket in a folder that only the owner can open. It does not import torch or read data.
"""

from __future__ import annotations

import logging
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

LENGTH = struct.Struct("!Q")
MAX_BYTES = 2**34
"""Largest size of a message (16 GB)."""


class Resident:
    """A server on a local socket that answers one message after another."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.folder = Path(tempfile.mkdtemp(prefix="rescind-"))  # mode 0700, and a short path
        self.path = self.folder / "silo"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(16)
        self._socket.settimeout(0.5)

    def serve(self, alive: Callable[[], bool]) -> None:
        """Answer messages while `alive` returns True."""
        while alive():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            try:
                with connection:
                    connection.settimeout(60.0)
                    _send(connection, self._answer(_receive(connection)))
            except Exception as error:  # the other process may have been killed; others follow
                log.warning("a message was not answered: %r", error)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def forward(path: str, message: bytes) -> bytes:
    """Send a message to the resident process. Return its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        _send(connection, message)
        return _receive(connection)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(LENGTH.pack(len(data)))
    if data:  # after an empty message the other side may have closed already
        connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(_receive_bytes(connection, LENGTH.size))
    if size > MAX_BYTES:
        raise OSError(f"a message of {size} bytes is larger than the limit of {MAX_BYTES} bytes")
    return _receive_bytes(connection, size)


def _receive_bytes(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
