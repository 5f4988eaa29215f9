"""Two servers that hold a sum together: each has a share, and a share alone says nothing.

A device sends one server the seed of a random vector and the other its numbers less that vector,
modulo 2**64. Each server adds up what it gets; only both totals together give the sum, bit for
bit, since whole numbers do not round. Two processes talk over sockets of this machine; what they
promise holds as long as they do not show each other their totals before an opening.

What an opened sum tells is another matter: `least` contributions must lie between two openings,
and docs/additive.md says why that is not enough. `Gram(servers=2)` runs over it.
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
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from rescind.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

SEED, NAME = 32, 16
"""Bytes of a seed (256 bits, ChaCha20's key) and of a contribution's name."""
HERE = "127.0.0.1"
BEGIN = "from rescind.privacy.two_servers import serve; serve()"
_SEEDED, _MASKED, _OPEN, _COUNT, _LOOK = b"SMOCL"
_FINE, _REFUSED = b"K", b"R"
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


# -- shares ---------------------------------------------------------------------------------------


def expanded(seed: bytes, many: int) -> Numbers:
    """The random vector of a seed: ChaCha20's stream read as numbers below 2**64. [many]

    Every seed is used once, so the nonce may be zero.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    if len(seed) != SEED:
        raise ConfigError(f"a seed has {SEED} bytes, got {len(seed)}.")
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * many))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def client_shares(values: Tensor) -> tuple[bytes, Numbers]:
    """A device's two shares: a fresh seed, and its numbers less the seed's. values: [n] int64"""
    seed = secrets.token_bytes(SEED)
    numbers = values.cpu().contiguous().numpy().astype(np.int64).view(np.uint64)
    return seed, numbers - expanded(seed, len(numbers))


def opened(first: Numbers, second: Numbers) -> Tensor:
    """The sum that two totals hide, modulo 2**64 and with its sign. [n] int64"""
    import torch

    return torch.from_numpy((first + second).view(np.int64).copy())


# -- a server -------------------------------------------------------------------------------------


@dataclass
class Share:
    """What one server holds: a total, and which contributions are in it."""

    total: Numbers
    least: int
    """Contributions that must have come since the last opening, before the next."""
    shown: bool = False
    """Whether the total may be looked at between openings: for tests, since two looks open it."""
    names: set[bytes] = field(default_factory=set)
    since: int = 0

    def answer(self, message: bytes) -> bytes:
        """Take a share in, or tell something; refusals begin with R and say why."""
        kind, name, load = message[0], message[1 : 1 + NAME], message[1 + NAME :]
        if kind in (_SEEDED, _MASKED):
            right = SEED if kind == _SEEDED else 8 * len(self.total)
            if len(name) != NAME or len(load) != right:
                return _REFUSED + f"a share of {len(load)} bytes came, expected {right}".encode()
            if name in self.names:
                return _REFUSED + b"this contribution came before"
            more = expanded(load, len(self.total)) if kind == _SEEDED else _numbers(load)
            self.total += more  # unsigned numbers wrap: modulo 2**64
            self.names.add(name)
            self.since += 1
            return _FINE
        if kind == _COUNT:
            return _FINE + b"".join(sorted(self.names))
        if kind == _OPEN and self.since < self.least:
            said = f"{self.since} contributions came since the last opening, {self.least} must"
            return _REFUSED + said.encode()
        if kind == _OPEN or (kind == _LOOK and self.shown):
            self.since = 0 if kind == _OPEN else self.since
            return _FINE + self.total.astype("<u8").tobytes()
        return _REFUSED + b"nobody knows this message"


def _numbers(load: bytes) -> Numbers:
    return np.frombuffer(load, dtype="<u8").astype(np.uint64)


def serve() -> None:
    """A server's whole life: one connection after another, until whoever started it is gone.

    It is told its size, its rules and the secret of its callers in one line, and says its port.
    """
    size, least, shown, secret = sys.stdin.readline().split()
    share = Share(np.zeros(int(size), dtype=np.uint64), int(least), shown == "1")
    with Listener((HERE, 0), authkey=bytes.fromhex(secret)) as listener:
        print(listener.address[1], flush=True)
        Thread(target=_until_alone, daemon=True).start()
        while True:
            try:
                with listener.accept() as caller:
                    caller.send_bytes(share.answer(caller.recv_bytes()))
            except (AuthenticationError, EOFError, ConnectionError):  # somebody else knocked
                continue


def _until_alone() -> None:
    """End this process when its standard input ends: nobody can ask it any more."""
    sys.stdin.read()
    os._exit(0)


# -- both of them ---------------------------------------------------------------------------------


@dataclass
class TwoServers:
    """Two processes with a share each; use it in a `with` statement.

    with TwoServers(size) as servers:
        servers.add(values)          # from a device
        servers.add(-values)         # the same device takes it back
        servers.open()               # the sum, for a release
    """

    size: int
    """Numbers in a contribution: the pairs of a catalogue, `gram_pairs.half(items)`."""
    least: int = 1
    """Contributions between two openings, at least: each process counts for itself."""
    shown: bool = False
    """Let `share` look at single totals, to see that they say nothing."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.least < 1:
            raise ConfigError(
                f"TwoServers needs a size and a least of 1 or more; got {self.size}, {self.least}."
            )
        self._processes: list[Popen[bytes]] = []
        self._ports: list[int] = []
        self._secrets = [secrets.token_bytes(32) for _ in range(2)]

    def __enter__(self) -> TwoServers:
        for secret in self._secrets:  # both at once; nothing of this process but these words
            process = Popen([sys.executable, "-c", BEGIN], stdin=PIPE, stdout=PIPE)
            assert process.stdin is not None
            words = f"{self.size} {self.least} {int(self.shown)} {secret.hex()}\n"
            process.stdin.write(words.encode())
            process.stdin.flush()
            self._processes.append(process)
        for process in self._processes:
            assert process.stdout is not None
            port = process.stdout.readline()
            if not port:
                raise DataError("a server did not start. Look at what it printed.")
            self._ports.append(int(port))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.communicate()  # whoever started a server and is gone is waited for no longer

    def add(self, values: Tensor) -> None:
        """A device's contribution, to both; a negative one takes an earlier one back. [size]"""
        if values.dtype.is_floating_point or tuple(values.shape) != (self.size,):
            raise ConfigError(
                f"a contribution is {self.size} whole numbers; got {tuple(values.shape)} of "
                f"{values.dtype}."
            )
        name = secrets.token_bytes(NAME)
        seed, masked = client_shares(values)
        self._ask(0, bytes([_SEEDED]) + name + seed)
        self._ask(1, bytes([_MASKED]) + name + masked.astype("<u8").tobytes())

    def share(self, server: int) -> Numbers:
        """What one of them holds, if they were made to show it. [size]"""
        return _numbers(self._ask(server, bytes([_LOOK])))

    def open(self) -> Tensor:
        """The sum. Both must have heard of the same contributions. [size] int64"""
        heard = [self._ask(server, bytes([_COUNT])) for server in range(2)]
        if heard[0] != heard[1]:
            many = [len(names) // NAME for names in heard]
            raise DataError(
                f"the servers have not heard of the same contributions ({many[0]} and {many[1]}): "
                f"one got lost on its way to the other. Let its device send both shares again."
            )
        return opened(*(_numbers(self._ask(server, bytes([_OPEN]))) for server in range(2)))

    def _ask(self, server: int, message: bytes) -> bytes:
        try:
            with Client((HERE, self._ports[server]), authkey=self._secrets[server]) as line:
                line.send_bytes(message)
                answer = line.recv_bytes()
        except (OSError, EOFError, IndexError) as error:
            raise DataError(
                f"server {server + 1} of 2 does not answer ({error!r}). The sum is lost with its "
                f"share: begin anew and let everybody send again."
            ) from None
        if answer[:1] == _REFUSED:
            raise DataError(f"server {server + 1} of 2 refused: {answer[1:].decode()}.")
        return answer[1:]
