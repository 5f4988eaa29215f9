"""Secret keys on this machine: the signing key, the erasure key, and requesters' keys.

They are in `keys/` of the home (`rescind.core.home`), in files that only their owner can read, but
for signing.pub.

    signing.key    Ed25519, PEM       signs receipts; made on first use
    signing.pub    its public half    to publish, so that others can verify
    operator.txt   name, contact      of who signs, which receipts state
    software.txt   an address         where requesters get this program, which receipts state
    rotated-*.json statements         of new signing keys, signed by the old and the new one
    erasure.key    32 random bytes    digests of erased records, which reruns leave out
    log.key        Ed25519, PEM       signs checkpoints of the log in log/
    roster-*.json  secret seeds       hide the lines of a roster
    methods.txt    paths              of methods that this user has run (`methods/_outside.py`)
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rescind.core.claims import OPERATOR, SOFTWARE
from rescind.core.home import home
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SECRET_BYTES = 32
"""256 bits, like the keyed digests (BLAKE2b-256)."""
PRIVATE, PUBLIC = 0o600, 0o644
"""Modes of files; the umask may take more away."""
PREFIX = "ed25519:"
"""Public keys and signatures are this prefix and lower-case hexadecimal digits."""


def folder() -> Path:
    """Return the key folder of this home."""
    return home() / "keys"


def signing_key() -> Ed25519PrivateKey:
    """Return the key that signs receipts. It is made on first use, with its public half.

    Without a home, as in Python that only tries things out, it is one of this process alone.
    """
    if not home().is_dir():
        return _passing_key()
    place = private_folder() / "signing.key"
    key = key_at(place)
    published = place.with_name("signing.pub")
    text = f"{public_text(key)}\n".encode()
    if not published.is_file() or published.read_bytes() != text:
        _write(published, text, os.replace, PUBLIC)
    return key


@lru_cache
def _passing_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def about_signer() -> dict[str, str]:
    """Return what receipts state of the signer. A folder that cannot be entered says nothing."""
    found = dict[str, str]()
    for name in (OPERATOR, SOFTWARE):
        with suppress(OSError, RuntimeError):  # the latter: of a user who has no home
            if text := (folder() / f"{name}.txt").read_text("utf-8", errors="replace").strip():
                found[name] = text
    return found


def say_of_signer(name: str, text: str) -> None:
    """Write down what receipts state from now on. name: one of OPERATOR, SOFTWARE"""
    _write(private_folder() / f"{name}.txt", f"{text}\n".encode(), os.replace)


def rotate_signing_key(today: str) -> Path:
    """Replace the key that signs receipts; return a statement that both keys signed.

    Old receipts stay valid: their key is in the statement, and it is destroyed. Killed on the way,
    the next call finishes the same rotation. today: as 2026-11-30
    """
    place, old = private_folder(), signing_key()
    fresh = place / "signing.new"
    new = key_at(fresh)
    fact = {"old": public_text(old), "new": public_text(new), "date": today}
    text = json.dumps(fact, sort_keys=True).encode()
    signed = {**fact, "by_old": old.sign(text).hex(), "by_new": new.sign(text).hex()}
    name = fact["old"].removeprefix(PREFIX)[:12]
    statement = place / f"rotated-{name}.json"
    _write(statement, json.dumps(signed, indent=1).encode(), os.replace)
    os.replace(fresh, place / "signing.key")  # from now on the new key signs
    signing_key()  # writes its public half
    return statement


def check_rotation(statement: bytes) -> tuple[str, str, str]:
    """Return the old key, the new key and the date of a rotation that both keys signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        given = json.loads(statement)
        fact = {name: str(given[name]) for name in ("old", "new", "date")}
        text = json.dumps(fact, sort_keys=True).encode()
        for which in ("old", "new"):
            key = bytes.fromhex(fact[which].removeprefix(PREFIX))
            Ed25519PublicKey.from_public_bytes(key).verify(
                bytes.fromhex(given[f"by_{which}"]), text
            )
    except (ValueError, KeyError, TypeError, InvalidSignature):
        raise ConfigError("this is no statement of a new key that both keys signed.") from None
    return fact["old"], fact["new"], fact["date"]


def log_key() -> Ed25519PrivateKey:
    return key_at(private_folder() / "log.key")


def key_at(path: Path) -> Ed25519PrivateKey:
    """Return the Ed25519 key in a file of mode 600, made on first use."""
    return _signing(path, _read_or_make(path, _new_signing_key))


def own_public_key() -> str | None:
    """Return the public half of this user's signing key, or None. Does not make a key."""
    if not home().is_dir() and _passing_key.cache_info().currsize:
        return public_text(_passing_key())
    place = folder() / "signing.key"
    return public_text(_signing(place, read_private(place))) if place.exists() else None


def earlier_public_keys() -> dict[str, str]:
    """Return the keys that this user's key has replaced, each with the day: receipts stay valid.

    Only keys of one chain count, from the key of now backwards, each signed by the next.
    """
    own, found = own_public_key(), dict[str, str]()
    statements = [check_rotation(path.read_bytes()) for path in folder().glob("rotated-*.json")]
    by_new = {new: (old, date) for old, new, date in statements}
    while own in by_new and by_new[own][0] not in found:
        own, date = by_new[own]
        found[own] = date
    return found


def erasure_key() -> bytes:
    """Return the 32 secret bytes for digests of erased records, made on first use.

    Without the key, one cannot test whether a record is on a list of such digests.
    """
    place = private_folder() / "erasure.key"
    return secret_in(_read_or_make(place, lambda: _secret_text(new_secret())), place)


def new_secret() -> bytes:
    """Return 32 random bytes from the operating system, never from a run's seed."""
    return secrets.token_bytes(SECRET_BYTES)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a requester's key as 64 hexadecimal digits, mode 600; an existing file is an error."""
    if not _create(path, _secret_text(secret)):
        raise ConfigError(f"{path} exists already. Move it away or name another file.")


def replace_secret(path: Path, secret: bytes) -> None:
    """Write a key like `write_secret`, in place of an earlier one."""
    _write(path, _secret_text(secret), os.replace)


def read_secret(path: Path) -> bytes:
    return secret_in(read_private(path), path)


def read_saved_secret(path: Path) -> tuple[bytes, int]:
    """Read a requester's key; return it with the mode of its file if others can read it, else 0.

    Mail programs and browsers save files so that everybody on the machine can read them. The
    requester's key signs nothing, so it is not refused, as this user's own keys are.
    """
    data, mode = _read(path, 10_000)
    return secret_in(data, path), mode if mode & 0o077 else 0


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public half as `ed25519:` and 64 hexadecimal digits."""
    return PREFIX + key.public_key().public_bytes_raw().hex()


def public_key(given: str) -> str:
    """Return the public key in this text (`ed25519:...`), or in the file of this name (or PEM)."""
    if given.startswith(PREFIX):
        return _public(given, "the key")
    path = Path(given)
    try:
        text = path.read_bytes()[:10_000].decode("ascii").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"'{given}' is neither a public key ({PREFIX} and 64 hexadecimal digits) nor a file "
            f"with one ({reason}). Ask the signer for signing.pub."
        ) from None
    return _public_from_pem(path, text) if text.startswith("-----") else _public(text, str(path))


def read_private(path: Path, largest: int = 10_000) -> bytes:
    """Read a secret file. It is refused if other users can read it."""
    data, mode = _read(path, largest)
    if mode & 0o077:
        raise ConfigError(
            f"{path} can be read or changed by other users (mode {mode:03o}). If no one else has "
            f"read it: chmod 600 {path}"
        )
    return data


def private_folder() -> Path:
    """Return the key folder, made with mode 700. It is refused if other users can write to it."""
    place = folder()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        mode = stat.S_IMODE(place.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"cannot make the key folder {place}: {error.strerror or error}. "
            f"Name another home with RESCIND_HOME."
        ) from None
    if mode & 0o022:
        raise ConfigError(
            f"other users can write to {place} (mode {mode:03o}). Run: chmod 700 {place}"
        )
    return place


def _read(path: Path, largest: int) -> tuple[bytes, int]:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            return file.read(largest), mode
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror or error}.") from None


def _read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read a file, made first if missing; if several processes make it, all read the same one."""
    if not path.exists():
        _create(path, make())
    return read_private(path)


def _create(path: Path, data: bytes) -> bool:
    """Create a complete file of mode 600; return False if it exists already.

    It is written under another name and linked, which fails if the name is taken. So no other
    process can read a file that is written only in part.
    """
    try:
        _write(path, data, os.link)
    except FileExistsError:
        return False
    return True


def _write(path: Path, data: bytes, put: Callable[[Path, Path], None], mode: int = PRIVATE) -> None:
    """Write a temporary file, sync, link or rename it, and sync the folder."""
    from rescind.core.files import sync_folder

    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}.") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


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
            f"{path} is not an Ed25519 signing key. Restore the right file, or move it away to get "
            f"a new key."
        )
    return key


def _secret_text(secret: bytes) -> bytes:
    return f"{secret.hex()}\n".encode()


def secret_in(text: bytes, path: Path | str) -> bytes:
    """Return the secret that the text of a file is. path: of the file, for the error"""
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} holds no key of {2 * SECRET_BYTES} hexadecimal digits. Restore the right file."
        )
    return secret


def _public(text: str, where: str) -> str:
    digits = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ConfigError(
            f"{where} is not a public key: '{PREFIX}' and 64 lower-case hexadecimal digits."
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
            f"{path} is not a public Ed25519 key; a private key is never needed to verify."
        )
    return PREFIX + key.public_bytes_raw().hex()
