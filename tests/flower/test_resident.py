"""The silo's resident process answers messages, and survives a client that is killed."""

from __future__ import annotations

import socket
import stat
import threading

import pytest

pytest.importorskip("flwr")

from rescind.flower.silo.resident import Resident, forward

pytestmark = pytest.mark.flower


def test_messages_are_answered_completely_and_in_order() -> None:
    resident, going = Resident(lambda message: message[::-1]), threading.Event()
    going.set()
    thread = threading.Thread(target=lambda: resident.serve(going.is_set))
    thread.start()
    try:
        assert stat.S_IMODE(resident.folder.stat().st_mode) == 0o700
        large = bytes(range(256)) * 20_000  # larger than one packet
        for message in (b"", b"a message", large):
            assert forward(str(resident.path), message) == message[::-1]
        with socket.socket(socket.AF_UNIX) as broken:  # killed in the middle of a message
            broken.connect(str(resident.path))
            broken.sendall(b"\0\0")
        assert forward(str(resident.path), b"next") == b"txen"
    finally:
        going.clear()
        thread.join()
        resident.close()
    assert not resident.folder.exists()
    with pytest.raises(OSError, match="No such file"):
        forward(str(resident.path), b"closed")
