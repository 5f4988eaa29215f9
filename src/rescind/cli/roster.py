"""`rescind roster`: publish hidden lines of a sum, and check them without data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rescind.cli.given import checkpoint_given, key_given, read_bytes, read_text
from rescind.cli.options import Run
from rescind.core.words import count_of

app = typer.Typer(
    help="Publish what a sum is made of, hidden, so that strangers can add it up.",
    no_args_is_help=True,
)
Folder = Annotated[Path, Argument(metavar="PUBLIC", help="The folder of the roster.")]
Log = Annotated[
    Path | None, Option("--log", help="The folder of the log. Default: keys/log of the home.")
]


@app.command("publish")
def publish(
    run: Run,
    out: Annotated[Path, Option(help="The public folder; an earlier one is brought up to date.")],
    log: Log = None,
) -> None:
    """Publish the roster of a run of Gram: new lines are added, those of the gone are revoked.

    A log carries one roster. Give another model another log with --log.

    Example: rescind roster publish runs/mine --out public
    """
    from rescind.errors import DataError
    from rescind.experiments.open_run import open_run
    from rescind.forgetting import roster
    from rescind.privacy.keys import log_key
    from rescind.receipts.log import open_log

    fed, place = open_run(run, repeatable=False), open_log(log)
    seeds = roster.Seeds.of(place)
    before = len(place.entries)
    public = roster.publish(fed, place, log_key(), seeds, roster.lines_in(out))
    public.write(out)
    grown = len(place.entries) - before
    typer.echo(f"{count_of(len(seeds.lines), 'line')}; the log grew by {grown:,}.")
    if not roster.adds_up(public):
        raise DataError(
            f"{out}: the sum of this run holds something that its data does not give, such as "
            f"parts of devices that were away. Strangers will find it. Count all devices again."
        )
    typer.echo(f"Written: {out}")
    typer.echo(f"Next: rescind log cosign URL --key KEY --public {out}, to have a witness sign it")
    typer.echo(f"      rescind roster check {out} --log-key KEY (rescind log key prints it)")


@app.command("check")
def check(
    folder: Folder,
    log_key: Annotated[str | None, Option(help="The log's key. Default: your own log's.")] = None,
    witness: Annotated[
        list[str] | None, Option(help="The key of a witness that must have signed; repeatable.")
    ] = None,
    since: Annotated[
        Path | None, Option(help="A checkpoint kept from before: is the log a continuation of it?")
    ] = None,
    mine: Annotated[
        Path | None, Option(help="Your own lines (rescind roster mine): counted, or revoked?")
    ] = None,
    silos: Annotated[
        Path | None,
        Option(help="Public keys of silos (silos.pub): did their devices make the lines?"),
    ] = None,
    after: Annotated[
        Path | None,
        Option(metavar="RECEIPT", help="With --silos: no line may be older than this receipt."),
    ] = None,
    run: Annotated[
        Path | None,
        Option(help="For whoever may rebuild: is this run's sum the published one?"),
    ] = None,
    state: Annotated[
        Path | None,
        Option(help="The same for a service: its state folder, while it does not run."),
    ] = None,
    database: Annotated[
        str | None, Option(metavar="URL", help="With --state: PostgreSQL, if the ledger is there.")
    ] = None,
) -> None:
    """Check that the lines of a roster add up, without any data. Exit code 1 if they do not.

    Exit code 2 if the file of --mine has no line, or --run names no run: nothing is checked then.

    Examples: rescind roster check public --log-key log.pub --witness witness-0.pub;
    rescind roster check public --log-key log.pub --mine mine.json
    """
    from rescind.errors import DataError
    from rescind.proof import roster
    from rescind.proof.notes import LOG, WITNESS
    from rescind.receipts.log import own_key_under

    trusted = key_given(log_key, LOG) if log_key else None
    witnesses = [key_given(one, WITNESS) for one in witness or []]
    before = checkpoint_given(since)
    lines = lines_in(mine) if mine else []
    signers = read_text(silos) if silos else None
    earliest = _time_of(after, signers) if after else None
    if run:
        _check_is_run(run)
    try:
        public = roster.Public.read(folder)
        trusted = trusted or own_key_under(public.log.note)
        told = roster.check(public, trusted, witnesses, before)
        rebuilt = _rebuilt(folder, public, witnesses)
        told += rebuilt
        told += [f"the log begins with what {since} signed"] if since else []
        told += _mine(public, lines) if lines else []
        told += _signed(folder, public, signers, earliest) if signers is not None else []
        told += _audit(run, public, folder) if run else []
        told += _audit_state(state, database, public) if state else []
    except DataError as error:
        typer.echo(f"NOT VALID: {error}")
        raise typer.Exit(1) from None
    typer.echo("VALID")
    for sentence in told:
        typer.echo(f"  {sentence}")
    if run is None and state is None:
        weights = "which sum is in use; whether the weights in use were solved from it; "
        typer.echo(
            "Not covered: "
            + (weights if not rebuilt else "")
            + "whose line is whose"
            + ("; whether the names of the items are true." if mine else ".")
        )


@app.command("fetch")
def fetch(
    url: Annotated[str, Argument(metavar="URL", help="The address of a service.")],
    out: Annotated[Path, Option(help="The folder to write; an earlier one is replaced.")],
) -> None:
    """Fetch the roster of a running service and its log, to check them offline.

    Example: rescind roster fetch https://lend.example.org --out public
    """
    from rescind.proof.fetching import fetch as fetched

    stated = fetched(url, out)
    of = f"release {stated.facts.get('number')}" if stated.facts else "a run"
    lines = count_of(stated.lines, "line")
    typer.echo(f"{lines} of {of}, stated on {stated.time}. Written: {out}")
    typer.echo(f"Next: rescind roster check {out} --log-key KEY (the service tells it: /v1/keys)")


@app.command("mine")
def mine(
    run: Run,
    user: Annotated[str, Option(help="The user's original id.")],
    out: Annotated[Path, Option(help="File to write, for this user only.")],
    log: Log = None,
) -> None:
    """Write what a user needs to find their own lines in the roster, now and after withdrawing.

    Example: rescind roster mine runs/mine --user c7 --out mine.json
    """
    from rescind.core.files import write_atomically
    from rescind.errors import DataError
    from rescind.experiments.open_run import open_run
    from rescind.forgetting import roster
    from rescind.receipts.log import open_log
    from rescind.requests.members import AskedBefore

    fed = open_run(run, repeatable=False)
    client = AskedBefore.read(run).client(user, fed.labels, fed.world.sizes.clients)
    place, again = open_log(log), f"rescind roster publish {run}"
    seeds = roster.Seeds.of(place)
    try:
        lines = roster.lines_of(fed, client, seeds, place)
    except roster.Outdated as error:
        raise DataError(f"{error} Publish first: {again}.") from None
    if not lines:
        raise DataError(f"user '{user}' has no line. Publish first: {again}.")
    text = (json.dumps(lines, indent=1) + "\n").encode()
    if out.exists() and out.read_bytes() != text:
        raise DataError(f"{out} exists, and may be another user's. Choose another name with --out.")
    write_atomically(out, text, private=True)
    items = sum(len(one["items"]) for one in lines)
    typer.echo(
        f"{count_of(len(lines), 'line')} with {count_of(items, 'item')} that the sum counts; what "
        f"is kept for tests is in none. For user '{user}' only: {out}"
    )
    typer.echo(f"Next: rescind roster check PUBLIC --log-key KEY --mine {out}")


def lines_in(mine):
    """Return the lines in a person's file. One without any is their own mistake, not a finding."""
    from rescind.errors import ConfigError

    text = read_text(mine)
    try:
        lines = json.loads(text)
    except (ValueError, RecursionError):
        lines = None
    if isinstance(lines, dict):
        lines = lines.get("lines")  # as a service tells them: /v1/me/lines
    if not isinstance(lines, list) or not all(isinstance(one, dict) for one in lines):
        raise ConfigError(
            f"Nothing was checked: {mine} has no lines. Give the file of rescind roster mine, or "
            f"what a service tells at /v1/me/lines."
        )
    if not lines:
        raise ConfigError(
            f"Nothing was checked: {mine} has no line. Give the file that you kept from before, or "
            f"leave --mine out."
        )
    return lines


def _rebuilt(folder, public, witnesses):
    """Say which of the given witnesses rebuilt the release, if a service published it."""
    from rescind.proof import rebuilt
    from rescind.proof.roster import Stated

    if not witnesses or not (folder / rebuilt.FILE).exists():
        return []
    data, stated = (folder / rebuilt.FILE).read_bytes(), Stated.parse(public.stated)
    return rebuilt.told(data, public.log.checkpoint.origin, stated, witnesses)


def _mine(public, lines):
    from rescind.errors import DataError
    from rescind.proof.roster import Stated, history, own_line

    told, by_number = [], bool(Stated.parse(public.stated).facts)
    for one in lines:
        name = own_line(one)
        if name != one.get("line"):
            raise DataError(f"your line {str(one.get('line'))[:16]} is not made of your items.")
        says = history(public.log, name)
        if "never" in says:
            raise DataError(f"your line {name[:16]}: {says}.")
        told.append(f"your line {name[:16]} of {count_of(len(one['items']), 'item')}: {says}")
        told.append(_names_told(public.log, name, one, by_number))
    return told


def _names_told(log, line, one, by_number):
    """Say whether the names of a person's items were checked. by_number: a service tells none"""
    from rescind.errors import DataError
    from rescind.proof.item_names import check_names

    if by_number:
        return "  its items were checked by number; /v1/catalogue of the service names them"
    try:
        where = check_names(log, line, one)
    except DataError as error:
        raise DataError(f"your line {line[:16]}: {error}") from None
    if where is None:
        return "  its items were checked by number; the names beside them (ids) were not"
    return f"  its items have the names (ids) that the log states as {where}, for everybody alike"


def _check_is_run(run):
    """Refuse a folder without a finished run: it says nothing about the operator's roster."""
    from rescind.errors import ConfigError, DataError
    from rescind.storage.run_folder import check_finished

    try:
        check_finished(run)
    except DataError as error:
        raise ConfigError(f"Nothing was checked: {error}") from None


def _audit(run, public, folder):
    from rescind.errors import DataError
    from rescind.experiments.open_run import open_run
    from rescind.forgetting.roster import Outdated, Seeds, audit

    try:
        return audit(open_run(run, repeatable=False), public, Seeds.of(public.log))
    except Outdated as error:
        raise DataError(
            f"{error} If a request was answered since: rescind roster publish {run} --out {folder}"
        ) from None


def _audit_state(state, database, public):
    from rescind.errors import ConfigError
    from rescind.ledger.book import Ledger
    from rescind.ledger.keyfile import FILE
    from rescind.ledger.roster_audit import audit

    if not (state / FILE).exists():
        raise ConfigError(f"{state} is not the state folder of a service: it has no {FILE}.")
    ledger = Ledger.open(state, database=database)
    try:
        return audit(ledger, public)
    finally:
        ledger.close()


def _time_of(receipt, signers):
    from rescind.errors import ConfigError, DataError
    from rescind.receipts.receipt import parse

    if signers is None:
        raise ConfigError("--after asks when silos made their lines: give --silos, too.")
    try:
        return parse(read_bytes(receipt)).time
    except DataError as error:
        raise ConfigError(f"{receipt}, given with --after: {error}") from None


def _signed(folder, public, keys, after):
    from rescind.errors import DataError
    from rescind.proof import signed_lines

    silos = signed_lines.keys_in(keys.encode())  # first: wrong keys say nothing about the folder
    try:
        data = (folder / signed_lines.FILE).read_bytes()
    except OSError as error:
        raise DataError(f"{folder} does not say who made the lines: {error.strerror}.") from None
    return signed_lines.check(public, signed_lines.read(data), silos, after)
