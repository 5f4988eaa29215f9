"""Compare who signed two proofs of one entry: a newer one may have fewer signatures."""

from __future__ import annotations

import re
from base64 import b64decode

from rescind.proof.notes import Checkpoint, Proof
from rescind.proof.tlog import leaf_hash, root_of

_SIGNATURE = re.compile("^\u2014 (\\S+) (\\S+)$", re.MULTILINE)


def lost(kept: Proof, newer: Proof, entry: bytes) -> list[str]:
    """Return the names of signers that a kept proof of an entry has and a newer one has not."""
    point = Checkpoint.parse(kept.note.partition("\n\n")[0] + "\n")
    if root_of(leaf_hash(entry), kept.index, point.size, kept.path) != point.root:
        return []  # it is no proof of this entry
    return [name for name, _ in sorted(_signers(kept.note) - _signers(newer.note))]


def _signers(note: str) -> set[tuple[str, bytes]]:
    """Return who signed a note, by name and key; nothing is checked."""
    return {(name, b64decode(text)[:4]) for name, text in _SIGNATURE.findall(note)}
