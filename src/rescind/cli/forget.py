"""`rescind forget`: add a request and answer it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.options import ChangeUnlearner, Edges, Json, NodeLabels, Nodes
from rescind.cli.request import (
    Audit,
    Case,
    Data,
    File,
    Item,
    Kind,
    Received,
    Together,
    User,
    dated,
    said,
    tell,
)

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.home import Ledger, Request
    from rescind.requests.words import Words

Draw = Annotated[
    float | None,
    Option(min=0, max=1, help="For experiments: erase what this share of lenders lent."),
]


def command(
    run: Annotated[
        Path | None,
        Argument(metavar="[RUN]", help="A run: of published data, it alone is answered."),
    ] = None,
    data: Data = None,
    user: User = None,
    item: Item = None,
    kind: Kind = None,
    file: File = None,
    nodes: Nodes = None,
    edges: Edges = None,
    labels: NodeLabels = None,
    draw: Draw = None,
    method: Annotated[
        str | None, Option(metavar="NAME|FILE.py", help="An unlearner. Default: the run's own.")
    ] = None,
    change: ChangeUnlearner = None,
    away: Annotated[
        list[str] | None,
        Option(metavar="USER", help="A device that is offline: what it kept is owed (Gram)."),
    ] = None,
    audit: Audit = "none",
    workers: Annotated[int, Option(min=1, help="Processes that retrain for the audit.")] = 2,
    received: Received = None,
    case: Case = "",
    together: Together = False,
    as_json: Json = False,
) -> None:
    """Forget: delete the rows, unlearn them in every model, check, sign. Prints the file to send.

    Examples: rescind forget --user c7; rescind forget --user c7 --item p2;
    rescind forget runs/demo --user 450; rescind forget runs/demo --draw 0.3 --audit standard

    All runs on imported data answer together, in their own folders. Killed at any moment, give the
    same command again.

    Exit code 1 if an audit was FAIL or VOID.
    """
    from rescind.errors import ConfigError, RescindError
    from rescind.storage.run_folder import check_finished

    if run is not None:
        check_finished(run)  # before torch is loaded: an error answers at once
    from rescind.home import Ledger
    from rescind.requests.adding import add_words, dataset_named
    from rescind.requests.answer import answer
    from rescind.requests.copies import run_copy

    copy = run_copy(run) if run is not None else None
    if draw is not None:
        words = [dated(one, received, case) for one in _drawn(run, draw)]
    elif nodes or edges or labels:
        words = [dated(_of_graph(nodes, edges, labels), received, case)]
    else:
        words = said(user, item, kind, file, received, case, together)
    with Ledger.open() as ledger:
        if copy is not None and ledger.copy(copy.id) is None:
            ledger.register(copy)
        name = copy.dataset if copy is not None else dataset_named(ledger, data)
        options = {"method": method, "set": change, "away": away, "workers": workers}
        added = add_words(ledger, name, words, audit, **options)
        done = [answer(ledger, one.id, lambda line: typer.echo(line, err=True)) for one in added]
        for one in done:
            if one.outcome == "REFUSED":
                ledger.withdraw(one.id)  # who gives a command reads the answer here
        tell(done, as_json)
        failed = _failed(ledger, done)
    refused = [one for one in done if one.outcome == "REFUSED"]
    if refused and len(done) == 1:
        error = RescindError(refused[0].reason)
        error.code = refused[0].code
        raise error
    if refused:
        raise ConfigError(f"{len(refused)} of {len(done)} requests were refused.")
    if failed:
        raise typer.Exit(1)


def request_in(
    fed: Federation, user: list[str] | None, item: list[str] | None, kind: str | None,
    file: Path | None, draw: float | None, graph: tuple[list[str] | None, ...],
) -> Request:  # fmt: skip
    """Return the request that options name, for a trial that changes nothing."""
    from rescind.requests.drawing import drawn

    if draw is not None:
        return drawn(fed, draw).request("run:trial")
    if any(graph):
        return _of_graph(*graph).request("run:trial")
    return said(user, item, kind, file, together=True)[0].request("run:trial")


def _of_graph(nodes: list[str] | None, edges: list[str] | None, labels: list[str] | None) -> Words:
    """Return a request about parts of a graph: `12,40`, of edges `12-40,12-55`."""
    from rescind.errors import ConfigError
    from rescind.requests.words import Words

    graph = {"nodes": nodes, "edges": edges, "labels": labels}
    given = {kind: texts for kind, texts in graph.items() if texts}
    if len(given) != 1:
        raise ConfigError("give one of --nodes, --edges and --labels.")
    (kind, texts), *_ = given.items()
    return Words(kind, {"": tuple(part.strip() for text in texts for part in text.split(","))})


def _drawn(run: Path | None, share: float) -> list[Words]:
    """Return a request of lenders who are drawn: they erase all that they lent, together."""
    from rescind.errors import ConfigError
    from rescind.experiments.open_run import open_run
    from rescind.requests.drawing import drawn

    if run is None:
        raise ConfigError("--draw is for experiments with one run: rescind forget RUN --draw 0.3.")
    return [drawn(open_run(run, repeatable=False), share)]


def _failed(ledger: Ledger, done: list[Request]) -> bool:
    """Return whether an audit failed; print what was found."""
    from rescind.audits.finding import FAILED
    from rescind.receipts.receipt import parse

    verdicts = []
    for one in done:
        if one.receipt and one.outcome in ("ERASED", "ROWS_ONLY"):
            receipt = parse(ledger.receipt(one.receipt)[0])
            verdicts.append(receipt.verdict)
            typer.echo(f"  level {receipt.done.level}, audit {receipt.verdict}", err=True)
    return any(verdict in FAILED for verdict in verdicts)
