"""`rescind forget`: answer a request to erase records, to unshare them, or to withdraw."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from rescind.cli.asking import ask_to_go_on
from rescind.cli.forget_given import named_records, requests_of, unlearner
from rescind.cli.forget_papers import (
    NONE,
    check_late_papers,
    check_papers,
    keep_request,
    rows_left,
    users_of,
    write_parts,
)
from rescind.cli.options import ChangeUnlearner, Edges, NodeLabels, Nodes, Run
from rescind.cli.progress import Countdown
from rescind.cli.stopping import interruptible
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.labels import Labels
    from rescind.core.method import Unlearner
    from rescind.core.records import Event
    from rescind.core.run_state import RoundResult
    from rescind.experiments.forget_run import Answer
    from rescind.experiments.other_runs import Named
    from rescind.experiments.read_request import Kind, Source

FOR_ONE = "for the requester only"
NOTHING = "Nothing was forgotten."
FEW_PEOPLE = 10
"""Up to so many users mostly change less than chance does, so an audit cannot tell."""


def command(
    run: Run,
    erase: Annotated[
        list[str] | None,
        Option(
            metavar="FILE",
            help="Erase records everywhere: a CSV with original ids, columns user,item (or user "
            "alone for all their records); draw:0.3 draws 30 % of the lenders.",
        ),
    ] = None,
    unshare: Annotated[
        list[str] | None,
        Option(metavar="FILE", help="Lent records to unshare, as in --erase; devices keep them."),
    ] = None,
    withdraw: Annotated[
        list[str] | None,
        Option(
            metavar="USER",
            help="A user withdraws with all their data. Repeatable: each request is answered by "
            "itself, with its own receipt.",
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        Option(metavar="USER", help="With --item: erase a few records of this user."),
    ] = None,
    item: Annotated[
        list[str] | None, Option(metavar="ITEM", help="An item of --user; repeatable.")
    ] = None,
    nodes: Nodes = None,
    edges: Edges = None,
    labels: NodeLabels = None,
    method: Annotated[
        str | None,
        Option(
            metavar="NAME|FILE.py",
            help="An unlearner, or your own. Default: as the run's method forgets by itself: Gram "
            "subtracts, most train again without the records.",
        ),
    ] = None,
    change: ChangeUnlearner = None,
    audits: Annotated[str, Option(help="standard, full or none.")] = "standard",
    out: Annotated[
        Path | None, Option(help="Folder of the new run. Default: RUN-forgot-1, RUN-forgot-2, ...")
    ] = None,
    workers: Annotated[int, Option(min=1, help="Processes that retrain models for the audit.")] = 2,
    away: Annotated[
        list[str] | None,
        Option(
            metavar="USER",
            help="A user whose device is offline; repeatable. What it kept is owed, or lost if "
            "the user withdraws, and the receipt states it (Gram).",
        ),
    ] = None,
    everywhere: Annotated[
        bool | None,
        Option(
            "--everywhere/--only-here",
            help="Leave the rows out of every later run on this dataset, or of this run and its "
            "successors alone (for trials). Default: everywhere if you imported the data, only "
            "here if it is public.",
        ),
    ] = None,
    parts: Annotated[
        Path | None,
        Option(
            metavar="FOLDER|none",
            help="Write each user's part of the request into an empty folder. With it they can "
            "check the receipt: rescind verify receipt.json --part FILE. Send each to its user "
            "only. Several users of imported data need it: parts cannot be made later.",
        ),
    ] = None,
    request: Annotated[
        Path | None,
        Option(
            metavar="FILE|none",
            help="Write the exact request to FILE, which must be new. The requester can check the "
            "receipt with rescind verify --event FILE --event-key receipt.key. Send both, then "
            "delete them; if several users ask, to nobody: it lists the records of all. One user "
            "of imported data needs it, except with --only-here: it cannot be written later.",
        ),
    ] = None,
    case: Annotated[
        str | None,
        Option(metavar="TEXT", help="Your number of the request, for the top of receipt.html."),
    ] = None,
    yes: Annotated[
        bool,
        Option("--yes", help="Do not ask (of imported data; without a terminal it never asks)."),
    ] = False,
) -> None:
    """Forget records of a run: make a new run without them, and a signed receipt.

    Examples: rescind forget runs/demo --withdraw 450; rescind forget runs/demo --erase records.csv;
    rescind forget runs/demo --user 793 --item 50 --item 172

    Users and items go by their original ids. The old run is emptied: its folder keeps its metrics
    and a page that links to the new run. To keep a model from before, copy the folder first. Give
    the receipt's key to the requester: only with it can the receipt be matched with the records.

    Exit code 1 if an audit was FAIL or VOID, as of rescind audit.
    """
    from rescind.audits.finding import FAILED
    from rescind.errors import ConfigError
    from rescind.storage.run_folder import MOVED, check_finished

    few = named_records(user, item, withdraw)
    kind, sources = requests_of(erase, unshare, withdraw, nodes, edges, labels, few)
    if audits not in ("standard", "full", "none"):
        raise ConfigError(f"--audits is standard, full or none; got '{audits}'.")
    if len(sources) > 1 and (out or case or request not in (None, NONE)):
        raise ConfigError(
            f"--out, --request and --case are of one request, and {len(sources)} were given. Give "
            f"them one by one, or write them into a folder: rescind requests run --help. Nothing "
            f"was forgotten."
        )
    if not (run / MOVED).is_file():  # a request that was answered gets its answer again
        check_finished(run)
    how = unlearner(method, change or ())
    from rescind.experiments.forget_run import check_requests
    from rescind.experiments.leaving import may_still_leave
    from rescind.storage.run_folder import newest

    leaving = [
        source for source in sources
        if kind == "withdraw" and isinstance(source, str)
        and may_still_leave(newest(run), source, everywhere)
    ]  # fmt: skip
    sources = [source for source in sources if source not in leaving]
    with _refused_whole():
        check_requests(run, kind, sources)
    verdicts = list[str]()
    for source in sources:  # the next request is to the run that the last one left
        done, named = _answer(
            run,
            kind,
            source,
            how,
            audits,
            out,
            workers,
            away or (),
            request,
            parts,
            everywhere,
            case or "",
            later=bool(verdicts),
            ask=not yes and sys.stdin.isatty(),
        )
        verdicts.append(_print(done, named, case or ""))
        run = done.folder
    for one in leaving:  # last, so that the same command goes on if it was stopped before
        _note_leaving(newest(run), one, everywhere, case or "")
    if any(verdict in FAILED for verdict in verdicts):
        raise typer.Exit(1)


def _note_leaving(run: Path, user: str, everywhere: bool | None, case: str) -> None:
    """Note that somebody left whose records were all erased before; say so, and what is left."""
    from rescind.experiments.leaving import note_leaving
    from rescind.experiments.other_runs import others_told, others_with

    out_of = note_leaving(run, user, everywhere)
    typer.echo(
        f"user '{user}': all their records were erased from {run} after an earlier request: see "
        f"its receipt, no new one is needed.\n"
        f"It is noted that they left: rows of theirs that come later are left out of {out_of}."
    )
    if stored := rows_left(run, {user: None}, case):
        typer.echo(stored)
    if others := others_with(run, {user: None}):
        typer.echo(others_told(others))


def _answer(
    run: Path, kind: Kind, source: Source, how: Unlearner | None, audits: str, out: Path | None,
    workers: int, away: Sequence[str], request: Path | None, parts: Path | None,
    everywhere: bool | None, case: str, later: bool, ask: bool,
) -> tuple[Answer, Named]:  # fmt: skip
    """Answer one request, with a bar; return what it names, too.

    request, parts: where to write them for the requesters    later: this command has answered
    another one    ask: before imported data is forgotten
    """
    from contextlib import ExitStack

    from rescind.experiments.forget_run import answer
    from rescind.experiments.other_runs import named_by, named_in
    from rescind.experiments.read_request import DRAW
    from rescind.forgetting.forget import FEWEST
    from rescind.reporting.progress import RoundBar
    from rescind.storage.events import event_text
    from rescind.storage.run_folder import is_private

    drawn = isinstance(source, str) and source.startswith(DRAW)
    private = is_private(run) and not drawn
    folder = None if parts == NONE else parts
    file = None if request == NONE else request
    bars: list[RoundBar] = []
    count = Countdown("retrained models to compare with (audit)")
    asked: list[tuple[Event, Labels]] = []
    kept, go_on = "Nothing is half forgotten.", "To have it answered, give the same command."
    with interruptible(kept, go_on), _refused_whole(lambda: asked or later), ExitStack() as stack:

        def on_start(fed: Federation, event: Event, count: int) -> None:
            users = users_of(event, fed.labels)
            text = event_text(event, fed.labels)
            check_papers(parts, request, text, users if private and everywhere is not False else ())
            emptied = (
                "The old run is emptied when the new one is complete (to keep a model from before, "
                "stop now and copy the folder)."
            )
            who = f"user '{users[0]}'" if len(users) == 1 else count_of(len(users), "user")
            of = "" if kind in ("nodes", "edges", "labels") else f" of {who}"
            typer.echo(f"{kind}{of}: {_amount(fed, event, count)}. {emptied}")
            if ask and private:
                ask_to_go_on(NOTHING)
            audited = audits != "none" and count >= FEWEST
            if audited and few_people(event):
                typer.echo(
                    "The audit takes minutes, and one user, or a few, mostly stay INCONCLUSIVE: "
                    "what they change is small. To answer without it, stop now and give --audits "
                    "none."
                )
            asked.append((event, fed.labels))
            keep_request(file, text)
            rounds = fed.now.state.round if how is None else None
            later = "auditing (trains models to compare), saving" if audited else "saving"
            bar = RoundBar(f"forgetting ({kind})", rounds, after=later)
            bars.append(stack.enter_context(bar))

        def on_round(moment: RoundResult) -> None:
            bars[0](moment)

        done = answer(
            run, kind, source, how, audits, out, workers,  # type: ignore[arg-type]
            watch=(on_round,), on_retrain=count, on_start=on_start, away=away,
            everywhere=everywhere, case=case, parts=folder is not None,
        )  # fmt: skip
    if not asked:
        check_late_papers(folder, file, done)
    if folder is not None:
        write_parts(folder, asked[0], done.evidence)
    named = named_in(*asked[0], done.fed) if asked else named_by(kind, source)
    if file is not None and asked:
        whose = "for nobody: it lists the records of all" if len(named) > 1 else FOR_ONE
        typer.echo(f"Written: the exact request, {file} ({whose})")
    return done, {} if drawn else named  # nobody asked for what is drawn


@contextmanager
def _refused_whole(begun: Callable[[], object] = lambda: False) -> Iterator[None]:
    """Add to a refusal that nothing was forgotten, unless something was begun by then."""
    from rescind.errors import ConfigError, ConsentError, DataError

    try:
        yield
    except (ConfigError, ConsentError, DataError) as error:
        if not begun() and "Nothing was " not in str(error):
            error.args = (f"{error} {NOTHING}", *error.args[1:])
        raise


def _amount(fed: Federation, event: Event, rows: int) -> str:
    """Return how much a request names; items, too, where one of them has several rows."""
    from rescind.forgetting.receipt_words import items_and_rows

    graph = fed.now.vault.holdings.graph  # whose records are not of items
    named = getattr(event, "records", None) if graph is None else None
    told = items_and_rows(rows if named is None else len(named.pairs().unique()), rows)
    return f"{told}, all that the run has of them" if _is_all(fed, event, rows) else told


def _is_all(fed: Federation, event: Event, rows: int) -> bool:
    """Return whether an erasure names every record that its users hold."""
    import torch

    from rescind.core.records import Erase

    if not isinstance(event, Erase) or fed.now.vault.holdings.graph is not None:
        return False
    holders = fed.now.vault.holdings.records.client
    return int(torch.isin(holders, event.records.client.unique().to(holders)).sum()) == rows


def few_people(event: Event) -> bool:
    """Return whether so few users ask that checks can rarely tell."""
    records = getattr(event, "records", None)
    return records is None or len(records.client.unique()) <= FEW_PEOPLE


def _print(done: Answer, named: Named, case: str) -> str:
    """Print what was done, found and written; return the verdict."""
    from rescind.audits.finding import SAID_IN_WORDS, legend, question
    from rescind.experiments.other_runs import others_told, others_with, told_where
    from rescind.forgetting.forget import IN_BATCHES, TOO_FEW
    from rescind.forgetting.receipt_words import amount, said_of
    from rescind.forgetting.sealing import shown
    from rescind.forgetting.succession import RECEIPT
    from rescind.reporting.html import word_of
    from rescind.storage.run_folder import is_private, read_facts

    if done.evidence.cost is None:
        typer.echo("answered before: the receipt is the same")
    receipt = done.evidence.exact
    asked, how_done = receipt.asked, receipt.done
    seconds = how_done.seconds  # bands, if the key is not here any more
    took = seconds if isinstance(seconds, str) else f"{seconds:.1f}"
    did = "unshared (devices keep them)" if asked.kind == "Unshare" else "forgot"
    typer.echo(
        f"{did} {amount(receipt)}, users concerned: {shown(asked.people)}, by "
        f"{how_done.unlearning} in {took} s ({count_of(how_done.rounds, 'round')}, level "
        f"{how_done.level}): {receipt.verdict}"
    )
    for f in receipt.findings:
        value = "" if f.value is None else f"{f.value:.4f}"
        reference = "" if f.reference is None else f"retrain {f.reference:.4f}"
        measured = f"{f.check:<16} {word_of(f.verdict):<13} {value:>8}  {reference:<15}"
        typer.echo(f"  {measured} {question(f.check)}")
        if f.note and (f.verdict == "UNAUDITED" or f.check in SAID_IN_WORDS):
            typer.echo(f"    {f.note}" + f" {IN_BATCHES}" * f.note.startswith(TOO_FEW))
    typer.echo("  What the words above mean:")
    for line in legend([receipt.verdict, *(f.verdict for f in receipt.findings)]):
        typer.echo(f"    {said_of(receipt, line)}")
    facts = read_facts(done.folder) or {}
    privacy = facts.get("privacy") or {}
    if privacy.get("epsilon") is not None and "participations" in privacy:
        typer.echo(
            f"  privacy: epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:g} for all "
            f"rounds since the start, these included"
        )
    typer.echo(f"\nWritten: {done.folder}/receipt.json and receipt.html; new run in {done.folder}")
    if not done.key_file.is_file():
        typer.echo("Its key is not here any more: it was handed over, or deleted")
    elif asked.people == 1:
        typer.echo(f"For the requester only: {done.key_file}, and receipt.html (exact numbers)")
    else:
        typer.echo(
            f"For nobody else: {done.key_file}, receipt.html and the exact request. Each user gets "
            f"receipt.json, their own part and the page beside the parts (--parts FOLDER)."
        )
    if done.later_runs:
        typer.echo(done.later_runs)
    unshared = asked.kind == "Unshare"
    if not unshared and (stored := rows_left(done.folder, named, case)):
        typer.echo(stored)
    if others := others_with(done.folder, named, lent=unshared):
        typer.echo(others_told(others))
    if named and is_private(done.folder):
        typer.echo(told_where(done.folder))
    _tell_proof(done.folder / RECEIPT)
    return receipt.verdict


def _tell_proof(receipt: Path) -> None:
    from rescind.forgetting.receipt_log import proof_path

    proof = proof_path(receipt)
    named, proven = shlex.quote(str(receipt)), shlex.quote(str(proof))  # made to be copied
    if proof.is_file():
        typer.echo(f"In your log: {proof} (rescind log key prints the key that checks it)")
        typer.echo(f"Next: rescind verify {named} --proof {proven}")
    else:
        typer.echo(f"Not in your log yet. Next: rescind log add {named}")
