"""What a log and its witnesses sign: checkpoints, cosignatures, and proofs to take away.

Follows the C2SP texts signed-note, tlog-checkpoint, tlog-cosignature and tlog-proof. Each thing can
be written in one way only, so no byte of a proof can be changed unnoticed. Needs cryptography only.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rescind.errors import ConfigError, DataError
from rescind.proof.tlog import leaf_hash, root_of

LOG, WITNESS = 1, 4
"""Types of signatures: a log's own, and a witness's, which states the time."""
LARGEST = 1 << 16
"""Largest note or proof in bytes that is read. A proof has about 1,100."""
_PROOF = "c2sp.org/tlog-proof@v1"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Key:
    """A public key and the name it signs under: a log's or a witness's."""

    name: str
    public: bytes
    kind: int = LOG

    @property
    def id(self) -> bytes:
        """Four bytes that find the key of a signature."""
        return sha256(f"{self.name}\n".encode() + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        material = b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.id.hex()}+{material}"

    @classmethod
    def parse(cls, text: str, kind: int) -> Key:
        """Read NAME+ID+KEY, as `rescind log key` and `rescind witness` print it."""
        what = "a log" if kind == LOG else "a witness"
        try:
            name, _, material = text.strip().split("+", 2)
            raw = _unbase64(material)
            found = cls(name, raw[1:], raw[0] if raw else 0)
            good = str(found) == text.strip() and len(found.public) == 32 and found.kind == kind
        except (ValueError, DataError):
            good = False
        if not good or not is_name(name):
            raise ConfigError(
                f"'{text[:80]}' is not the key of {what}: expected NAME+ID+KEY on one line. "
                f"Ask whoever runs it for this line."
            )
        return found

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Return whether this key signed the message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def is_name(name: str) -> bool:
    """Return whether a log or a witness can have this name."""
    return bool(name) and name.isprintable() and not re.search(r"[\s+]", name)


def _unbase64(text: str) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        raw = b""
    if b64encode(raw).decode() != text:  # the last letter has bits that a decoder ignores
        raise DataError(f"'{text[:50]}' is not base64 as it is written here.")
    return raw


def number(text: str) -> int:
    """Read a number as notes write it, or raise `DataError`."""
    if not _NUMBER.fullmatch(text):
        raise DataError(f"'{text[:30]}' is not a number without leading zeroes.")
    return int(text)


def hash_line(text: str) -> bytes:
    """Read a hash of 32 bytes in base64, or raise `DataError`."""
    if len(raw := _unbase64(text)) != 32:
        raise DataError(f"'{text[:50]}' is not a hash of 32 bytes in base64.")
    return raw


@dataclass(frozen=True)
class Checkpoint:
    """What a log says about itself: its name, how many entries it has, and their root."""

    origin: str
    size: int
    root: bytes

    def __str__(self) -> str:
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a note. Extension lines are refused: nobody here would check them."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not is_name(lines[0]):
            raise DataError("a checkpoint has three lines: the log's name, its size and its root.")
        return cls(lines[0], number(lines[1]), hash_line(lines[2]))


def signature_line(
    text: str, name: str, private: Ed25519PrivateKey, kind: int = LOG, at: int = 0
) -> str:
    """Return the line that signs a note's text. at: POSIX seconds, for a witness"""
    stamp = at.to_bytes(8) if kind == WITNESS else b""
    raw = stamp + private.sign(_message(text, kind, at))
    key = Key(name, private.public_key().public_bytes_raw(), kind)
    return f"\u2014 {name} {b64encode(key.id + raw).decode()}\n"


def signed(checkpoint: Checkpoint, private: Ed25519PrivateKey) -> str:
    """Return a checkpoint as a note, signed by its log."""
    return f"{checkpoint}\n{signature_line(str(checkpoint), checkpoint.origin, private)}"


def _message(text: str, kind: int, at: int) -> bytes:
    return (f"cosignature/v1\ntime {at}\n{text}" if kind == WITNESS else text).encode()


def opened(note: str, trusted: Collection[Key]) -> tuple[Checkpoint, dict[Key, int]]:
    """Return the checkpoint in a note, and which trusted keys signed it (when; a log: 0).

    Lines of other keys are ignored. A wrong signature of a trusted key is an error.
    """
    if len(note) > LARGEST or not note.endswith("\n"):
        raise DataError("it is not a signed note: expected text, an empty line and signatures.")
    text, _, below = note.rpartition("\n\n")
    by_name, found = {(key.name, key.id): key for key in trusted}, dict[Key, int]()
    for line in below.split("\n")[:-1]:
        mark, name, raw = (*line.split(" "), "", "", "")[:3]
        signature = _unbase64(raw)
        if mark != "\u2014" or not is_name(name) or line.count(" ") != 2 or len(signature) < 5:
            raise DataError(f"'{line[:60]}' is not the line of a signature.")
        if (key := by_name.get((name, signature[:4]))) is None:
            continue
        skip = 12 if key.kind == WITNESS else 4
        at = int.from_bytes(signature[4:skip])
        if key in found or not key.holds(signature[skip:], _message(f"{text}\n", key.kind, at)):
            raise DataError(f"the signature of {name} does not fit the checkpoint.")
        found[key] = at
    return Checkpoint.parse(f"{text}\n"), found


def bare(note: str) -> str:
    """Return a checkpoint with the log's own signature only."""
    text, _, below = note.rpartition("\n\n")
    own = f"\u2014 {text.partition(chr(10))[0]} "
    lines = below.splitlines(keepends=True)
    return f"{text}\n\n" + "".join(line for line in lines if line.startswith(own))


@dataclass(frozen=True)
class Proof:
    """That an entry is in a log: its place, the hashes beside its way up, a signed checkpoint."""

    index: int
    path: tuple[bytes, ...]
    note: str

    def __str__(self) -> str:
        hashes = "".join(f"{b64encode(one).decode()}\n" for one in self.path)
        return f"{_PROOF}\nindex {self.index}\n{hashes}\n{self.note}"

    @classmethod
    def parse(cls, text: str) -> Proof:
        """Read a `.tlog-proof`, or raise `DataError`. Extra data is refused: nothing signs it."""
        above, _, note = text.partition("\n\n")
        lines = above.split("\n")
        if len(text) > LARGEST or lines[0] != _PROOF or not lines[1:] or len(lines) > 66:
            raise DataError(f"it is not a proof: expected {_PROOF} on its first line.")
        if not lines[1].startswith("index "):
            raise DataError(f"its second line is '{lines[1][:40]}', expected 'index NUMBER'.")
        return cls(number(lines[1][6:]), tuple(map(hash_line, lines[2:])), note)

    def check(
        self, entry: bytes, log: Key, witnesses: Collection[Key] = ()
    ) -> tuple[Checkpoint, Mapping[Key, int]]:
        """Return the checkpoint and when each witness saw it, or raise `DataError`.

        The log and all given witnesses must have signed, and the entry must be in the tree.
        """
        point, found = opened(self.note, [log, *witnesses])
        if log not in found or point.origin != log.name:
            raise DataError(f"its checkpoint is not signed by the log {log.name} that you trust.")
        if missing := [key.name for key in witnesses if key not in found]:
            raise DataError(f"its checkpoint is not cosigned by {', '.join(missing)}.")
        if root_of(leaf_hash(entry), self.index, point.size, self.path) != point.root:
            raise DataError("the entry is not at this place of the log that the checkpoint signs.")
        return point, {key: at for key, at in found.items() if key.kind == WITNESS}
