"""Read the acknowledgement of a service, for `rescind verify --acknowledgement`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rescind.cli.given import key_given

if TYPE_CHECKING:
    from rescind.receipts.acknowledgement import Claim

NEEDS = "--item names a record of a service's acknowledgement. Give that with --acknowledgement."


def acknowledged(
    path: Path | None, items: list[str], secret: bytes | None, log_key: str | None
) -> tuple[list[Claim], bytes | None, str]:
    """Return the checks of an acknowledgement, the key of the receipt, and where it was.

    secret: the key, if it was given; otherwise that of the answer is taken
    """
    from rescind.errors import ConfigError, DataError

    if path is None:
        if items:
            raise ConfigError(NEEDS)
        return [], secret, ""
    from rescind.proof.notes import LOG
    from rescind.receipts.acknowledgement import ITS_OWN, LARGEST, claims, read

    try:
        with open(path, "rb") as file:
            told = read(file.read(LARGEST))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}. Give the answer of the service."
        ) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    key = secret or told.key
    log = None if log_key is None else key_given(log_key, LOG)
    return claims(told, items, key, log), key, "" if secret else ITS_OWN
