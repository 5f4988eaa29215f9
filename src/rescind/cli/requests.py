"""`rescind requests`: which requests are open, when they are due, and more time for one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.options import Json

if TYPE_CHECKING:
    from datetime import datetime

app = typer.Typer(
    help="List the requests of a service, and extend deadlines.", suggest_commands=False
)
State = Annotated[Path, Option(help="Folder of the ledger.")]
Database = Annotated[str | None, Option(metavar="URL", help="PostgreSQL, if the ledger is there.")]
TOKEN = "RESCIND_TOKEN"


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    state: State = Path("runs/service"),
    database: Database = None,
    as_json: Json = False,
) -> None:
    """List open requests by deadline. It reads only, so the service may be running."""
    if context.invoked_subcommand is not None:
        return
    from rescind.ledger.requests import open_requests

    rows, now = open_requests(state, database)
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows], indent=2))
        return
    if not rows:
        typer.echo("no open requests.")
        return
    typer.echo(f"{'request':<34}{'kind':<9}{'records':>8}  {'received':<17}{'due':<17}state")
    for row in rows:
        urgent = "  !" if _used(row, now) >= 0.8 else ""
        state_now = row.reason if row.reason == "need_user_verification" else row.status
        typer.echo(
            f"{row.id:<34}{row.kind:<9}{row.n:>8}  {row.received_at:%Y-%m-%d %H:%M} "
            f"{row.expected_by:%Y-%m-%d %H:%M} {state_now}{urgent}"
        )
    typer.echo('Next: rescind requests extend REQUEST --days 14 --reason "..."')


def _used(row: Any, now: datetime) -> float:
    """How much of a request's time has passed, 0 to 1 and more."""
    return float((now - row.received_at) / (row.expected_by - row.received_at))


def _plain(row: Any) -> dict[str, Any]:
    names = ("id", "kind", "n", "status", "reason", "level")
    times = {name: getattr(row, name).isoformat() for name in ("received_at", "expected_by")}
    return {**{name: getattr(row, name) for name in names}, **times}


@app.command()
def extend(
    request: Annotated[str, Argument(help="The request, as `rescind requests` lists it.")],
    days: Annotated[int, Option(min=1, max=60, help="Days more.")],
    reason: Annotated[str, Option(help="Why; the user is told.")],
    url: Annotated[
        str | None,
        Option(help=f"A running service. Its token (scope extend) is read from {TOKEN}."),
    ] = None,
    state: State = Path("runs/service"),
    database: Database = None,
) -> None:
    """Give a request more time, with a reason: at a running service (--url), or in a folder."""
    if url is not None:
        due = _extend_there(url, request, days, reason)
    else:
        from rescind.ledger.requests import extend as extend_here

        due = extend_here(state, database, request, days, reason)
    typer.echo(f"{request} is due on {due}. The user is told: {reason}")


def _extend_there(url: str, request: str, days: int, reason: str) -> str:
    import secrets
    from urllib.error import HTTPError, URLError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    from rescind.errors import ConfigError

    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(
            f"{TOKEN} is not set. Make one: rescind serve --make-token read,extend, or on the page."
        )
    call = Request(
        f"{url.rstrip('/')}/v1/operator/requests/{quote(request)}/extend",
        json.dumps({"days": days, "reason": reason}).encode(),
        {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Idempotency-Key": secrets.token_hex(16),
        },
    )
    try:
        with urlopen(call, timeout=30) as answer:
            found: str = json.load(answer)["expected_by"]
            return found
    except HTTPError as error:
        try:
            told = json.load(error)
            why = f"{told['detail']} {told['next']}"
        except (ValueError, KeyError):
            why = f"it answered {error.code}."
        raise ConfigError(f"{url} refused: {why}") from None
    except (URLError, ValueError, OSError) as error:
        cause = getattr(error, "reason", None) or error
        raise ConfigError(f"cannot reach {url}: {cause}. Check the address.") from None
