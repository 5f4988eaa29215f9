"""Read what was given on the command line: receipts, keys of logs, small texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rescind.proof.notes import Key


def read_receipt(path: Path, give: str = "Give the path of a receipt.json") -> bytes:
    """Read a file that should be a receipt, or raise `DataError`.

    give: what to give instead, if it cannot be read
    """
    from rescind.errors import DataError
    from rescind.receipts.receipt import LARGEST

    try:
        with open(path, "rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"cannot read {path}: {why}. {give}.") from None


def check_kinds(given: dict[str, list[Path | None]]) -> None:
    """Raise `DataError` if a file belongs to another option than the one it was given with.

    given: files by the option of `rescind verify`; "" for receipts
    """
    from rescind.errors import DataError
    from rescind.receipts.known_files import told_otherwise

    for option, paths in given.items():
        for path in paths:
            if path is None or not path.is_file():
                continue
            if told := told_otherwise(read_receipt(path), option):
                raise DataError(f"{path}: {told}.")


def signing_key_given(text: str) -> str:
    """Return the public key in this text, or in the file of this name, as `ed25519:...`."""
    from rescind.errors import ConfigError
    from rescind.privacy.keys import public_key
    from rescind.receipts.known_files import told_otherwise

    try:
        with open(text, "rb") as file:
            data = file.read(10_000)
    except (OSError, ValueError):
        data = text.encode(errors="replace")
    if told := told_otherwise(data, "--key"):
        raise ConfigError(f"'{text[:80]}': {told}.")
    return public_key(text)


def key_given(text: str, kind: int) -> Key:
    """Return the key in this text, or in the file of this name."""
    from rescind.errors import ConfigError
    from rescind.privacy.keys import PREFIX
    from rescind.proof.notes import Key

    looks_like_key = text.count("+") >= 2 or text.startswith(PREFIX)
    found = (text if looks_like_key else read_text(Path(text))).strip()
    if found.startswith((PREFIX, "-----BEGIN PUBLIC KEY")):
        raise ConfigError(
            f"'{found.splitlines()[0][:80]}' is a signing key: give it to rescind verify --key. "
            f"Expected the key of a log or witness, NAME+ID+KEY on one line."
        )
    return Key.parse(found, kind)


CHECKPOINT = "Give a checkpoint that you kept, such as a copy of public/log/checkpoint"


def checkpoint_given(path: Path | None) -> str | None:
    """Read a checkpoint that whoever checks has kept; None if none was given.

    A file that is none is their own mistake, and says nothing about the operator's log.
    """
    from rescind.errors import ConfigError, DataError
    from rescind.proof.notes import opened

    if path is None:
        return None
    text = read_text(path, CHECKPOINT)
    try:
        opened(text, ())
    except DataError as error:
        why = str(error).rstrip(".")
        raise ConfigError(
            f"{path} is no checkpoint of a log: {why}. Nothing was checked. {CHECKPOINT}."
        ) from None
    return text


def read_text(path: Path, give: str = "Give a key as NAME+ID+KEY, or a file") -> str:
    """Read a small text file that was named on the command line.

    give: what to give instead, if it cannot be read
    """
    from rescind.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"'{str(path)[:80]}' cannot be read ({why}). {give}.") from None
