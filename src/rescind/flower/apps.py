"""The two apps that Flower starts: one for every message to a silo, one on the server.

The first only forwards messages (`resident.py`), so heavy modules are not imported at the top.
"""

from __future__ import annotations

import logging
from pathlib import Path
from traceback import format_tb

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rescind.errors import ConfigError, RescindError
from rescind.flower.handed_over import taken
from rescind.flower.run_request import ASKED, LOG, SILO
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
    """Run a recipe. The text of a `RescindError` is also written to error.txt.

    Flower keeps what this raises in its database, so that names nobody.
    """
    from rescind.flower.server.serve import serve

    path = Path(str(context.run_config[ASKED]))
    if not path.is_absolute() or not path.parent.is_dir():
        raise ConfigError("this run has no settings. Start it with 'rescind flower run'.")
    failed = path.parent / "error.txt"
    failed.unlink(missing_ok=True)  # of an earlier run
    logger = logging.getLogger("rescind")
    file = logging.FileHandler(path.parent / LOG, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(file)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        serve(grid, taken(path))
    except Exception as error:
        known = isinstance(error, RescindError)
        text = str(error) if known else f"the server failed ({error!r}). Resume it: --resume."
        failed.write_text(f"{text}\n", encoding="utf-8")
        if not known:
            logger.error("".join(["the server failed\n", *format_tb(error.__traceback__)]).strip())
        raise RunFailedError(f"{type(error).__name__}; {failed} says why") from None


class RunFailedError(Exception):
    """A run has ended with an error, whose text is elsewhere."""
