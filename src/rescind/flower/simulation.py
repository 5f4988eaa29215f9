"""Simulate silos on one machine with Flower and Ray, to test a recipe before deploying it.

`rescind run` is faster: it trains all clients in one process.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rescind.core.executor import InProcess
from rescind.errors import ConfigError, how_to_install
from rescind.flower.deploy import QUIET
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter


def simulate(asked: RunRequest, cpus: float = 1.0) -> None:
    """Run a cell over simulated silos. cpus: CPU cores per silo"""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"Ray is not installed. Run: {how_to_install('simulation')}")
    from flwr.simulation import run_simulation

    os.environ.update(QUIET)
    client_app, server_app = ClientApp(), ServerApp()

    def answer(message: Message, context: Context) -> Message:
        node = simulated_node(asked, int(context.node_config["partition-id"]))
        reply = node.answer(Letter.from_records(message.content))
        return Message(reply.to_records(), reply_to=message)

    for kind in (client_app.train, client_app.evaluate, client_app.query):
        kind()(answer)

    def main(grid: Grid, _: Context) -> None:
        serve(grid, asked)

    server_app.main()(main)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=asked.silos,
        backend_config={"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}},
    )


def simulated_node(asked: RunRequest, silo: int) -> Node:
    """Return a silo that keeps its files in the run's folder."""
    data = RecipeData(asked.recipe, asked.cell, asked.changes)
    store = Store(Path(asked.out) / "silos" / f"silo-{silo}")
    return Node(store, data, silo, asked.silos, InProcess(guards=data.guards))
