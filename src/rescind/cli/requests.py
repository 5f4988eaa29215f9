"""`rescind requests`: open requests of a service; or a folder of requests to a run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from rescind.cli.calling import TOKEN, URL, call, check_id
from rescind.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rescind.experiments.left_in_others import Left
    from rescind.experiments.request_files import Waiting
    from rescind.experiments.request_queue import Pass


class _Commands(TyperGroup):
    """The commands below. Who gives a folder instead of one wants to know what is in it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in self.commands and Path(args[0]).is_dir():
            ctx.fail(f"'{args[0]}' is a folder. What is open there: rescind requests open FOLDER.")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Commands, suggest_commands=False)
State = Annotated[Path, Option(help="Folder of the ledger.")]
Folder = Annotated[Path, Argument(help="The folder of requests, one file NAME.json each.")]
Database = Annotated[str | None, Option(metavar="URL", help="PostgreSQL, if the ledger is there.")]


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    state: State = Path("runs/service"),
    database: Database = None,
    as_json: Json = False,
) -> None:
    """List and answer requests in a folder; list those of a service, and extend deadlines.

    Without a command below: list the open requests of a service by deadline. It reads only, so the
    service may be running. Those of a folder: rescind requests open FOLDER.

    Example: rescind requests --state runs/service-demo
    """
    if context.invoked_subcommand is not None:
        return
    from rescind.ledger.fulfilment import URGENT, used
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
        urgent = "  !" if used(row, now) >= URGENT else ""
        state_now = row.reason if row.reason == "need_user_verification" else row.status
        typer.echo(
            f"{row.id:<34}{row.kind:<9}{row.n:>8}  {row.received_at:%Y-%m-%d %H:%M} "
            f"{row.expected_by:%Y-%m-%d %H:%M} {state_now}{urgent}"
        )
    typer.echo('Next: rescind requests extend REQUEST --days 14 --reason "..."')
    typer.echo(f"While it is served, also --url and its address, and a token in {TOKEN}.")


def _plain(row: Any) -> dict[str, Any]:
    names = ("id", "kind", "n", "status", "reason", "level")
    times = {name: getattr(row, name).isoformat() for name in ("received_at", "expected_by")}
    return {**{name: getattr(row, name) for name in names}, **times}


@app.command("open")
def show_open(folder: Folder, as_json: Json = False) -> None:
    """List what is open in a folder of requests, and when each is due. It changes nothing.

    What is due first comes first; before it, files in which no date can be read: they are listed by
    the file's date, and may be due earlier. A refused request stays open until its file is mended
    or deleted. An answered one is listed while other runs that learnt from the same data have some
    of it.

    Example: rescind requests open requests/
    """
    from datetime import UTC, datetime

    from rescind.experiments.left_in_others import left_in_others
    from rescind.experiments.request_states import notes_of_another_key, open_requests

    now = datetime.now(UTC)
    found = open_requests(folder, now)
    rows = [
        _Row(
            one.request,
            "refused" if one.why else "waiting",
            one.why,
            guessed=one.request.guessed,
            to_come=one.request.to_come,
        )
        for one in found
    ]
    rows += [_Row(one, "answered", runs=one.runs) for one in left_in_others(folder)]
    rows.sort(key=lambda row: ("due" not in row.guessed, row.asked.due, row.asked.name))
    if as_json:
        typer.echo(json.dumps([row.plain(now) for row in rows], indent=2))
    elif rows:
        _print_open(rows, now)
    else:
        typer.echo(f"no open requests in {folder}.")
    if notes := notes_of_another_key(folder):
        were, they = (
            ("note of a refusal was", "it") if notes == 1 else ("notes of refusals were", "they")
        )
        typer.echo(
            f"{notes} {were} written with another erasure.key than that of this account, so {they} "
            f"cannot be matched with the files: a request that is listed as waiting may be "
            f"refused. Give this command as whoever gives rescind requests run.",
            err=True,
        )


@dataclass(frozen=True)
class _Row:
    """A request in the list of what is open."""

    asked: Waiting | Left
    state: str
    why: str = ""
    runs: tuple[Path, ...] = ()
    """Other runs that still have some of it."""
    guessed: tuple[str, ...] = ()
    """Which of its dates is that of the file, because none can be read in it."""
    to_come: bool = False
    """Whether that is because the time that it names as received has not come yet."""

    def plain(self, now: datetime) -> dict[str, Any]:
        from rescind.experiments.request_states import days_left

        return {
            "request": self.asked.name,
            "received": self.asked.received.isoformat(timespec="seconds"),
            "due": self.asked.due.isoformat(timespec="seconds"),
            "by_file_date": [*self.guessed],
            "days_left": days_left(self.asked.due, now),
            "overdue": self.asked.due < now,
            "state": self.state,
            "why": self.why,
            "other_runs": [str(run) for run in self.runs],
        }

    def told(self) -> str:
        if self.runs:
            from rescind.experiments.other_runs import split_outlived

            stand, outlived = split_outlived(self.runs)
            where = [*map(str, stand), *(f"{run / 'model'} (delete it)" for run in outlived)]
            return f"{self.state}, but still in other runs: {', '.join(where)}"
        return f"{self.state}: {self.why}" if self.why else self.state


def _print_open(rows: list[_Row], now: datetime) -> None:
    from rescind.experiments.request_states import time_left

    times = [
        time_left(row.asked.due, now) + ", by the file's date" * ("due" in row.guessed)
        for row in rows
    ]
    wide = max(len("request"), *(len(row.asked.name) for row in rows)) + 2
    long = max(18, *map(len, times)) + 2
    typer.echo(f"{'request':<{wide}}{'received':<12}{'due':<12}{'time':<{long}}state")
    for row, time in zip(rows, times, strict=True):
        asked = row.asked
        received = "?" if "received" in row.guessed else f"{asked.received:%Y-%m-%d}"
        typer.echo(
            f"{_printable(asked.name):<{wide}}{received:<12}{asked.due:%Y-%m-%d}  "
            f"{time:<{long}}{_printable(row.told())}"
        )
    elsewhere, refused = (sum(row.state == one for row in rows) for one in ("answered", "refused"))
    overdue = sum(row.asked.due < now for row in rows)
    typer.echo(
        f"{len(rows) - elsewhere} open, {overdue} overdue, {refused} refused"
        + (f", {elsewhere} answered but still in other runs" if elsewhere else "")
    )
    guessed = {row.to_come for row in rows if "due" in row.guessed}
    for to_come, why in (
        (False, "it names no day that can be read"),
        (True, "the time it names as received has not come yet"),
    ):
        if to_come in guessed:
            typer.echo(f"By the file's date: {why}. It may be due earlier.")


@app.command("run")
def run_queue(
    folder: Folder,
    run: Annotated[
        Path, Option("--run", help="The run to forget in, or any run that it has replaced.")
    ],
    audits: Annotated[
        str, Option(help="standard, full or none. Audits need 100 records, and take minutes.")
    ] = "standard",
    workers: Annotated[int, Option(min=1, help="Processes that retrain models for audits.")] = 2,
    most: Annotated[int | None, Option(min=1, help="Answer at most this many now.")] = None,
    metrics: Annotated[
        Path | None, Option(metavar="FILE", help="Also write numbers for Prometheus.")
    ] = None,
) -> None:
    """Answer a folder of requests, those that are due first. Made for cron: see docs/operate.md.

    A request is a file such as anna.json: {"withdraw": "7", "received": "2026-11-16"} or
    {"erase": {"user": "9", "items": ["50"]}, "due": "2026-12-01"}. Its receipt and key are put into
    FOLDER/answered/anna/, and the file is deleted. Of imported data, the rows are deleted as by
    rescind data erase, and that receipt lies there, too. A request is answered once, also if the
    command is killed and given again.

    A request is due with the end of a day in UTC: one month after "received", which is not after
    today, or "due", at most three months after it. Exit code 1 if a request was refused, an audit
    failed, or a deadline has passed, also of a request that was answered now, or of one of which
    other runs still have some.

    Example: rescind requests run requests/ --run runs/demo --metrics rescind.prom
    """
    from datetime import UTC, datetime

    from rescind.core.files import write_atomically
    from rescind.errors import ConfigError
    from rescind.experiments.request_log import metrics_text
    from rescind.experiments.request_queue import work_through
    from rescind.experiments.request_states import due_told, time_left

    if audits not in ("standard", "full", "none"):
        raise ConfigError(f"--audits is standard, full or none; got '{audits}'.")
    if metrics is not None and not metrics.parent.is_dir():  # the collector reads another one
        raise ConfigError(
            f"there is no folder {metrics.parent} for --metrics. Make it, or name another."
        )
    done = work_through(folder, run, audits, workers, most, tell=typer.echo)  # type: ignore[arg-type]
    now = datetime.now(UTC)
    if metrics is not None:
        text = metrics_text(folder, done.waiting, now, [one.due for one in done.others])
        write_atomically(metrics, text.encode())
    due = {one.name: due_told(one, now) for one in done.waiting}
    overdue = [one.name for one in done.waiting if one.due < now]
    for name in done.answered:
        _print_answer(folder, name, done)
    for name in done.failed:
        typer.echo(f"audit failed: {name}; see its receipt", err=True)
    for name, how in done.late.items():
        typer.echo(f"late: {name}; {how}", err=True)
    for name in overdue:
        typer.echo(f"overdue: {name}; {due[name]}", err=True)
    for one in done.others:
        if one.name not in done.answered:
            when = f"due {one.due:%Y-%m-%d}, {time_left(one.due, now)}"
            typer.echo(f"answered before: {one.name}; {when}\n{_in_others(one.runs)}", err=True)
            overdue += [one.name] * (one.due < now)
    for name in done.refused:  # last: there may be many, each night, and those above are urgent
        when = due.get(name, "its file is gone")
        typer.echo(f"refused: {name}; {when}; why: {_why(folder, name)}", err=True)
    waiting = [one for one in done.waiting if one.name not in done.refused]
    typer.echo(
        f"{len(done.answered)} answered, {len(done.refused)} refused, {len(waiting)} waiting; the "
        f"run: {done.run}"
    )
    if done.refused or done.failed or done.late or overdue:
        raise typer.Exit(1)


def _print_answer(folder: Path, name: str, done: Pass) -> None:
    """Print where an answer lies, whether it is that of a request before, and what is left."""
    place, same = folder / "answered", done.before.get(name)
    lies_there = bool(same) and name not in done.no_receipt and _has_receipt(place / str(same))
    to_send = _has_receipt(place / name) and not lies_there
    typer.echo(f"answered: {name}" + f"; for the user: {place}/{name}/" * to_send)
    if name in done.no_receipt:
        typer.echo(
            "  the run forgot everything of theirs after an earlier request, whose receipt is "
            "about it: no new one is needed. Noted that they left: rows that come later are left "
            "out"
        )
    elif lies_there:
        typer.echo(f"  answered before, as {same}: send {place}/{same}/")
        typer.echo(_beside(place / name))
    elif same:
        typer.echo(f"  answered before, as {same}; its receipt is not in {place}/{same}/ any more")
    elif name in done.before:
        typer.echo(
            "  answered before, by rescind forget: the receipt is that one, and the exact request "
            "was not kept"
        )
    for one in done.others:
        if one.name == name:
            typer.echo(_in_others(one.runs))
    if name in done.rows:
        typer.echo(f"  imported rows: {done.rows[name]}")


def _beside(answer: Path) -> str:
    """Return what of a repeated request's folder is for the user, beside the first answer."""
    receipts = sorted(path.stem for path in answer.glob("receipt-*.json"))
    own = ", ".join(f"{one}.*" for one in receipts if not one.endswith(".request"))
    told = f"of {answer}/ only {own} (of the rows)" if own else f"nothing in {answer}/"
    return f"  {told} is for the user: a receipt.json there is a copy, without its key"


def _in_others(runs: Sequence[Path]) -> str:
    """Return the indented line, or lines, about other runs that still have some of a request."""
    from rescind.experiments.other_runs import others_told

    return indent(others_told(runs), "  ")


def _has_receipt(answer: Path) -> bool:
    """Return whether the folder of an answer has its receipt: of the run, or of rows alone."""
    about = answer / "about.json"
    if about.is_file() and json.loads(about.read_text(encoding="utf-8")).get("only_rows"):
        return any(answer.glob("receipt-*.json"))
    return (answer / "receipt.json").is_file()


def _why(folder: Path, name: str) -> str:
    """Return where it is noted why a request was refused; at a terminal also the reason.

    The reason may name a user, and what cron prints is sent by mail.
    """
    note = folder / "refused" / f"{name}.json"
    if not at_terminal():
        return str(note)
    why = str(json.loads(note.read_text(encoding="utf-8"))["why"])
    return f"{_printable(why)} ({note})"


def _printable(text: str) -> str:
    """Replace characters that move the cursor: a request must not write on the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def at_terminal() -> bool:
    """Return whether somebody at a terminal reads what is printed as an error."""
    return sys.stderr.isatty()


@app.command()
def extend(
    request: Annotated[str, Argument(help="The request, as `rescind requests` lists it.")],
    days: Annotated[int, Option(min=1, max=60, help="Days more.")],
    reason: Annotated[str, Option(help="Why; the page of the user says it.")],
    url: Annotated[
        str | None,
        Option(help=f"{URL} It needs the scope extend."),
    ] = None,
    state: State = Path("runs/service"),
    database: Database = None,
) -> None:
    """Give a request to a service more time, with a reason.

    At a running service (--url), or in the state folder of one (--state). The deadline of a request
    in a folder of requests is in its file: "due".

    Example: rescind requests extend ID --days 14 --reason "many requests"
    --url http://localhost:8000
    """
    if url is not None:
        check_id(request, "rescind requests")
        path = f"/v1/operator/requests/{request}/extend"
        told = call(url, "POST", path, "extend", {"days": days, "reason": reason})
    else:
        from rescind.ledger.requests import extend as extend_here

        told = extend_here(state, database, request, days, reason)
    typer.echo(f"{request} is due on {told['expected_by']}. Their page says why: {reason}")
    typer.echo("No mail is sent. Write to who may not look there: they must be told in time.")
    if warning := told.get("warning"):
        typer.echo(f"Careful: {warning}.")
