"""The two apps that Flower starts: one for every message to a silo, one on the server.

The first only forwards messages (`resident.py`), so heavy modules are not imported at the top.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rescind.errors import RescindError
from rescind.flower.run_request import ASKED, LOG, SILO, RunRequest
from rescind.flower.silo.resident import forward
from rescind.flower.wire.serde import read, written

node_app = ClientApp()
server_app = ServerApp()


@node_app.train()
@node_app.evaluate()
@node_app.query()
def answer(message: Message, context: Context) -> Message:
    """Return a silo's reply. Its state is in its own folder, not in Flower's context."""
    path = bytes.fromhex(str(context.node_config[SILO])).decode()
    return Message(read(forward(path, written(message.content))), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a recipe. The text of a `RescindError` is also written to error.txt."""
    from rescind.flower.server.serve import serve

    asked = RunRequest.from_json(str(context.run_config[ASKED]))
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    failed = Path(asked.out) / "error.txt"
    failed.unlink(missing_ok=True)  # of an earlier run
    logger = logging.getLogger("rescind")
    file = logging.FileHandler(Path(asked.out) / LOG, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(file)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        serve(grid, asked)
    except Exception as error:
        known = isinstance(error, RescindError)
        text = str(error) if known else f"the server failed ({error!r}). Resume it: --resume."
        failed.write_text(f"{text}\n", encoding="utf-8")
        raise
