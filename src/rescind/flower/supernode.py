"""Flower's SuperNode that runs our bundle only: `python -m rescind.flower.supernode`.

It takes the options of `flower-supernode`. A run with another bundle gets an error as its reply,
and the SuperNode goes on: Flower's own check of bundles needs a licence of the SuperLink. While the
server does not answer, the SuperNode tries again for as long as it runs, and says so once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from flwr.app import Error, Message

from rescind.errors import ConsentError
from rescind.flower import bundle
from rescind.flower.wire import flwr_private

log = logging.getLogger(__name__)
Pull = Callable[..., int | None]


def refusing(pull: Pull) -> Pull:
    """Return Flower's function that receives one message, with a check of the message's bundle."""

    def checked(**given: Any) -> int | None:
        messages: list[Message] = []

        def receive() -> Any:
            found = given["receive"]()
            if found is not None:
                messages.append(found[0])
            return found

        def get_fab(digest: str, run: int) -> Any:
            fab = given["get_fab"](digest, run)
            if why := bundle.refusal(fab.content):
                raise ConsentError(why)
            return fab

        try:
            return pull(**{**given, "receive": receive, "get_fab": get_fab})
        except ConsentError as error:
            log.error("run %d is refused: %s", messages[-1].metadata.run_id, error)
            reply = Message(
                Error(flwr_private.ErrorCode.INVALID_FAB, str(error)), reply_to=messages[-1]
            )
            flwr_private.insert_message(reply, given["state"], given["object_store"])
            return int(messages[-1].metadata.run_id)

    return checked


@dataclass
class Connection:
    """Says in a line that the server is there, or lost, and in another one that it is back."""

    server: str
    is_lost: bool | None = None
    """None until it was asked for the first time."""
    _lock: Lock = field(default_factory=Lock, repr=False)

    def lost(self) -> None:
        """The server did not answer a request."""
        every = flwr_private.MAX_RETRY_DELAY
        self._change(
            True,
            f"the server at {self.server} does not answer. This silo keeps what it holds and tries "
            f"again at least every {every:g} s; it goes on when 'rescind flower up' is back.",
        )

    def reached(self) -> None:
        """The server answered a request."""
        again = "" if self.is_lost is None else " again"
        self._change(False, f"the server at {self.server} answers{again}.")

    def _change(self, is_lost: bool, line: str) -> None:
        with self._lock:  # several threads send requests
            if is_lost != self.is_lost:
                self.is_lost = is_lost
                print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    connection = Connection(sys.argv[sys.argv.index("--superlink") + 1])
    flwr_private.watch_connection(connection.lost, connection.reached)
    flwr_private.wrap_pull(refusing)
    flwr_private.flower_supernode()
