"""Receipts in the operator's log: an entry for each, and a proof that anybody can check offline.

The entry is the SHA-256 of the receipt. A receipt has a digest under the requester's key in it, so
the entry cannot be guessed, and the log may be public. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError, RescindError
from rescind.privacy import keys
from rescind.proof.log_folder import CHECKPOINT, RECEIPT, LogFolder, at_time, entry_of
from rescind.proof.notes import LARGEST, Key, Proof, opened
from rescind.receipts.verify import Check

SUFFIX = ".tlog-proof"


def default_log() -> Path:
    """Return the folder of this user's log, beside the keys."""
    return keys.folder() / "log"


def open_log(folder: Path | None = None, name: str | None = None) -> LogFolder:
    """Open a log; make it, under a name with the key's first digits, if there is none."""
    place, private = folder or default_log(), keys.log_key()
    if not (place / CHECKPOINT).exists():
        name = name or f"rescind/{private.public_key().public_bytes_raw().hex()[:8]}"
    return LogFolder.make(place, name or "", private)


def key_of(log: LogFolder) -> Key:
    """Return the public key of this user's log."""
    public = keys.log_key().public_key().public_bytes_raw()
    return Key(log.checkpoint.origin, public)


def own_key_under(note: str) -> Key:
    """Return the key of this user's log if it signed this checkpoint, for whoever gave no key.

    Without a key nothing was found wrong, so the error is about the missing key.
    """
    name = opened(note, ())[0].origin
    if (keys.folder() / "log.key").exists():
        own = Key(name, keys.log_key().public_key().public_bytes_raw())
        if own in opened(note, [own])[1]:
            return own
    raise ConfigError(
        f"no log key was given, and your own key did not sign the log {name}. Give its key with "
        f"--log-key (NAME+ID+KEY or a file), as its operator publishes it."
    )


def proof_path(receipt: Path) -> Path:
    """Return where the proof of a receipt is."""
    return receipt.with_suffix(SUFFIX)


def log_receipt(receipt: Path, log: LogFolder) -> int:
    """Append a receipt's digest to the log, write the proof beside it; return its number.

    A receipt that is in the log already gets a new proof only.
    """
    data = receipt.read_bytes()
    log.append([entry_of(RECEIPT, data)], keys.log_key())
    proof = log.proof(entry_of(RECEIPT, data))
    write_atomically(proof_path(receipt), str(proof).encode())
    return proof.index


def log_if_possible(receipt: Path) -> bool:
    """Log a receipt in this user's log; False if the log is damaged. Forgetting does not wait."""
    try:
        log_receipt(receipt, open_log())
    except (RescindError, OSError):
        return False
    return True


def check_proof(
    data: bytes, proof: bytes, log: Key | None, witnesses: Sequence[Key] = ()
) -> list[Check]:
    """Return whether a receipt is in the log that its proof names, and who has seen that log.

    log: None for this user's own
    """
    try:
        given = Proof.parse(proof[: LARGEST + 1].decode("utf-8"))
        log = log or own_key_under(given.note)
        point, seen = given.check(entry_of(RECEIPT, data), log, witnesses)
    except (DataError, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, DataError) else "it is not text"
        return [Check(False, f"the proof does not hold: {why.rstrip('.')}")]
    place = (
        f"entry {given.index + 1:,} of {point.size:,} in the log {point.origin} "
        f"(index {given.index:,})"
    )
    checks = [Check(True, f"it is {place}")]
    for key, at in seen.items():
        checks.append(Check(True, f"{key.name} saw this log on {at_time(at)} and cosigned it"))
    if not seen:
        alone = "nobody but the log itself vouches for its history: name a witness with --witness"
        checks.append(Check(True, alone, note=True))
    return checks
