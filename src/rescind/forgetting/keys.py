"""Secrets that never leave this machine: the signing key, the erasure key, a requester's key.

They lie in `rescind/` of the user's configuration folder (`$XDG_CONFIG_HOME` or `~/.config`), or in
the folder that `RESCIND_KEYS` names, in files that only their owner may read.

    signing.key    Ed25519, PEM       signs receipts; made on first use
    signing.pub    its public half    to be published, so that others can pin it
    erasure.key    32 random bytes    digests of erased records, so that a rerun leaves them out
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rescind.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SECRET_BYTES = 32
"""256 bits: as strong as the digests (BLAKE2b-256) that are keyed with them."""
PREFIX = "ed25519:"
"""Public keys and signatures are written as this and lower-case hexadecimal digits."""


def folder() -> Path:
    """Where the keys lie: RESCIND_KEYS, or rescind/ in the user's configuration folder."""
    named = os.environ.get("RESCIND_KEYS")
    if named:
        return Path(named).expanduser()
    # The XDG specification: a relative path there is to be ignored.
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".config") / "rescind"


def signing_key() -> Ed25519PrivateKey:
    """The key that signs receipts, made on first use; its public half lies beside it."""
    place = _private_folder() / "signing.key"
    key = _signing(place, _read_or_make(place, _new_signing_key))
    published = place.with_name("signing.pub")
    text = f"{public_text(key)}\n".encode()
    if not published.is_file() or published.read_bytes() != text:
        _written(published, text, os.replace)
    return key


def own_public_key() -> str | None:
    """The public half of this user's signing key; None if they have none. Makes nothing."""
    place = folder() / "signing.key"
    return public_text(_signing(place, read_private(place))) if place.exists() else None


def erasure_key() -> bytes:
    """32 secret bytes under which a run keeps digests of what was erased, made on first use.

    Without the key nobody can ask such a list whether a given record is on it.
    """
    place = _private_folder() / "erasure.key"
    return _secret(place, _read_or_make(place, lambda: _secret_text(new_secret())))


def new_secret() -> bytes:
    """32 bytes from the operating system's entropy, never from a run's seed."""
    return secrets.token_bytes(SECRET_BYTES)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a requester's key as 64 hexadecimal digits, mode 600; an existing file is an error."""
    if not _made(path, _secret_text(secret)):
        raise ConfigError(
            f"{path} exists already, and a key that is overwritten is lost. "
            f"Move it away or name another file."
        )


def read_secret(path: Path) -> bytes:
    """A key that `write_secret` wrote."""
    return _secret(path, read_private(path))


def public_text(key: Ed25519PrivateKey) -> str:
    """The public half as `ed25519:` and 64 hexadecimal digits."""
    return PREFIX + key.public_key().public_bytes_raw().hex()


def public_key(given: str) -> str:
    """The public key in these words, or in the file they name (`ed25519:...` or PEM)."""
    if given.startswith(PREFIX):
        return _public(given, "the key")
    path = Path(given)
    try:
        text = path.read_bytes()[:10_000].decode("ascii").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            f"'{given}' is neither a public key ({PREFIX} and 64 hexadecimal digits) nor a file "
            f"with one ({reason}). Ask the signer for their signing.pub."
        ) from None
    return _public_from_pem(path, text) if text.startswith("-----") else _public(text, str(path))


def read_private(path: Path) -> bytes:
    """The bytes of a secret file; one that others may read is refused."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path} may be read or changed by others (mode {mode:03o}), so it is no "
                    f"secret. If nobody has seen it: chmod 600 {path}"
                )
            return file.read(10_000)
    except OSError as error:
        raise ConfigError(
            f"cannot read the key {path}: {error.strerror or error}. Name a file that you may read."
        ) from None


def _private_folder() -> Path:
    """The folder of keys, made with mode 700; one that others may write to is refused."""
    place = folder()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        mode = stat.S_IMODE(place.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder of keys {place}: {error.strerror or error}. "
            f"Name another with RESCIND_KEYS."
        ) from None
    if mode & 0o022:
        raise ConfigError(
            f"others may write to {place} (mode {mode:03o}) and could exchange the keys in it. "
            f"Do: chmod 700 {place}"
        )
    return place


def _read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """The file, made first if need be; of several makers at once one wins and all read its key."""
    if not path.exists():
        _made(path, make())
    return read_private(path)


def _made(path: Path, data: bytes) -> bool:
    """Make a file of mode 600 that is there whole or not at all; False if there was one before.

    A file made in place would be seen half written by whoever comes second. So it is written under
    another name and linked, which fails, as O_EXCL does, where the name is taken.
    """
    try:
        _written(path, data, os.link)
    except FileExistsError:
        return False
    return True


def _written(path: Path, data: bytes, put: Callable[[Path, Path], None]) -> None:
    """Write beside with mode 600, sync, put in place (by link or replace), sync the folder."""
    from rescind.core.files import sync_folder

    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(beside, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}. "
            f"Make room, or choose a folder that you may write to."
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _new_signing_key() -> bytes:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )


def _signing(path: Path, pem: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} is no Ed25519 signing key in PEM. Bring the right file back, or move it away "
            f"to have a new key made (receipts signed so far stay valid under the old one)."
        )
    return key


def _secret_text(secret: bytes) -> bytes:
    return f"{secret.hex()}\n".encode()


def _secret(path: Path, text: bytes) -> bytes:
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} holds no key: expected {2 * SECRET_BYTES} hexadecimal digits. "
            f"Bring the right file back; a lost key cannot be made again."
        )
    return secret


def _public(text: str, where: str) -> str:
    digits = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ConfigError(
            f"{where} is no public key: expected '{PREFIX}' and 64 lower-case hexadecimal digits. "
            f"Ask the signer for their signing.pub."
        )
    return text


def _public_from_pem(path: Path, text: str) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(
            f"{path} is no public Ed25519 key. Ask the signer for their signing.pub; a private "
            f"key is never needed to verify."
        )
    return PREFIX + key.public_bytes_raw().hex()
