"""The command line. Heavy libraries are imported inside the commands, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from errno import EACCES, ENOSPC, EPERM, EROFS
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option

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
COMMANDS = {
    "demo": TRY, "doctor": TRY,
    "data": LEARN, "run": LEARN, "tune": LEARN, "recommend": LEARN, "table": LEARN, "value": LEARN,
    "forget": FORGET, "request": FORGET, "audit": FORGET, "leak": FORGET, "verify": FORGET,
    "release": FORGET, "log": FORGET, "roster": FORGET, "witness": FORGET,
    "night": DEPLOY, "flower": DEPLOY, "serve": DEPLOY, "tokens": DEPLOY, "export": DEPLOY,
    "keys": DEPLOY, "backup": DEPLOY, "restore": DEPLOY, "scan": DEPLOY,
    "reproduce": REPRODUCE, "life": REPRODUCE, "bench": REPRODUCE,
}  # fmt: skip
"""Each command and where help lists it. Its module has its name, and `app` or `command`."""


def program(names: Collection[str] = COMMANDS) -> typer.Typer:
    """Return the program with some of its commands: typer reads every signature, which takes time.

    Only their modules are loaded.
    """
    made = typer.Typer(
        name="rescind",
        help="Federated learning on data that people lend and can take back.",
        epilog="Start with: rescind demo. Help of a command, with examples: rescind run --help",
        no_args_is_help=True,
        suggest_commands=False,  # click does
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        module = import_module(f"rescind.cli.{'backup' if name == 'restore' else name}")
        below = getattr(module, "app", None)
        if below is not None:
            made.add_typer(below, name=name, rich_help_panel=COMMANDS[name])
            continue
        act = getattr(module, "command", None) or getattr(module, name)
        made.command(name, rich_help_panel=COMMANDS[name])(act)
    return made


@cache
def _whole() -> typer.Typer:
    return program()


def __getattr__(name: str) -> Any:
    if name == "app":
        return _whole()
    raise AttributeError(f"rescind.cli has no {name}")


def _version(wanted: bool) -> None:
    if wanted:
        from rescind import __version__

        typer.echo(f"rescind {__version__}")
        raise typer.Exit


def _home(folder: str | None) -> None:
    if folder:
        os.environ[HOME] = folder


def _options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    home: Annotated[
        str | None,
        Option(metavar="DIR", callback=_home, help="The home: ledger, keys, data (RESCIND_HOME)."),
    ] = None,
) -> None:
    """Define options of every command. A module of this package is called `options`."""


def _ask() -> None:
    """Read the command line and carry it out."""
    once(flow(typer.main.get_command(program(named(sys.argv[1:])))))(prog_name="rescind")


def named(words: Sequence[str]) -> list[str]:
    """Return the command that comes first, after `--home DIR`; all if it is none."""
    if words and words[0].partition("=")[0] == "--home":
        words = words[1:] if "=" in words[0] else words[2:]
    return [word for word in words[:1] if word in COMMANDS] or [*COMMANDS]


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
