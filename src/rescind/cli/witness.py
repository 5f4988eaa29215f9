"""`rescind witness`: cosign somebody else's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.given import key_given
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from rescind.proof.notes import Key
    from rescind.proof.witness import Witness

PORT = 8017


def command(
    state: Annotated[Path, Argument(help="A folder for the witness's key and what it has signed.")],
    key: Annotated[
        list[str], Option(help="The key of a log to watch (NAME+ID+KEY, or a file); repeatable.")
    ],
    name: Annotated[str, Option(help="The witness's name, such as silo-0. It cannot change.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = PORT,
    log: Annotated[
        str | None,
        Option(metavar="URL", help="Do not listen: read the log of this service, and sign it."),
    ] = None,
    every: Annotated[float, Option(min=0.1, help="With --log: seconds between two looks.")] = 10.0,
    rebuild: Annotated[
        bool,
        Option("--rebuild", help="With --log: solve each release again from its sum, sign that."),
    ] = False,
    leaver: Annotated[
        list[Path] | None,
        Option(help="With --rebuild: lines kept from before leaving: are they out? Repeatable."),
    ] = None,
) -> None:
    """Sign checkpoints of a log as long as it only grows; refuse a second history for ever.

    Run it on another machine than the log. Ask it with: rescind log cosign URL --key KEY.

    --rebuild needs a token with the scope rebuild, in RESCIND_TOKEN. Exit code 1 if what is
    released is not what the published sum gives.

    Examples: rescind witness witness-0 --name silo-0 --key log.pub;
    rescind witness witness-1 --name silo-1 --key log.pub --log https://lend.example.org
    """
    if log is not None:
        pull(state, name, key, log, every, rebuild=rebuild, leavers=leaver or ())
        return
    if rebuild:
        raise ConfigError("--rebuild reads a service, so it needs --log URL, its address.")
    with witnessing(state, name, key, host, port) as thread:
        try:
            thread.join()
        except KeyboardInterrupt:
            typer.echo("stopped")


def pull(
    state: Path,
    name: str,
    given: Sequence[str],
    url: str,
    every: float,
    looks: int | None = None,
    rebuild: bool = False,
    leavers: Sequence[Path] = (),
) -> None:
    """Read a service's log again and again and sign it. looks: how often; None: until Ctrl-C"""
    from rescind.core.files import locked
    from rescind.proof.notes import LOG
    from rescind.proof.pulling import Away, Pulling

    if len(given) != 1:
        raise ConfigError(f"--log reads one log, so it needs one --key; got {len(given)}.")
    log = key_given(given[0], LOG)
    witness = open_witness(state, name, [log])
    build = rebuilder(url, log, witness, state, leavers) if rebuild else lambda: None
    with locked(state):
        typer.echo(f"witness {witness.key}")
        pulling, last = Pulling(url, log, witness, state), -1
        try:
            while looks is None or looks > 0:
                looks = None if looks is None else looks - 1
                try:
                    size = pulling.once().size
                    build()
                except Away as error:
                    typer.echo(f"waiting: {error}", err=True)
                else:
                    if size != last:
                        typer.echo(f"signed {size} entries of {log.name}")
                    last = size
                time.sleep(every)
        except KeyboardInterrupt:
            typer.echo("stopped")


def rebuilder(
    url: str, log: Key, witness: Witness, state: Path, leavers: Sequence[Path]
) -> Callable[[], None]:
    """Return what rebuilds the newest release, once, and says what it found."""
    from rescind.cli.calling import token_for
    from rescind.cli.roster import lines_in
    from rescind.errors import DataError
    from rescind.ledger.rebuilding import Rebuilding
    from rescind.proof.pulling import Away
    from rescind.proof.roster import own_line

    lines = {str(path): lines_in(path) for path in leavers}
    if wrong := [
        name for name, own in lines.items() for one in own if own_line(one) != one["line"]
    ]:
        raise ConfigError(f"{wrong[0]}: a line is not made of its items. Give the file as it was.")
    rebuilding = Rebuilding(url, log, witness, state, token_for("rebuild"))

    def build() -> None:
        try:
            for sentence in rebuilding.once(lines):
                typer.echo(sentence)
        except Away:
            raise
        except DataError as error:
            typer.echo(f"NOT VALID, not signed: {error}", err=True)
            raise typer.Exit(1) from None

    return build


@contextmanager
def witnessing(
    state: Path, name: str, given: Sequence[str], host: str, port: int
) -> Iterator[Thread]:
    """Run a witness of these logs in a thread, and say where it listens. given: their keys"""
    from rescind.core.files import locked
    from rescind.proof.notes import LOG
    from rescind.proof.witness_http import server

    logs = [key_given(one, LOG) for one in given]
    witness = open_witness(state, name, logs)
    with locked(state), server(witness, host, port, _tell_refusal) as door:
        typer.echo(f"witness {witness.key}")
        watched = ", ".join(log.name for log in logs)
        typer.echo(f"listening on http://{host}:{door.server_port} for {watched}")
        thread = Thread(target=door.serve_forever, daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            door.shutdown()
            thread.join()


def _tell_refusal(text: str) -> None:
    typer.echo(text, err=True)


def open_witness(state: Path, name: str, logs: Sequence[Key]) -> Witness:
    """Open a witness, made on first use: its state first, so that a key never stands alone."""
    from rescind.core.files import make_folder
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
