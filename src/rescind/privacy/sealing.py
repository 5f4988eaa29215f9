"""Seal what strangers must not learn from a receipt: keyed digests, encryption, bands of counts.

Data may be public. Then whoever knows a count, or the digest of a model, can train the model
without one person after another until it fits. So a stranger sees bands and keyed digests only,
and the requester's key opens the exact numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode

from rescind.errors import ConfigError, DataError
from rescind.privacy.keys import SECRET_BYTES

SEALED, BOUND, BOX = "sealed:", "bound:", "chacha20-poly1305:"
_NONCE, _BLOCK = 12, 1024


def sealed(text: str, key: bytes) -> str:
    """Return a digest under the requester's key, so that guesses need the key."""
    return SEALED + _keyed(text, key, b"rescind seal")


def bound(text: str, run_key: bytes) -> str:
    """Return a digest under the run's key: whoever has the run can compare it, nobody else."""
    return BOUND + _keyed(text, run_key, b"rescind bound")


def run_key(key: bytes) -> bytes:
    """Return the run's key. It follows from the requester's key, but not the other way."""
    return bytes.fromhex(_keyed("", key, b"rescind run key"))


def fits(stated: str, text: str, key: bytes | None) -> bool:
    """Return whether a digest in a receipt stands for this text. key: the run's key"""
    expected = text if key is None or not stated.startswith(BOUND) else bound(text, key)
    return hmac.compare_digest(stated.encode(), expected.encode())


def encrypt(data: bytes, key: bytes) -> str:
    """Encrypt for the holder of the key. The length is padded, because it tells of the content."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE)
    padded = data + b" " * (-len(data) % _BLOCK)
    box = ChaCha20Poly1305(_box_key(key)).encrypt(nonce, padded, None)
    return BOX + b64encode(nonce + box).decode()


def decrypt(text: str, key: bytes) -> bytes:
    """Decrypt, or raise `DataError` if the key is another one or the text was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        box = b64decode(text.removeprefix(BOX), validate=True)
        return ChaCha20Poly1305(_box_key(key)).decrypt(box[:_NONCE], box[_NONCE:], None)
    except (InvalidTag, ValueError):
        raise DataError(
            "the key does not open the sealed part: it belongs to another receipt. "
            "Give the receipt.key that came with this one."
        ) from None


def band(number: float) -> str:
    """Return the band of a count by its number of digits: 0-9, 10-99, 100-999, ..."""
    whole = int(min(max(number, 0), 1e300))
    lowest = 10 ** (len(str(whole)) - 1) if whole > 9 else 0
    return f"{lowest}-{10 * max(lowest, 1) - 1}"


def shown(number: float | str) -> str:
    """Return a number for people to read, with commas; a band as it is."""
    if isinstance(number, str):
        return number
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def _box_key(key: bytes) -> bytes:
    return bytes.fromhex(_keyed("", key, b"rescind box"))


def _keyed(text: str, key: bytes, purpose: bytes) -> str:
    if len(key) != SECRET_BYTES:
        raise ConfigError(f"a seal needs a key of {SECRET_BYTES} bytes, got {len(key)}.")
    return hashlib.blake2b(text.encode(), key=key, digest_size=32, person=purpose).hexdigest()
