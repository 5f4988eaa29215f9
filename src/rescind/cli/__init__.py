"""The command line. Heavy libraries are imported inside the commands, so that help is instant."""

from __future__ import annotations

import os
import sys
from copy import copy
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
    export,
    flower,
    forget,
    keys,
    leak,
    life,
    log,
    night,
    recommend,
    release,
    reproduce,
    request,
    roster,
    run,
    scan,
    serve,
    table,
    tokens,
    tune,
    value,
    verify,
    witness,
)
from rescind.cli.given_once import once
from rescind.cli.help_text import (
    DEPLOY,
    FORGET,
    LEARN,
    REPRODUCE,
    TRY,
    flow,
    keep_argument_help,
)
from rescind.cli.stopping import INTERRUPTED, code_of, heeding_sigterm
from rescind.core.home import HOME
from rescind.errors import RescindError, how_to_install

EVERY_LINE = "RESCIND_TRACEBACK"
"""Set to show all lines of a traceback, where those of a user's own file are enough."""
keep_argument_help()
app = typer.Typer(
    name="rescind",
    help="Federated learning on data that people lend and can take back.",
    epilog="Start with: rescind demo. Help of a command, with examples: rescind run --help",
    no_args_is_help=True,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", rich_help_panel=TRY)(demo.command)
app.command("doctor", rich_help_panel=TRY)(doctor.command)
app.add_typer(data.app, name="data", rich_help_panel=LEARN)
app.command("run", rich_help_panel=LEARN)(run.command)
app.command("tune", rich_help_panel=LEARN)(tune.command)
app.command("recommend", rich_help_panel=LEARN)(recommend.command)
app.command("table", rich_help_panel=LEARN)(table.command)
app.command("value", rich_help_panel=LEARN)(value.command)
app.command("forget", rich_help_panel=FORGET)(forget.command)
app.command("audit", rich_help_panel=FORGET)(audit.command)
app.command("leak", rich_help_panel=FORGET)(leak.command)
app.command("verify", rich_help_panel=FORGET)(verify.command)
app.command("release", rich_help_panel=FORGET)(release.command)
app.add_typer(log.app, name="log", rich_help_panel=FORGET)
app.add_typer(roster.app, name="roster", rich_help_panel=FORGET)
app.command("witness", rich_help_panel=FORGET)(witness.command)
app.add_typer(flower.app, name="flower", rich_help_panel=DEPLOY)
app.command("serve", rich_help_panel=DEPLOY)(serve.command)
app.add_typer(request.app, name="request", rich_help_panel=FORGET)
app.command("night", rich_help_panel=DEPLOY)(night.command)
app.add_typer(tokens.app, name="tokens", rich_help_panel=DEPLOY)
app.command("export", rich_help_panel=DEPLOY)(export.command)
app.add_typer(keys.app, name="keys", rich_help_panel=DEPLOY)
app.command("backup", rich_help_panel=DEPLOY)(backup.backup)
app.command("restore", rich_help_panel=DEPLOY)(backup.restore)
app.command("scan", rich_help_panel=DEPLOY)(scan.command)
app.command("reproduce", rich_help_panel=REPRODUCE)(reproduce.command)
app.add_typer(life.app, name="life", rich_help_panel=REPRODUCE)
app.command("bench", rich_help_panel=REPRODUCE)(bench.command)


def _version(wanted: bool) -> None:
    if wanted:
        from rescind import __version__

        typer.echo(f"rescind {__version__}")
        raise typer.Exit


def _home(folder: str | None) -> None:
    if folder:
        os.environ[HOME] = folder


@app.callback()
def options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    home: Annotated[
        str | None,
        Option(metavar="DIR", callback=_home, help="The home: ledger, keys, data (RESCIND_HOME)."),
    ] = None,
) -> None:
    """Define options of every command."""


def _ask() -> None:
    """Read the command line and carry it out."""
    once(flow(typer.main.get_command(_with_only(_command()))))(prog_name="rescind")


def _command() -> list[str]:
    """Return the first word after `--home DIR`."""
    words = sys.argv[1:]
    if words[:1] == ["--home"]:
        words = words[2:]
    elif words and words[0].startswith("--home="):
        words = words[1:]
    return words[:1]


def _with_only(words: list[str]) -> typer.Typer:
    """The commands, or the one that is named: typer reads every signature, a fifth of a second."""
    named = copy(app)
    named.registered_commands = [one for one in app.registered_commands if one.name in words]
    named.registered_groups = [one for one in app.registered_groups if one.name in words]
    return named if named.registered_commands or named.registered_groups else app


def main() -> None:
    """Run the command line. Errors that a user can fix end with code 2 and no traceback."""
    with heeding_sigterm():
        try:
            _answer()
        except Exception as error:
            from rescind.methods._own_file import in_own_file  # is there if such a file was loaded

            if os.environ.get(EVERY_LINE) or not (said := in_own_file(error)):
                raise
            typer.echo(f"{said}\n(All lines of the traceback: {EVERY_LINE}=1)", err=True)
            sys.exit(1)


def _answer() -> None:
    try:
        _ask()
    except RescindError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except SystemExit as stop:
        sys.exit(code_of(stop))
    except KeyboardInterrupt:  # before the command had begun, when nobody listens for it yet
        sys.exit(code_of(SystemExit(INTERRUPTED)))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _end(f"this command needs '{error.name}'. Run: {how_to_install(extra)}")
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


_EXTRAS = {
    **dict.fromkeys(
        ("alembic", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn", "webauthn"), "service"
    ),
    "psycopg": "postgres",
    "flwr": "flower",
    "distributed": "dask",
    "networkx": "graph",
}
"""What to install for a module that an ordinary installation lacks."""
_CHECK = "Check the path and the disk, then give the command again."
_NEXT = {
    EACCES: "Choose a file or folder that you may read and write.",
    EPERM: "Choose a file or folder that you may read and write.",
    EROFS: "This folder cannot be written to. Choose another one, with --out or --state.",
    ENOSPC: "Free some space, then give the command again.",
}


def _end(text: str) -> None:
    typer.echo(f"error: {text}", err=True)
    sys.exit(2)
