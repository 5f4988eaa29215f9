"""Open requests of a service, for `rescind request list` and `extend`: `--state`, `--url`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from rescind.cli.calling import URL, call, check_id

State = Annotated[
    Path | None, Option(help="Of a service: the folder of its ledger. Default: this home's.")
]
Database = Annotated[
    str | None, Option(metavar="URL", help="Of a service: PostgreSQL, if its ledger is there.")
]
Url = Annotated[str | None, Option(help=f"{URL} It needs the scope extend.")]


def list_open(state: Path | None, database: str | None, as_json: bool) -> None:
    """List the open requests of a service by deadline; it may be running, this reads only."""
    from rescind.ledger.fulfilment import URGENT, used
    from rescind.ledger.requests import open_requests

    rows, now = open_requests(_folder(state), database)
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows], indent=2))
        return
    if not rows:
        typer.echo("no open requests.")
    for row in rows:
        urgent = "  !" if used(row, now) >= URGENT else ""
        status = row.reason if row.reason == "need_user_verification" else row.status
        typer.echo(
            f"{row.id}  {row.kind:<8} {row.n:>8}  received {row.received_at:%Y-%m-%d %H:%M}  "
            f"due {row.expected_by:%Y-%m-%d %H:%M}  {status}{urgent}"
        )


def _folder(state: Path | None) -> Path:
    return state or Path("runs/service")


def _plain(row: Any) -> dict[str, Any]:
    names = ("id", "kind", "n", "status", "reason", "level")
    times = {name: getattr(row, name).isoformat() for name in ("received_at", "expected_by")}
    return {**{name: getattr(row, name) for name in names}, **times}


def extend_at(
    name: str, days: int, reason: str, state: Path | None, database: str | None, url: str | None
) -> None:
    """Give a request more time: at a running service, or in the folder of one that is stopped."""
    if url is not None:
        check_id(name, "rescind request list --state FOLDER")
        path = f"/v1/operator/requests/{name}/extend"
        told = call(url, "POST", path, "extend", {"days": days, "reason": reason})
    else:
        from rescind.ledger.requests import extend

        told = extend(_folder(state), database, name, days, reason)
    typer.echo(f"{name} is due on {told['expected_by']}. Their page says why: {reason}")
    typer.echo("No mail is sent. Write to who may not look there: they must be told in time.")
    if warning := told.get("warning"):
        typer.echo(f"Careful: {warning}.")
