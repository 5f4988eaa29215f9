"""`rescind audit`: audit an unlearner on a run, without changing the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from rescind.cli.forget import few_people
from rescind.cli.forget_given import named_records, requests_of, unlearner
from rescind.cli.options import ChangeUnlearner, Edges, NodeLabels, Nodes, Run
from rescind.cli.progress import Countdown, working
from rescind.cli.stopping import interruptible

if TYPE_CHECKING:
    from rescind.audits import Report


def command(
    run: Run,
    erase: Annotated[
        list[str] | None,
        Option(metavar="FILE", help="Records to erase, as in rescind forget, or draw:0.3."),
    ] = None,
    unshare: Annotated[
        list[str] | None,
        Option(metavar="FILE", help="Lent records to unshare, in the format of --erase."),
    ] = None,
    withdraw: Annotated[
        list[str] | None, Option(metavar="USER", help="A user who withdraws with all their data.")
    ] = None,
    user: Annotated[
        list[str] | None, Option(metavar="USER", help="With --item: a few records of this user.")
    ] = None,
    item: Annotated[
        list[str] | None, Option(metavar="ITEM", help="An item of --user; repeatable.")
    ] = None,
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

    Example: rescind audit runs/demo --erase draw:0.3
    """
    from rescind.audits.finding import FAILED
    from rescind.errors import ConfigError
    from rescind.storage.run_folder import check_finished, working_on

    named = named_records(user, item, withdraw)
    kind, sources = requests_of(erase, unshare, withdraw, nodes, edges, labels, named)
    if len(sources) > 1:
        raise ConfigError(
            f"{len(sources)} requests were given; an audit takes one. Several users: --erase FILE."
        )
    check_finished(run)
    from rescind.core.files import write_atomically
    from rescind.experiments.counterfactual import open_run
    from rescind.experiments.read_request import read_request
    from rescind.forgetting.asked_before import AskedBefore
    from rescind.forgetting.examine import By, committed, examine, forgotten
    from rescind.storage.provenance import version_of, versions

    nothing = method == "nothing" and not change
    subject: By = "nothing" if nothing else unlearner(method, change or ())
    with interruptible("Finished models are kept."), working_on(run):
        before = open_run(run, repeatable=False)
        event = read_request(before, kind, sources[0], AskedBefore.read(run))
        if kind in ("erase", "unshare", "withdraw") and few_people(event):
            typer.echo("Few users cannot get a PASS. Audit many: --erase draw:0.3.", err=True)
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
        _print(report, kind == "unshare")
        typer.echo(f"\nWritten: {run}/audit.json")
    if report.verdict in FAILED:
        raise typer.Exit(1)


def _print(report: Report, unshared: bool) -> None:
    """Print the checks and the verdict. unshared: devices keep the records, and train on them"""
    from rescind.audits.battery import told_by_role
    from rescind.audits.finding import VERDICTS, legend, question
    from rescind.forgetting.loan_words import of_the_loan
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
    said = "\n".join(["", *words, f"Controls: {others}.", judged])
    typer.echo(of_the_loan(said) if unshared else said)
