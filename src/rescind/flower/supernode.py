"""Flower's SuperNode that runs our bundle only: `python -m rescind.flower.supernode`.

It takes the options of `flower-supernode`. A run with another bundle gets an error as its reply,
and the SuperNode goes on: Flower's own check of bundles needs a licence of the SuperLink.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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


if __name__ == "__main__":
    flwr_private.wrap_pull(refusing)
    flwr_private.flower_supernode()
