"""`rescind tokens`: make tokens for scripts, list and revoke them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.calling import URL, call, check_id

if TYPE_CHECKING:
    from sqlalchemy import Row

app = typer.Typer(
    help="Make tokens for scripts that call a service; list and revoke them.",
    no_args_is_help=True,
    suggest_commands=False,
)
State = Annotated[Path, Option(help="Folder of the ledger.")]
Database = Annotated[str | None, Option(metavar="URL", help="PostgreSQL, if the ledger is there.")]
There = Annotated[str | None, Option(help=f"{URL} It needs the scope tokens.")]


@app.command()
def make(
    scopes: Annotated[str, Argument(help="What it may do, such as read,extend.")],
    name: Annotated[str, Option(help="What it is for, to tell it apart.")] = "made by command",
    days: Annotated[int, Option(min=1, max=366, help="Days until it ends.")] = 90,
    state: State = Path("runs/service"),
    database: Database = None,
) -> None:
    """Print a new token. Stop the service first, or make it on the operator's page.

    Scopes: read, extend, metrics, release, jobs, people, scan, agents, tokens, witnesses,
    rebuild.

    Example: rescind tokens make read,extend --name cron --state runs/service-demo
    """
    from rescind.ledger.requests import opened_alone
    from rescind.service.callers import make_token, scopes_of

    scopes_of(scopes)  # before a served folder leads to advice that repeats a wrong one
    # No token makes tokens, so there is no --url.
    instead = f"Start it again with --make-token {scopes}"
    with opened_alone(state, database, instead) as ledger:
        typer.echo(make_token(ledger, scopes, name, days))


@app.command("list")
def show(url: There = None, state: State = Path("runs/service"), database: Database = None) -> None:
    """List tokens and invitations that have not ended. The tokens themselves are kept nowhere.

    Examples: rescind tokens list --state runs/service-demo;
    rescind tokens list --url http://localhost:8000
    """
    if url is not None:
        rows = call(url, "GET", "/v1/operator/tokens", "tokens")["tokens"]
    else:
        from rescind.ledger.requests import tokens

        rows = [_plain(row) for row in tokens(state, database)]
    for row in rows:
        scope = ",".join(row["scope"]) or row["role"]
        typer.echo(f"{row['id']}  until {row['expires'][:10]}  {row['name']}: {scope}")
    typer.echo("Next: rescind tokens revoke ID" if rows else "no tokens.")


def _plain(row: Row) -> dict[str, Any]:
    from rescind.ledger.accounts import token_name

    about = {"id": token_name(bytes(row.digest)), "name": row.name, "role": row.role}
    return {**about, "scope": row.scope.split(), "expires": row.expires.isoformat()}


@app.command()
def revoke(
    token: Annotated[str, Argument(metavar="ID", help="As `rescind tokens list` shows it.")],
    url: There = None,
    state: State = Path("runs/service"),
    database: Database = None,
) -> None:
    """End a token now: at a running service (--url), or in a folder that none uses.

    Example: rescind tokens revoke ID --url http://localhost:8000
    """
    if url is not None:
        check_id(token, "rescind tokens list")
        call(url, "DELETE", f"/v1/operator/tokens/{token}", "tokens")
    else:
        from rescind.ledger.accounts import RevokeToken
        from rescind.ledger.requests import opened_alone

        with opened_alone(state, database) as ledger:
            ledger.submit(RevokeToken(token)).result()
    typer.echo(f"{token} opens nothing any more.")
