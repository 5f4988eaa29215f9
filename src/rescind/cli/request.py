"""`rescind request`: what people ask, what was answered, what waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.options import Json
from rescind.cli.service_requests import Database, State, Url, extend_at, list_open

if TYPE_CHECKING:
    from rescind.home import Ledger, Request
    from rescind.requests.words import Words

app = typer.Typer(no_args_is_help=True, help="Answer what users ask: forget, with a receipt.")
Data = Annotated[str | None, Option("--data", help="The imported data. Default: the only one.")]
User = Annotated[
    list[str] | None, Option("--user", metavar="ID", help="A user, by your id. Repeatable.")
]
Item = Annotated[
    list[str] | None, Option("--item", metavar="ID", help="Only this item. Repeatable.")
]
Kind = Annotated[
    str | None,
    Option(
        help="leave (everything, and stay away), erase, unshare; of a graph nodes, edges, labels."
    ),
]
File = Annotated[
    Path | None, Option("--file", metavar="FILE", help="A CSV (user,item) or a request in JSON.")
]
Case = Annotated[str, Option("--case", metavar="TEXT", help="Your number, for the receipt's page.")]
Audit = Annotated[str, Option("--audit", help="standard, full or none.")]
Together = Annotated[
    bool, Option("--together", help="One receipt for all users of a CSV, with a part for each.")
]
Received = Annotated[str | None, Option(metavar="DATE", help="The day it came. Default: today.")]
Id = Annotated[str, Argument(metavar="ID", help="As rescind request list names it.")]


@app.command("add")
def add(
    data: Data = None,
    user: User = None,
    item: Item = None,
    kind: Kind = None,
    file: File = None,
    folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="A folder of requests, one JSON file each.")
    ] = None,
    received: Received = None,
    case: Case = "",
    audit: Audit = "none",
    together: Together = False,
) -> None:
    """Write down a request. It is due one calendar month after it came.

    Examples: rescind request add --user c7; rescind request add --user c7 --item p2 --kind erase;
    rescind request add --file asked.csv; rescind request add --folder inbox
    """
    from rescind.home import Ledger
    from rescind.requests.adding import add_folder, add_words, dataset_named

    with Ledger.open() as ledger:
        name = dataset_named(ledger, data)
        if folder is not None:
            added, wrong = add_folder(ledger, name, folder, audit)
            for reason in wrong:
                typer.echo(f"refused: {reason}", err=True)
        else:
            words = said(user, item, kind, file, received, case, together)
            added, wrong = add_words(ledger, name, words, audit), []
        for request in added:
            typer.echo(f"{request.id}  {request.kind}  due {request.due:%Y-%m-%d}")
    if wrong:
        raise typer.Exit(20)


def said(
    user: list[str] | None, item: list[str] | None, kind: str | None, file: Path | None,
    received: str | None = None, case: str = "", together: bool = False,
) -> list[Words]:  # fmt: skip
    """Return what the options of a command ask for."""
    from dataclasses import replace

    from rescind.errors import ConfigError
    from rescind.requests import words

    if file is not None and (user or item):
        raise ConfigError("give --file, or --user and --item: not both.")
    usual = "erase" if item else "leave"
    if file is not None and file.suffix == ".json":
        read = words.in_file(file)
    elif file is not None:
        read = words.in_table(file, kind or "erase")
    else:
        read = words.in_options(kind or usual, user or (), item or ())
    read = dated(read, received, case)
    if together or len(read.records) < 2:
        return [read]
    return [replace(read, records={name: items}) for name, items in read.records.items()]


def dated(read: Words, received: str | None, case: str) -> Words:
    """Return what is asked, with the day and the number that options give."""
    from dataclasses import replace

    from rescind.requests.words import day

    return replace(read, received=day(received) or read.received, case=case or read.case)


@app.command("answer")
def answer(
    ids: Annotated[
        list[str] | None, Argument(metavar="[ID]...", help="Default: all, the most urgent first.")
    ] = None,
    most: Annotated[int | None, Option(min=1, help="At most so many in this call.")] = None,
    as_json: Json = False,
) -> None:
    """Answer requests: erase, unlearn, check, sign. Killed at any moment, give it again.

    Exit code 0: all answered; 10: something waits; 20: something is refused or late.

    Example: rescind request answer --most 20
    """
    from rescind.home import Ledger
    from rescind.requests.answer import answer as answer_one

    with Ledger.open() as ledger:
        todo = ids or [one.id for one in ledger.requests(open_only=True)][:most]
        done = [answer_one(ledger, name, _say) for name in todo]
        left = ledger.requests(open_only=True)
    tell(done, as_json)
    raise typer.Exit(code_of(left))


def _say(line: str) -> None:
    typer.echo(line, err=True)  # what is printed may be JSON


def code_of(left: list[Request]) -> int:
    """Return the exit code for what is left open."""
    if any(one.outcome == "REFUSED" or one.late for one in left):
        return 20
    return 10 if left else 0


def tell(done: list[Request], as_json: bool) -> None:
    """Print what requests came to, and which file goes to whom."""
    from rescind.home.request import OUTCOMES
    from rescind.requests.papers import papers_of

    if as_json:
        typer.echo(json.dumps([one.facts() for one in done], indent=1))
        return
    for one in done:
        typer.echo(f"{one.id}  {one.outcome}  {one.reason or OUTCOMES[one.outcome]}")
        if papers_of(one.id).is_file():
            typer.echo(
                f"  To send (several users: each their part), then delete: {papers_of(one.id)}"
            )


@app.command("list")
def list_requests(
    open_only: Annotated[bool, Option("--open", help="Only those that are not answered.")] = False,
    state: State = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """List requests, those that are due first. Nobody is named: the ledger keeps digests.

    With --state or --database: the open ones of a service.

    Examples: rescind request list --open; rescind request list --state runs/service
    """
    if state is not None or database is not None:
        list_open(state, database, as_json)
        return
    found = _there().requests(open_only)
    if as_json:
        typer.echo(json.dumps([one.facts() for one in found], indent=1))
        return
    for one in found:
        late = "  LATE" if one.late else ""
        typer.echo(
            f"{one.id}  {one.dataset}  {one.kind}  due {one.due:%Y-%m-%d}  "
            f"{one.outcome or 'open'}{late}  {one.case}"
        )
    typer.echo(f"{len(found)} requests", err=True)


def _there() -> Ledger:
    from rescind.errors import ConfigError
    from rescind.home import Ledger

    ledger = Ledger.there()
    if ledger is None:
        raise ConfigError("this home has no ledger: nobody asked anything. See --home.")
    return ledger


@app.command("show")
def show(
    name: Id,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write its receipt and proof there, again.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a request: its days, its steps, its outcome, its receipt.

    Example: rescind request show ID --out again
    """
    ledger = _there()
    request = ledger.request(name)
    if out is not None:
        from rescind.requests.papers import write_again

        write_again(out, *ledger.receipt(request.receipt))
    facts = {**request.facts(), "steps": sorted(ledger.steps(request))}
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for word, value in facts.items():
        typer.echo(f"{word:10} {', '.join(value) if isinstance(value, list) else value or '-'}")


@app.command("extend")
def extend(
    name: Id,
    days: Annotated[int, Option(min=1, help="So many days more.")],
    reason: Annotated[str, Option(help="Why, for the user who asked.")],
    url: Url = None,
    state: State = None,
    database: Database = None,
) -> None:
    """Give a request more time, at most three months in all. Tell the user yourself.

    With --url, --state or --database: a request to a service.

    Example: rescind request extend ID --days 14 --reason "many requests"
    """
    if url is not None or state is not None or database is not None:
        extend_at(name, days, reason, state, database, url)
        return
    from datetime import UTC, datetime, timedelta

    from rescind.home.request import times_of

    ledger = _there()
    request = ledger.request(name)
    if not request.open:
        from rescind.home import Refused

        raise Refused("answered", f"request {name} was answered: it needs no more time.")
    later = request.due + timedelta(days=days)
    times_of(request.received, later, datetime.now(UTC))
    typer.echo(f"due {ledger.extend(name, later, reason).due:%Y-%m-%d}")


@app.command("withdraw")
def withdraw(name: Id) -> None:
    """Remove a request that is not answered: the user wants it no more, or it was a mistake.

    Example: rescind request withdraw ID
    """
    ledger = _there()
    request = ledger.request(name)
    if not request.open or ledger.steps(request):
        from rescind.home import Refused

        raise Refused("begun", f"request {name} is answered, or its answer has begun.")
    ledger.withdraw(name)


@app.command("readmit")
def readmit(
    user: Annotated[str, Option(help="Who left and returns, by your id.")],
    data: Data = None,
    silo: Annotated[
        Path | None, Option(metavar="FOLDER", help="They left this silo (rescind flower join).")
    ] = None,
) -> None:
    """Let somebody in again who left. Rows that were erased stay out; new rows count.

    Example: rescind request readmit --user c7
    """
    if silo is not None:
        from rescind.flower.silo.readmission import readmit as readmit_to_silo

        readmit_to_silo(silo, user)
        typer.echo(f"'{user}' is in again in the next training.")
        return
    from rescind.home import Ledger
    from rescind.requests.adding import dataset_named
    from rescind.requests.answer import readmit as readmit_one

    with Ledger.open() as ledger:
        readmit_one(ledger, dataset_named(ledger, data), user)
    typer.echo(f"'{user}' is in again: rows that come later count.")
