"""Two servers that each hold one share of a sum; one share alone reveals nothing.

A device sends the first server the seed of a random vector, and the second its numbers minus that
vector, modulo 2**64. Only both totals together give the sum, bit for bit; this is secure as long as
the two do not show each other their totals. The second server adds no vector without the first
one's receipt for its seed. Both count the different devices since the last opening, and open
nothing for fewer than `least`. With each contribution goes a checksum that only devices and the
reader of the sum can compute, so a server that changes something is found at the opening.

What an opened sum reveals: docs/additive.md and docs/secure-sums.md. Used by `Gram(servers=2)`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from subprocess import PIPE, Popen
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from rescind.errors import ConfigError, DataError
from rescind.privacy.shares import (
    LARGEST,
    LOOK,
    MASKED,
    NAME,
    NUMBER,
    OK,
    OPEN,
    PRIME,
    SEED,
    SEEDED,
    Numbers,
    Share,
    checksum,
    client_shares,
    code_of,
    device_key,
    expanded,
    number_bytes,
    numbers_of,
    opened,
    seed_checksum,
)

if TYPE_CHECKING:
    from torch import Tensor

HERE = "127.0.0.1"
BEGIN = "from rescind.privacy.two_servers import serve; serve()"


def serve() -> None:
    """Run a server: answer one connection after another until the parent process ends."""
    given = json.loads(sys.stdin.readline())
    total = np.zeros(given["size"], dtype=np.uint64)
    secret, link = (bytes.fromhex(given[name]) for name in ("secret", "link"))
    share = Share(total, given["least"], given["first"], secret, link, given["shown"])
    with socket.create_server((HERE, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        Thread(target=_exit_with_parent, daemon=True).start()
        while True:
            caller, _ = listener.accept()
            with caller:
                try:
                    caller.settimeout(given["wait"])  # one silent caller does not stop the others
                    _send(caller, share.answer(_receive(caller, 8 * len(total) + 2**26)))
                except (OSError, EOFError):
                    continue


def _exit_with_parent() -> None:
    sys.stdin.read()  # ends with the parent
    os._exit(0)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(number_bytes(len(data)) + data)


def _receive(connection: socket.socket, limit: int) -> bytes:
    size = int.from_bytes(_exactly(connection, NUMBER), "big")
    if size > limit:
        raise OSError(f"a message of {size} bytes; {limit} are allowed")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 2**20))
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)


@dataclass
class TwoServers:
    """Two server processes with a share each; use it in a `with` statement.

    with TwoServers(size) as servers:
        servers.add(values, device=7)
        servers.add(-values, device=7)   # the same device withdraws it
        servers.open()                   # the sum, for a release
    """

    size: int
    """Numbers per contribution, for example the item pairs of `Gram`."""
    least: int = 1
    """Minimum number of different devices between two openings; each process counts them. Devices
    of people who work with a server do not protect the others."""
    shown: bool = False
    """Let `share` read single totals, for tests."""
    wait: float = 60.0
    """Seconds after which a server that does not answer is given up."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.least < 1 or self.wait <= 0:
            given = f"{self.size}, {self.least}, {self.wait}"
            raise ConfigError(f"size and least must be 1 or more, wait above 0; got {given}.")
        self._processes: list[Popen[bytes]] = []
        self._ports: list[int] = []
        self._secrets = [secrets.token_bytes(32) for _ in range(2)]
        # Devices and the reader know it; the servers do not.
        self._check = expanded(secrets.token_bytes(SEED), self.size) % np.uint64(PRIME)
        self._period = 0

    def __enter__(self) -> TwoServers:
        link = secrets.token_bytes(32)
        about = {"size": self.size, "least": self.least, "shown": self.shown, "wait": self.wait}
        for number, secret in enumerate(self._secrets):  # both at once; they get only this line
            process = Popen([sys.executable, "-c", BEGIN], stdin=PIPE, stdout=PIPE)
            assert process.stdin is not None
            keys = {"first": number == 0, "secret": secret.hex(), "link": link.hex()}
            line = json.dumps({**about, **keys})
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            self._processes.append(process)
        for process in self._processes:
            assert process.stdout is not None
            port = process.stdout.readline()
            if not port:
                raise DataError("a server did not start. Read its output on stderr.")
            self._ports.append(int(port))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate()  # closes its input, so that it ends

    def add(self, values: Tensor, device: int) -> None:
        """Send a device's contribution to both servers; a negative one withdraws it. [size]"""
        if values.dtype.is_floating_point or tuple(values.shape) != (self.size,):
            given = f"{tuple(values.shape)} of {values.dtype}"
            raise ConfigError(f"a contribution must be {self.size} whole numbers; got {given}.")
        if not bool(values.any()):
            raise ConfigError(f"device {device} has all zeros, which hide nobody. Send nothing.")
        name = secrets.token_bytes(NAME)
        seed, masked = client_shares(values)
        receipt = self._ask(0, SEEDED, name + seed, device)
        tag = (checksum(self._check, values) - seed_checksum(seed)) % PRIME
        load = name + receipt + number_bytes(tag) + masked.astype("<u8").tobytes()
        self._ask(1, MASKED, load, device)

    def share(self, server: int) -> Numbers:
        return numbers_of(self._ask(server, LOOK))

    def open(self) -> Tensor:
        """Return the sum of all contributions that reached both servers. [size] int64

        Raises `DataError` if too few devices contributed, or if a server changed something.
        """
        second = self._ask(1, OPEN)
        end = NUMBER + 8 * self.size
        first = self._ask(0, OPEN, second[end:])
        self._period += 1
        totals = [numbers_of(one[NUMBER:end]) for one in (first, second)]
        tag = sum(int.from_bytes(one[:NUMBER], "big") for one in (first, second)) % PRIME
        total = opened(*totals)
        outside = (total <= -LARGEST) | (total >= LARGEST)
        if bool(outside.any()) or checksum(self._check, total) != tag:
            raise DataError(
                "the sum does not fit its checksum: a server has changed something, or an entry is "
                "above 2**59. Do not use it."
            )
        return total

    def _ask(self, server: int, kind: bytes, load: bytes = b"", device: int | None = None) -> bytes:
        secret = self._secrets[server]
        key = code_of(secret, b"reader") if device is None else device_key(secret, device)
        body = number_bytes(self._period) + number_bytes(device or 0) + load
        try:
            port = self._ports[server]
            with socket.create_connection((HERE, port), timeout=self.wait) as connection:
                _send(connection, kind + code_of(key, kind, body) + body)
                answer = _receive(connection, 8 * self.size + 2**26)
        except (OSError, EOFError, IndexError) as error:
            raise DataError(
                f"server {server + 1} of 2 does not answer ({error!r}). Start again, and let all "
                "devices send again."
            ) from None
        if answer[:1] != OK:
            raise DataError(f"server {server + 1} of 2 refused: {answer[1:].decode()}.")
        return answer[1:]
