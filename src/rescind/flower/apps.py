"""The two apps that Flower starts: one for every message to a silo, one beside the SuperLink.

The first only carries messages (`resident.py`), so nothing heavy is imported at the top.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rescind.errors import RescindError
from rescind.flower.run_request import ASKED, LOG, SILO, RunRequest
from rescind.flower.silo.resident import carried
from rescind.flower.wire.serde import read, written

node_app = ClientApp()
server_app = ServerApp()


@node_app.train()
@node_app.evaluate()
@node_app.query()
def answer(message: Message, context: Context) -> Message:
    """A silo's reply; its state is in its own store, not in Flower's context."""
    where = bytes.fromhex(str(context.node_config[SILO])).decode()
    return Message(read(carried(where, written(message.content))), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what was asked; an error that a person can mend is one line for them to read."""
    from rescind.flower.server.serve import serve

    asked = RunRequest.from_json(str(context.run_config[ASKED]))
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    voice = logging.getLogger("rescind")
    file = logging.FileHandler(Path(asked.out) / LOG, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    voice.addHandler(file)
    voice.setLevel(logging.INFO)
    voice.propagate = False
    try:
        serve(grid, asked)
    except RescindError as error:
        (Path(asked.out) / "error.txt").write_text(f"{error}\n", encoding="utf-8")
        raise
