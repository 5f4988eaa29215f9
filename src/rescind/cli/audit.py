"""`rescind audit`: audit an unlearner on a run, without changing the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from rescind.cli.forget import Draw, request_in
from rescind.cli.options import ChangeUnlearner, Edges, NodeLabels, Nodes, Run
from rescind.cli.progress import Countdown, working
from rescind.cli.request import File, Item, Kind, User
from rescind.cli.stopping import interruptible

if TYPE_CHECKING:
    from rescind.audits import Report

FEW_PEOPLE = 10
"""Up to so many users mostly change less than chance does, so an audit cannot tell."""
GRAPH = ("nodes", "edges", "labels")


def command(
    run: Run,
    user: User = None,
    item: Item = None,
    kind: Kind = None,
    file: File = None,
    draw: Draw = None,
    nodes: Nodes = None,
    edges: Edges = None,
    labels: NodeLabels = None,
    method: Annotated[
        str | None,
        Option(help="The unlearner to audit, or 'nothing'. Default: the run's own."),
    ] = None,
    change: ChangeUnlearner = None,
    full: Annotated[bool, Option("--full", help="Also run the slow checks.")] = False,
    ulira: Annotated[bool, Option("--ulira", help="Also run U-LiRA, with shadow models.")] = False,
    pairs: Annotated[int, Option(min=2, help="Pairs of shadow models for --ulira.")] = 16,
    seed: Annotated[int, Option(help="Seed of the audit.")] = 0,
    workers: Annotated[int, Option(min=1, help="Processes that retrain models.")] = 2,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
) -> None:
    """Forget in memory and audit the result. The run itself is not changed.

    Writes audit.json. Trained models are kept in RUN/audits and used again for the same request.

    Exit code 0: PASS or INCONCLUSIVE, 1: FAIL or VOID.

    Example: rescind audit runs/demo --draw 0.3
    """
    from rescind.audits.finding import FAILED
    from rescind.storage.run_folder import check_finished, working_on

    check_finished(run)
    from rescind.core.files import write_atomically
    from rescind.experiments.unlearners import chosen_unlearner
    from rescind.forgetting.examine import By, committed, examine, forgotten
    from rescind.requests.copies import run_copy
    from rescind.requests.run_holder import Run as RunHolder
    from rescind.storage.provenance import version_of, versions

    nothing = method == "nothing" and not change
    subject: By = "nothing" if nothing else chosen_unlearner(method, change or ())
    with interruptible("Finished models are kept."), working_on(run):
        holder = RunHolder(run_copy(run))
        before = holder.fed
        request = request_in(before, user, item, kind, file, draw, (nodes, edges, labels))
        holder.check(request)
        event = holder.event(request)
        if len(request.records) <= FEW_PEOPLE and request.kind not in GRAPH:
            typer.echo("A few users cannot get a PASS. Audit many: --draw 0.3.", err=True)
        lot = committed(run / "audits")  # before the unlearner runs
        with working("audit"):
            after = forgotten(subject, before, event)
            report = examine(
                before, after, event, level="full" if full else "standard", ulira=ulira,
                unlearner=subject, seed=seed, workers=workers, pairs=pairs,
                folder=run / "audits", progress=Countdown("models to compare with"), lot=lot,
            )  # fmt: skip
    facts = {
        "verdict": report.verdict,
        "why": report.why,
        "subjects": dict(report.subjects),
        "request": type(event).__name__,
        "unlearner": method or "the run's own method",
        "seed": seed,
        "hold_out": lot.digest,
        "findings": [f.facts() for f in report.findings],
        "versions": versions() | version_of(before.method, subject),
    }
    write_atomically(run / "audit.json", (json.dumps(facts, indent=2) + "\n").encode())
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(report)
        typer.echo(f"\nWritten: {run}/audit.json")
    if report.verdict in FAILED:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    """Print the checks and the verdict."""
    from rescind.audits.battery import told_by_role
    from rescind.audits.finding import VERDICTS, legend, question
    from rescind.reporting.html import word_of

    head = f"{'check':<18} {'verdict':<13} {'value':>8} {'retrains':>9} {'margin':>7} {'no-op':>7}"
    typer.echo(f"{head}  asks")
    for f in report.findings:
        if f.value is None:
            continue
        compared = (f.reference, f.margin, f.controls.get("no-op"))
        reference, margin, no_op = ("" if n is None else f"{n:.4f}" for n in compared)
        typer.echo(
            f"{f.check:<18} {word_of(f.verdict):<13} {f.value:>8.4f} {reference:>9} {margin:>7} "
            f"{no_op:>7}  {question(f.check)}"
        )
    others = ", ".join(told_by_role(report.subjects, report.judged))
    notes = legend(f.verdict for f in report.findings if f.verdict != report.verdict)
    why = f" {report.why[0].upper()}{report.why[1:]}." if report.why else ""
    judged = f"Verdict of the audit: {report.verdict}. {VERDICTS[report.verdict]}{why}"
    words = ["What the words above mean:", *(f"  {note}" for note in notes)] if notes else []
    typer.echo("\n".join(["", *words, f"Controls: {others}.", judged]))
