"""The two apps that Flower starts: one on every silo, one beside the SuperLink."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rescind.errors import RescindError
from rescind.executor import InProcess
from rescind.flower.node import Node
from rescind.flower.serving import Serving, serve
from rescind.flower.sources import RecipeData
from rescind.flower.store import Store
from rescind.flower.wire import Letter

SILO = "silo"
"""The one key of a node's configuration: what `rescind flower join` was told, as JSON."""
ASKED = "asked"
"""The one key of a run's configuration: what `rescind flower run` was told, as JSON."""

node_app = ClientApp()
server_app = ServerApp()


@node_app.train()
@node_app.evaluate()
@node_app.query()
def answer(message: Message, context: Context) -> Message:
    """A silo's reply to a letter; its state is in its own store, not in Flower's context."""
    reply = node_of(context).answer(Letter.from_records(message.content))
    return Message(reply.to_records(), reply_to=message)


def node_of(context: Context) -> Node:
    """The silo that a process speaks for."""
    if SILO not in context.node_config:  # a simulation: every node has a number, and one folder
        told = json.loads(str(context.run_config[ASKED]))
        silo, silos = context.node_config["partition-id"], context.node_config["num-partitions"]
        store = Path(told["out"]) / "silos" / f"silo-{silo}"
        data = RecipeData(told["recipe"], told["cell"], tuple(told["changes"]))
        return Node(Store(store), data, int(silo), int(silos), InProcess(guards=data.guards))
    told = json.loads(bytes.fromhex(str(context.node_config[SILO])))
    data = RecipeData(told["recipe"], told["cell"], tuple(told["changes"]))
    return Node(
        Store(Path(told["store"])),
        data,
        told["silo"],
        told["silos"],
        InProcess(device=told["device"], guards=data.guards),
        told["single_updates"],
        told["questions"],
    )


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what was asked; an error that a person can mend is one line in the log."""
    voice = logging.getLogger("rescind")
    voice.addHandler(logging.StreamHandler(sys.stdout))
    voice.setLevel(logging.INFO)
    voice.propagate = False
    asked = Serving.from_json(str(context.run_config[ASKED]))
    try:
        serve(grid, asked)
    except RescindError as error:
        Path(asked.out).mkdir(parents=True, exist_ok=True)
        (Path(asked.out) / "error.txt").write_text(f"{error}\n", encoding="utf-8")
        print(f"error: {error}", flush=True)
        raise
