"""`rescind night`: everything a shop does at night, by one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.options import Json

if TYPE_CHECKING:
    from rescind.home import Ledger


def command(
    file: Annotated[
        Path | None, Argument(metavar="[FILE]", help="The file of the night, such as shop.toml.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Only say what is wrong in the file.")] = False,
    status: Annotated[
        bool, Option("--status", help="Only show the last night, and what is open.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take in rows, answer requests, learn, write lists, ask witnesses, tidy up.

    Killed at any moment, give it again: it goes on. What fails is told, and the rest goes on.

    Exit code 0: done; 10: something waits, or is due within a week; 20: something is refused or
    late; 1: a step failed.

    Examples: rescind night shop.toml; rescind night shop.toml --check; rescind night --status
    """
    from rescind.errors import ConfigError
    from rescind.home import Ledger
    from rescind.night.config import read
    from rescind.night.steps import work

    if status:
        _show(Ledger.there(), as_json)
        return
    if file is None:
        raise ConfigError("give the file of the night: rescind night shop.toml.")
    if check:
        _check(file)
        return
    config = read(file)
    with Ledger.open() as ledger:
        code = work(config, ledger, lambda line: typer.echo(line, err=True))
    raise typer.Exit(code)


def _check(file: Path) -> None:
    from rescind.night.checking import problems

    wrong = problems(file)
    for line in wrong:
        typer.echo(f"{file}: {line}")
    if wrong:
        raise typer.Exit(1)
    typer.echo(f"{file}: nothing is wrong in it")


def _show(ledger: Ledger | None, as_json: bool) -> None:
    """Print the last night of each data, and count what is open."""
    from rescind.night.steps import STEPS, journal_of

    nights = dict[str, Any]()
    if ledger is not None:
        for journal in ledger.journals(journal_of("")):
            done = ledger.journal(journal)
            ended = done.pop("ended", {})
            began = done.pop("began", {}).get("day")
            left = [step.__name__ for step in STEPS if step.__name__ not in done]
            name = journal.removeprefix(journal_of(""))
            nights[name] = {"began": began, "code": ended.get("code"), "left": left, "steps": done}
    waiting = ledger.requests(open_only=True) if ledger is not None else []
    facts: dict[str, Any] = {
        "nights": nights,
        "open": len(waiting),
        "refused": sum(one.outcome == "REFUSED" for one in waiting),
        "late": sum(one.late for one in waiting),
        "due": min((one.due.isoformat(timespec="seconds") for one in waiting), default=None),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for name, night in nights.items():
        state = f"ended with {night['code']}" if night["code"] is not None else "goes on"
        typer.echo(f"{name}  began {night['began']}  {state}")
        for step, known in night["steps"].items():
            shown = (f"{word} {value}" for word, value in known.items() if word != "lines")
            typer.echo(f"  {step:7} {', '.join(shown)}")
    typer.echo(f"open {len(waiting)}, refused {facts['refused']}, late {facts['late']}")
