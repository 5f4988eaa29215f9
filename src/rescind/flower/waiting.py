"""Wait for a run at the server, and notice that it cannot finish any more.

The server writes the result of a run to a folder. If `rescind flower up` is killed, or its machine
is started again, nobody does.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from rescind.errors import DataError
from rescind.flower.deploy import Link, Operator

LOST = 15.0
"""Seconds without a connection after which the server counts as gone."""
PROBED = 3.0
"""Seconds between two connections, and how long one may take."""
ASKED = 60.0
"""Seconds between two questions for the status of a run: one whose process was killed ends so."""
GO_ON = (
    "Start 'rescind flower up' again, with the same --state, then give this command with --resume: "
    "it goes on from its last checkpoint."
)


def newer(file: Path) -> Callable[[], bool]:
    """Return a function that says whether a file was written since.

    So the result of an earlier run stays until there is another: a run that fails changes nothing.
    """

    def stamp() -> tuple[int, int] | None:
        try:
            found = file.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    before = stamp()
    return lambda: stamp() not in (None, before)


def wait_for(
    ended: Callable[[], bool],
    operator: Operator,
    run: int,
    tell: Callable[[], None],
    lost: float = LOST,
    asked: float = ASKED,
) -> None:
    """Wait until a run has ended. Raises `DataError` if its end cannot come any more.

    tell: called about twice a second
    """
    heard = probed = questioned = time.monotonic()
    while not ended():
        time.sleep(0.5)
        tell()
        now = time.monotonic()
        if now - probed < PROBED:
            continue
        probed = now
        if listens(operator.link):
            heard = now
        elif now - heard >= lost and not ended():
            raise DataError(
                f"the server at {operator.link.address} is gone: nothing has listened there for "
                f"{now - heard:.0f} s, and run {run} has no result yet. {GO_ON}"
            )
        if heard == now and now - questioned >= asked:
            questioned, state = now, operator.status(run)
            if state.startswith("finished") and not ended():
                raise DataError(
                    f"run {run} ended ({state}) and wrote nothing. Resume it: --resume."
                )
            if state == "not found":
                raise DataError(
                    f"the server at {operator.link.address} does not know run {run} any more: it "
                    f"was started again with another --state. {GO_ON}"
                )


def listens(link: Link) -> bool:
    """Return whether somebody listens at an address. A busy server does, too."""
    try:
        with socket.create_connection((link.host.strip("[]"), link.port), PROBED):
            return True
    except OSError:
        return False
