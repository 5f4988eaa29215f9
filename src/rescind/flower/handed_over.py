"""The settings of a run, on their way from `rescind flower run` to the server's process.

They name who asks for what. Flower keeps the configuration of a run in its database for good, and
sends it to every silo, so it has no more than the path of a private file on the server's machine.
The server's process removes the file when it begins.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from rescind.core import files
from rescind.errors import DataError
from rescind.flower.run_request import RunRequest

NAMED = "asked-*.json"


def hand_over(asked: RunRequest) -> Path:
    """Write settings to a file in the run's folder that only its owner can read."""
    folder = Path(asked.out)
    remove_untaken(folder)
    path = folder / NAMED.replace("*", secrets.token_hex(8))
    files.write_atomically(path, asked.to_json().encode(), private=True)
    return path


def remove_untaken(folder: Path) -> None:
    """Remove settings in a run's folder that no server has taken."""
    for path in folder.glob(NAMED):
        path.unlink(missing_ok=True)


def taken(path: Path) -> RunRequest:
    """Read settings and remove their file."""
    try:
        asked = RunRequest.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            "the settings of this run are not there any more: a later 'rescind flower run' with "
            "the same --out took their place. Give the command again."
        ) from None
    except PermissionError:
        raise DataError(
            f"the server's process may not read {path}. Start 'rescind flower up' and 'rescind "
            f"flower run' from the same account, then give the command again."
        ) from None
    path.unlink()
    return asked
