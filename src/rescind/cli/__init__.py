"""The command line. Heavy libraries are imported inside the commands, so that help is instant."""

from __future__ import annotations

import sys
from errno import EACCES, ENOSPC, EPERM, EROFS
from typing import Annotated

import typer
from typer import Option

from rescind.cli import (
    audit,
    backup,
    bench,
    data,
    demo,
    doctor,
    flower,
    forget,
    leak,
    life,
    log,
    recommend,
    release,
    reproduce,
    requests,
    roster,
    run,
    scan,
    serve,
    table,
    value,
    verify,
    witness,
)
from rescind.errors import RescindError

app = typer.Typer(
    name="rescind",
    help="Federated learning on data that people lend and can take back.",
    epilog="Start with: rescind demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.command)
app.add_typer(data.app, name="data")
app.command("run")(run.command)
app.command("recommend")(recommend.command)
app.command("table")(table.command)
app.command("reproduce")(reproduce.command)
app.command("value")(value.command)
app.command("leak")(leak.command)
app.add_typer(life.app, name="life")
app.command("forget")(forget.command)
app.command("release")(release.command)
app.command("verify")(verify.command)
app.add_typer(log.app, name="log")
app.add_typer(roster.app, name="roster")
app.command("witness")(witness.command)
app.command("audit")(audit.command)
app.add_typer(flower.app, name="flower")
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("scan")(scan.command)
app.command("serve")(serve.command)
app.add_typer(requests.app, name="requests")
app.command("bench")(bench.command)
app.command("doctor")(doctor.command)


def _version(wanted: bool) -> None:
    if wanted:
        from rescind import __version__

        typer.echo(f"rescind {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define options of every command."""


def main() -> None:
    """Run the command line. Errors that a user can fix end with code 2 and no traceback."""
    try:
        app()
    except RescindError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.strerror is None:  # raised by a library about something else
            raise
        where, hint = error.filename or "the disk", _NEXT.get(error.errno or 0, _CHECK)
        _end(f"{where}: {error.strerror}. {hint}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        _end("there is not enough memory for this. Use smaller data, models or cohorts.")


_CHECK = "Check the path and the disk, then give the command again."
_NEXT = {
    EACCES: "Choose a file or folder that you may read and write.",
    EPERM: "Choose a file or folder that you may read and write.",
    EROFS: "This folder cannot be written to. Choose another one, for example with --out.",
    ENOSPC: "Free some space, then give the command again.",
}


def _end(text: str) -> None:
    typer.echo(f"error: {text}", err=True)
    sys.exit(2)
