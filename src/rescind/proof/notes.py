"""What a log and its witnesses sign: checkpoints, cosignatures, and proofs to take away.

Follows the C2SP texts signed-note, tlog-checkpoint, tlog-cosignature and tlog-proof. Each thing can
be written in one way only: what was read is written again and compared. So no byte of a proof can
be changed unnoticed. Needs hashlib and cryptography only.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as Private
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey as Public

from rescind.errors import ConfigError, DataError, NotCosigned
from rescind.proof.tlog import leaf_hash, root_of

LOG, WITNESS = 1, 4
"""Types of signatures: a log's own, and a witness's, which states the time."""
LARGEST = 1 << 16
"""Largest note or proof in bytes that is read. A proof has about 1,100."""
HASH = "[A-Za-z0-9+/]{43}="
"""A hash of 32 bytes in base64, as a pattern."""
_KEY = re.compile(r"([^+]+)\+[0-9a-f]{8}\+([A-Za-z0-9+/]{44})")
_CHECKPOINT = re.compile(rf"(.+)\n(\d{{1,18}})\n({HASH})\n")
_LINE = r"\u2014 \S+ (?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\n"
_NOTE = re.compile(rf"(.+\n)\n((?:{_LINE})+)", re.DOTALL)
_FIRST = "c2sp.org/tlog-proof@v1\nindex "
_PROOF = re.compile(rf"{_FIRST}(\d{{1,18}})\n((?:{HASH}\n){{0,64}})\n(.+)", re.DOTALL)


class Key(NamedTuple):
    """A public key and the name it signs under: a log's or a witness's."""

    name: str
    public: bytes
    kind: int = LOG

    @property
    def id(self) -> bytes:
        """Four bytes that find the key of a signature."""
        return sha256(f"{self.name}\n".encode() + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{in_base64(bytes([self.kind]) + self.public)}"

    @classmethod
    def parse(cls, text: str, kind: int) -> Key:
        """Read NAME+ID+KEY, as `rescind log key` and `rescind witness` print it."""
        # `rescind witness` prints a word before it.
        if (given := _KEY.fullmatch(text.strip().removeprefix("witness "))) and is_name(given[1]):
            key = cls(given[1], b64decode(given[2])[1:], kind)
            if str(key) == given[0]:
                return key
        told = f"'{text[:80]}' is not the key of {'a log' if kind == LOG else 'a witness'}"
        raise ConfigError(f"{told}: expected NAME+ID+KEY on one line. Ask whoever runs it for it.")

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Return whether this key signed the message."""
        try:
            Public.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def is_name(name: str) -> bool:
    """Return whether a log or a witness can have this name."""
    return bool(name) and name.isprintable() and not re.search(r"[\s+]", name)


def in_base64(raw: bytes) -> str:
    """Return bytes as notes write them."""
    return b64encode(raw).decode()


class Checkpoint(NamedTuple):
    """What a log says about itself: its name, how many entries it has, and their root."""

    origin: str
    size: int
    root: bytes

    def __str__(self) -> str:
        return f"{self.origin}\n{self.size}\n{in_base64(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a note. Extension lines are refused: nobody here would check them."""
        if (given := _CHECKPOINT.fullmatch(text)) and is_name(given[1]):
            point = cls(given[1], int(given[2]), b64decode(given[3]))
            if str(point) == text:
                return point
        raise DataError("a checkpoint has three lines: the log's name, its size and its root.")


def signature_line(text: str, name: str, private: Private, kind: int = LOG, at: int = 0) -> str:
    """Return the line that signs a note's text. at: POSIX seconds, for a witness"""
    key = Key(name, private.public_key().public_bytes_raw(), kind)
    stamp = at.to_bytes(8) if kind == WITNESS else b""
    return f"\u2014 {name} {in_base64(key.id + stamp + private.sign(_message(text, kind, at)))}\n"


def signed(checkpoint: Checkpoint, private: Private) -> str:
    """Return a checkpoint as a note, signed by its log."""
    return f"{checkpoint}\n{signature_line(str(checkpoint), checkpoint.origin, private)}"


def _message(text: str, kind: int, at: int) -> bytes:
    return (f"cosignature/v1\ntime {at}\n{text}" if kind == WITNESS else text).encode()


Opened = tuple[Checkpoint, dict[Key, int]]
"""What a note says, and who of those that one trusts signed it when."""


def opened(note: str, trusted: Collection[Key], read: Any = Checkpoint.parse) -> Opened:
    """Return the checkpoint in a note, and which trusted keys signed it (when; a log: 0).

    Lines of other keys are ignored. A wrong signature of a trusted key is an error.
    read: for another text than a checkpoint
    """
    if len(note) > LARGEST or not (given := _NOTE.fullmatch(note)):
        raise DataError("it is not a signed note: expected text, an empty line and signatures.")
    by_name, found = {(key.name, key.id): key for key in trusted}, dict[Key, int]()
    for _, name, text in map(str.split, given[2].splitlines()):
        signature = b64decode(text)
        if key := by_name.get((name, signature[:4])):
            skip = 12 if key.kind == WITNESS else 4
            at = int.from_bytes(signature[4:skip])
            good = key.holds(signature[skip:], _message(given[1], key.kind, at))
            if key in found or not good or in_base64(signature) != text:
                raise DataError(f"the signature of {name} does not fit what it signed.")
            found[key] = at
    return read(given[1]), found


def vouched(note: str, log: Key, witnesses: Collection[Key] = ()) -> Opened:
    """Return a checkpoint that the log and all these witnesses signed, and when they saw it."""
    point, found = opened(note, [log, *witnesses])
    if found.pop(log, None) is None or point.origin != log.name:
        raise DataError(f"the checkpoint is not signed by the log {log.name} that you trust.")
    if missing := [key.name for key in witnesses if key not in found]:
        raise NotCosigned(missing)
    return point, found


@dataclass(frozen=True)
class Proof:
    """That an entry is in a log: its place, the hashes beside its way up, a signed checkpoint."""

    index: int
    path: tuple[bytes, ...]
    note: str

    def __str__(self) -> str:
        return "\n".join([f"{_FIRST}{self.index}", *map(in_base64, self.path), "", self.note])

    @classmethod
    def parse(cls, text: str) -> Proof:
        """Read a `.tlog-proof`, or raise `DataError`. Extra data is refused: nothing signs it."""
        if len(text) <= LARGEST and (given := _PROOF.fullmatch(text)):
            proof = cls(int(given[1]), tuple(map(b64decode, given[2].split())), given[3])
            if str(proof) == text:
                return proof
        raise DataError("it is not a proof as c2sp.org/tlog-proof@v1 writes it.")

    def check(self, entry: bytes, log: Key, witnesses: Collection[Key] = ()) -> Opened:
        """Return the checkpoint and when each witness saw it; raise `DataError` if not in it."""
        point, seen = vouched(self.note, log, witnesses)
        if root_of(leaf_hash(entry), self.index, point.size, self.path) != point.root:
            raise DataError("the entry is not at this place of the log that the checkpoint signs.")
        return point, seen
