"""Shares of a sum, and the server that adds them up: see `two_servers.py`."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rescind.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

SEED, NAME, MAC, NUMBER = 32, 16, 32, 8
"""Bytes of a seed (256 bits, a ChaCha20 key), of a contribution's name, of a message
authentication code (HMAC-SHA256), and of a number."""
PRIME = 2**61 - 1
"""Checksums are modulo this Mersenne prime: a wrong sum passes with probability 2**-61."""
LARGEST = 2**59
"""Limit of a sum's entries: a change by a multiple of PRIME would not be found."""
SEEDED, MASKED, OPEN, LOOK = b"S", b"M", b"O", b"L"
OK, REFUSED = b"K", b"R"
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


def checksum(key: Numbers, values: Tensor) -> int:
    """Return the product of a secret vector and values modulo PRIME; sums have the sum of it.

    key: [n] below PRIME    values: [n] int64
    """
    numbers = np.mod(values.cpu().numpy().astype(np.int64), PRIME).astype(np.uint64)
    half, low = np.uint64(31), np.uint64(2**31 - 1)
    (a, b), (c, d) = ((x >> half, x & low) for x in (key, numbers))
    # (a 2^31 + b)(c 2^31 + d), where 2^61 = 1; no term is above 2^63.
    middle = a * d + b * c
    products = a * c * np.uint64(2) + (middle >> np.uint64(30)) + b * d
    products = products % np.uint64(PRIME) + ((middle & np.uint64(2**30 - 1)) << half)
    return (int((products >> half).sum()) * 2**31 + int((products & low).sum())) % PRIME


def code_of(key: bytes, *parts: bytes) -> bytes:
    """Return the authentication code of parts, each with its length."""
    whole = b"".join(number_bytes(len(part)) + part for part in parts)
    return hmac.digest(key, whole, "sha256")


def numbers_of(load: bytes) -> Numbers:
    return np.frombuffer(load, dtype="<u8").astype(np.uint64)


def number_bytes(number: int) -> bytes:
    return number.to_bytes(NUMBER, "big")


def device_key(secret: bytes, device: int) -> bytes:
    """Return the key by which a server with this secret knows a device."""
    return code_of(secret, b"device", number_bytes(device))


def seed_checksum(seed: bytes) -> int:
    """Return the first server's share of a checksum, from the seed."""
    return int.from_bytes(code_of(seed, b"checksum"), "big") % PRIME


class _RefusedError(Exception):
    """The reason why a server refuses a message."""


@dataclass
class Share:
    """The state of one server: a total, and who contributed since the last opening."""

    total: Numbers
    least: int
    """Minimum number of different devices between two openings."""
    first: bool
    """Whether this server gets seeds; the other one gets vectors."""
    secret: bytes
    """Keys of devices and of the reader are derived from it."""
    link: bytes
    """The key that both servers know: for receipts, and for the list of who is in a sum."""
    shown: bool = False
    """Whether the total may be read between openings. For tests: both totals reveal the sum."""
    period: int = 0
    """Number of openings so far. Messages of other periods are refused."""
    tag: int = 0
    seeds: dict[bytes, bytes] = field(default_factory=dict)
    """On the first server: name -> a seed that is not in the total yet."""
    devices: dict[bytes, int] = field(default_factory=dict)
    """Name -> the device that sent it."""
    answered: bytes = b""
    """The answer to the last opening, in case it was lost."""

    def answer(self, message: bytes) -> bytes:
        """Answer a message: add a share, or return data; refusals begin with R and a reason.

        A message is its kind, an authentication code, and a body that begins with the period.
        """
        kind, code, body = message[:1], message[1 : 1 + MAC], message[1 + MAC :]
        act: dict[bytes, Callable[[int, bytes], bytes]] = {OPEN: self._open, LOOK: self._look}
        act |= {SEEDED: self._seed} if self.first else {MASKED: self._vector}
        try:
            if kind not in act or len(body) < 2 * NUMBER:
                raise _RefusedError("unknown message")
            period, device = (int.from_bytes(body[n : n + NUMBER], "big") for n in (0, NUMBER))
            key = code_of(self.secret, b"reader")
            if kind in (SEEDED, MASKED):
                key = device_key(self.secret, device)
            if not hmac.compare_digest(code, code_of(key, kind, body)):
                raise _RefusedError("the sender is not known")
            if kind == OPEN and period == self.period - 1:
                return OK + self.answered
            if period != self.period:
                raise _RefusedError(f"a message for opening {period}, the next is {self.period}")
            return OK + act[kind](device, body[2 * NUMBER :])
        except _RefusedError as why:
            return REFUSED + str(why).encode()

    def _seed(self, device: int, load: bytes) -> bytes:
        name, seed = self._named(load, SEED)
        self.seeds[name] = seed
        self.devices[name] = device
        return self._receipt(device, name)

    def _vector(self, device: int, load: bytes) -> bytes:
        name, rest = self._named(load, MAC + NUMBER + 8 * len(self.total))
        receipt, tag, vector = rest[:MAC], rest[MAC : MAC + NUMBER], rest[MAC + NUMBER :]
        if not hmac.compare_digest(receipt, self._receipt(device, name)):
            raise _RefusedError("the first server did not receive this contribution")
        self.total += numbers_of(vector)  # unsigned numbers wrap: modulo 2**64
        self.tag = (self.tag + int.from_bytes(tag, "big")) % PRIME
        self.devices[name] = device
        return b""

    def _named(self, load: bytes, size: int) -> tuple[bytes, bytes]:
        name, rest = load[:NAME], load[NAME:]
        if len(rest) != size:
            raise _RefusedError(f"a share of {len(rest)} bytes, expected {size}")
        if name in self.devices:
            raise _RefusedError("this contribution was already received")
        return name, rest

    def _receipt(self, device: int, name: bytes) -> bytes:
        return code_of(self.link, b"receipt", number_bytes(self.period), number_bytes(device), name)

    def _open(self, _: int, load: bytes) -> bytes:
        """Return checksum, total, and (the second server) who is in it. Begin the next period."""
        names = b"".join(sorted(self.devices))
        if self.first:
            code, names = load[:MAC], load[MAC:]
            if not hmac.compare_digest(code, self._listed(names)):
                raise _RefusedError("the list of contributions is not the second server's")
        inside = [names[n : n + NAME] for n in range(0, len(names), NAME)]
        if not {*inside} <= self.devices.keys():
            raise _RefusedError("seeds of contributions are missing; start again")
        count = len({self.devices[name] for name in inside})
        if count < self.least:
            raise _RefusedError(
                f"{count} devices contributed since the last opening, {self.least} are needed"
            )
        for name in inside if self.first else ():
            self.total += expanded(self.seeds[name], len(self.total))
            self.tag = (self.tag + seed_checksum(self.seeds[name])) % PRIME
        listed = b"" if self.first else self._listed(names) + names
        self.answered = number_bytes(self.tag) + self.total.astype("<u8").tobytes() + listed
        self.period += 1
        self.seeds, self.devices = {}, {}
        return self.answered

    def _listed(self, names: bytes) -> bytes:
        return code_of(self.link, b"list", number_bytes(self.period), names)

    def _look(self, _: int, __: bytes) -> bytes:
        if not self.shown:
            raise _RefusedError("unknown message")
        total = self.total.copy()
        for seed in self.seeds.values():
            total += expanded(seed, len(total))
        return total.astype("<u8").tobytes()
