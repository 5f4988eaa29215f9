"""Two servers that each hold one share of a sum; one share alone reveals nothing.

A device sends one server the seed of a random vector and the other its numbers minus that vector,
modulo 2**64. Each server adds up what it gets; only both totals together give the sum, bit for
bit, because integers do not round. The two processes communicate over local sockets; this is
secure as long as they do not show each other their totals before an opening.

An opened sum itself can reveal data: at least `least` contributions are needed between two
openings, and docs/additive.md says why that is not enough. Used by `Gram(servers=2)`.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from subprocess import PIPE, Popen
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from rescind.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

SEED, NAME = 32, 16
"""Bytes of a seed (256 bits, a ChaCha20 key) and of a contribution's name."""
HERE = "127.0.0.1"
BEGIN = "from rescind.privacy.two_servers import serve; serve()"
_SEEDED, _MASKED, _OPEN, _COUNT, _LOOK = b"SMOCL"
_OK, _REFUSED = b"K", b"R"
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def expanded(seed: bytes, count: int) -> Numbers:
    """Expand a seed to a random vector: the ChaCha20 stream as numbers below 2**64. [count]

    Every seed is used once, so the nonce may be zero.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    if len(seed) != SEED:
        raise ConfigError(f"a seed must have {SEED} bytes, got {len(seed)}.")
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def client_shares(values: Tensor) -> tuple[bytes, Numbers]:
    """Split values into two shares: a new seed, and values minus its vector. values: [n] int64"""
    seed = secrets.token_bytes(SEED)
    numbers = values.cpu().contiguous().numpy().astype(np.int64).view(np.uint64)
    return seed, numbers - expanded(seed, len(numbers))


def opened(first: Numbers, second: Numbers) -> Tensor:
    """Return the signed sum of two totals, modulo 2**64. [n] int64"""
    import torch

    return torch.from_numpy((first + second).view(np.int64).copy())


@dataclass
class Share:
    """The state of one server: a total, and the names of its contributions."""

    total: Numbers
    least: int
    """Minimum number of contributions between two openings."""
    shown: bool = False
    """Whether the total may be read between openings. For tests: both totals reveal the sum."""
    names: set[bytes] = field(default_factory=set)
    since: int = 0

    def answer(self, message: bytes) -> bytes:
        """Answer a message: add a share, or return data; refusals begin with R and a reason."""
        kind, name, load = message[0], message[1 : 1 + NAME], message[1 + NAME :]
        if kind in (_SEEDED, _MASKED):
            size = SEED if kind == _SEEDED else 8 * len(self.total)
            if len(name) != NAME or len(load) != size:
                return _REFUSED + f"a share of {len(load)} bytes, expected {size}".encode()
            if name in self.names:
                return _REFUSED + b"this contribution was already received"
            share = expanded(load, len(self.total)) if kind == _SEEDED else _numbers(load)
            self.total += share  # unsigned numbers wrap: modulo 2**64
            self.names.add(name)
            self.since += 1
            return _OK
        if kind == _COUNT:
            return _OK + b"".join(sorted(self.names))
        if kind == _OPEN and self.since < self.least:
            why = f"{self.since} contributions since the last opening, {self.least} are needed"
            return _REFUSED + why.encode()
        if kind == _OPEN or (kind == _LOOK and self.shown):
            self.since = 0 if kind == _OPEN else self.since
            return _OK + self.total.astype("<u8").tobytes()
        return _REFUSED + b"unknown message"


def _numbers(load: bytes) -> Numbers:
    return np.frombuffer(load, dtype="<u8").astype(np.uint64)


def serve() -> None:
    """Run a server: answer one connection after another until the parent process ends.

    Reads its size, rules and the secret of its callers from one input line, and prints its port.
    """
    size, least, shown, secret = sys.stdin.readline().split()
    share = Share(np.zeros(int(size), dtype=np.uint64), int(least), shown == "1")
    with Listener((HERE, 0), authkey=bytes.fromhex(secret)) as listener:
        print(listener.address[1], flush=True)
        Thread(target=_exit_with_parent, daemon=True).start()
        while True:
            try:
                with listener.accept() as caller:
                    caller.send_bytes(share.answer(caller.recv_bytes()))
            except (AuthenticationError, EOFError, ConnectionError):  # not a valid caller
                continue


def _exit_with_parent() -> None:
    sys.stdin.read()  # ends with the parent
    os._exit(0)


@dataclass
class TwoServers:
    """Two server processes with a share each; use it in a `with` statement.

    with TwoServers(size) as servers:
        servers.add(values)          # from a device
        servers.add(-values)         # the same device withdraws it
        servers.open()               # the sum, for a release
    """

    size: int
    """Numbers per contribution, for example the item pairs of `Gram`."""
    least: int = 1
    """Minimum number of contributions between two openings; each process counts them."""
    shown: bool = False
    """Let `share` read single totals, for tests."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.least < 1:
            given = f"{self.size}, {self.least}"
            raise ConfigError(f"size and least of TwoServers must be at least 1; got {given}.")
        self._processes: list[Popen[bytes]] = []
        self._ports: list[int] = []
        self._secrets = [secrets.token_bytes(32) for _ in range(2)]

    def __enter__(self) -> TwoServers:
        for secret in self._secrets:  # start both at once; they get only this line
            process = Popen([sys.executable, "-c", BEGIN], stdin=PIPE, stdout=PIPE)
            assert process.stdin is not None
            line = f"{self.size} {self.least} {int(self.shown)} {secret.hex()}\n"
            process.stdin.write(line.encode())
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

    def add(self, values: Tensor) -> None:
        """Send a contribution to both servers; a negative one withdraws an earlier one. [size]"""
        if values.dtype.is_floating_point or tuple(values.shape) != (self.size,):
            given = f"{tuple(values.shape)} of {values.dtype}"
            raise ConfigError(f"a contribution must be {self.size} whole numbers; got {given}.")
        name = secrets.token_bytes(NAME)
        seed, masked = client_shares(values)
        self._ask(0, bytes([_SEEDED]) + name + seed)
        self._ask(1, bytes([_MASKED]) + name + masked.astype("<u8").tobytes())

    def share(self, server: int) -> Numbers:
        """Return the total of one server, if `shown` is set. [size]"""
        return _numbers(self._ask(server, bytes([_LOOK])))

    def open(self) -> Tensor:
        """Return the sum. Both servers must have the same contributions. [size] int64"""
        received = [self._ask(server, bytes([_COUNT])) for server in range(2)]
        if received[0] != received[1]:
            first, second = (len(names) // NAME for names in received)
            why = f"the servers have different contributions ({first} and {second})"
            raise DataError(f"{why}: a share was lost. Let its device send both shares again.")
        return opened(*(_numbers(self._ask(server, bytes([_OPEN]))) for server in range(2)))

    def _ask(self, server: int, message: bytes) -> bytes:
        try:
            with Client((HERE, self._ports[server]), authkey=self._secrets[server]) as connection:
                connection.send_bytes(message)
                answer = connection.recv_bytes()
        except (OSError, EOFError, IndexError) as error:
            raise DataError(
                f"server {server + 1} of 2 does not answer ({error!r}). Its share of the sum is "
                "lost: start again and let all devices send again."
            ) from None
        if answer[:1] == _REFUSED:
            raise DataError(f"server {server + 1} of 2 refused: {answer[1:].decode()}.")
        return answer[1:]
