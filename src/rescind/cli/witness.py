"""`rescind witness`: cosign somebody else's log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rescind.cli.given import key_given


def command(
    state: Annotated[Path, Argument(help="A folder for the witness's key and what it has signed.")],
    key: Annotated[
        list[str], Option(help="The key of a log to watch (NAME+ID+KEY, or a file); repeatable.")
    ],
    name: Annotated[str, Option(help="The witness's name, such as silo-0. It cannot change.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8017,
) -> None:
    """Sign checkpoints of a log as long as it only grows; refuse a second history for ever.

    Run it on another machine than the log. Ask it with: rescind log cosign URL --key KEY.
    """
    from rescind.core.files import locked
    from rescind.proof.notes import LOG
    from rescind.proof.witness_http import server

    logs = [key_given(one, LOG) for one in key]
    witness = open_witness(state, name, logs)
    with locked(state), server(witness, host, port) as door:
        typer.echo(str(witness.key))
        typer.echo(
            f"listening on http://{host}:{door.server_port} for "
            + ", ".join(log.name for log in logs)
        )
        try:
            door.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped")


def open_witness(state, name, logs):
    """Open a witness, made on first use: its state first, so that a key never stands alone."""
    from rescind.core.files import make_folder
    from rescind.errors import ConfigError
    from rescind.privacy.keys import key_at
    from rescind.proof.notes import is_name
    from rescind.proof.witness import Witness

    if not is_name(name):
        raise ConfigError(f"'{name}' cannot name a witness: it has a space, a '+', or is empty.")
    make_folder(state)
    if not (state / "witness.key").exists():
        Witness.start(state)
    private = key_at(state / "witness.key")
    return Witness(state, name, private, logs)
