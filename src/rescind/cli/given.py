"""Read what was given on the command line: receipts, keys of logs, small texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rescind.proof.notes import Key


def read_bytes(path: Path, most: int = 1 << 20) -> bytes:
    """Read a file; one byte more than `most`, so that a reader can tell that it is too long."""
    from rescind.errors import DataError

    try:
        with open(path, "rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Name another file.") from None


def key_given(text: str, kind: int) -> Key:
    """Return the key in this text, or in the file of this name."""
    from rescind.proof.notes import Key

    looks_like_key = text.count("+") >= 2 or text.startswith("ed25519:")
    return Key.parse((text if looks_like_key else read_text(Path(text))).strip(), kind)


def checkpoint_given(path: Path | None) -> str | None:
    """Read a checkpoint that whoever checks has kept; None if none was given.

    A file that is none is their own mistake, and says nothing about the operator's log.
    """
    from rescind.errors import ConfigError, DataError
    from rescind.proof.notes import opened

    if path is None:
        return None
    text = read_text(path)
    try:
        opened(text, ())
    except DataError as error:
        raise ConfigError(
            f"{path} is no checkpoint of a log: {error} Nothing was checked. Give a copy of "
            f"public/log/checkpoint."
        ) from None
    return text


def read_text(path: Path) -> str:
    """Read a small text file that was named on the command line."""
    from rescind.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"'{str(path)[:80]}' cannot be read ({why}). Name another file."
        ) from None
