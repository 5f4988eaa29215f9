"""`rescind audit`: audit an unlearner on a run, without changing the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.forget import SET, unlearner

if TYPE_CHECKING:
    from rescind.audits import Report
    from rescind.core.federation import Federation
    from rescind.experiments.forget_run import Kind
    from rescind.forgetting.examine import By

FAILED = ("FAIL", "VOID")
"""Verdicts that end with exit code 1. INCONCLUSIVE means too few records to find a fault; scripts
that need a PASS read audit.json."""


def command(
    run: Annotated[Path, Argument(help="The folder of a finished run, e.g. runs/demo.")],
    erase: Annotated[
        str | None,
        Option(metavar="FILE", help="Records to erase, as in rescind forget, or draw:0.3."),
    ] = None,
    unshare: Annotated[
        str | None,
        Option(metavar="FILE", help="Lent records to take back, in the format of --erase."),
    ] = None,
    withdraw: Annotated[
        str | None, Option(metavar="USER", help="A user who leaves with all their data.")
    ] = None,
    method: Annotated[
        str | None, Option(help="The unlearner to audit, or 'nothing'. Default: exact retraining.")
    ] = None,
    change: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    full: Annotated[bool, Option("--full", help="Also run the slow checks.")] = False,
    ulira: Annotated[bool, Option("--ulira", help="Also run U-LiRA, with shadow models.")] = False,
    pairs: Annotated[int, Option(min=2, help="Pairs of shadow models for --ulira.")] = 16,
    seed: Annotated[int, Option(help="Seed of the audit.")] = 0,
    workers: Annotated[int, Option(min=1, help="Processes that retrain models.")] = 2,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
) -> None:
    """Forget in memory and audit the result. The run itself is not changed.

    Writes audit.json. Retrained and shadow models are kept in RUN/audits and used again by the next
    audit of the same request, or by the same command after an interrupt.

    Exit code 0: PASS or INCONCLUSIVE, 1: FAIL or VOID.
    """
    from rescind.errors import ConfigError
    from rescind.storage.run_folder import check_finished

    asked: dict[Kind, str | None] = {"erase": erase, "unshare": unshare, "withdraw": withdraw}
    given = [(kind, source) for kind, source in asked.items() if source is not None]
    if len(given) != 1:
        raise ConfigError(
            "give exactly one of --erase FILE, --unshare FILE and --withdraw USER; "
            f"{len(given)} were given. `--erase draw:0.3` erases what 30 % of the lenders lent."
        )
    check_finished(run)
    from rescind.core.files import write_atomically
    from rescind.experiments.forget_run import read_request
    from rescind.forgetting.blocklist import Blocklist
    from rescind.forgetting.examine import examine, forgotten

    subject = _unlearner(method, change or ())
    before = _load(run)
    event = read_request(before, *given[0], Blocklist.read(run))
    try:
        after = forgotten(subject, before, event)
        report = examine(
            before, after, event, level="full" if full else "standard", ulira=ulira,
            unlearner=subject, seed=seed, workers=workers, pairs=pairs,
            folder=run / "audits", watch=_progress,
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo("\nstopped. To resume, give the same command.", err=True)
        raise typer.Exit(130) from None
    facts = facts_of(report, method, type(event).__name__, seed)
    write_atomically(run / "audit.json", (json.dumps(facts, indent=2) + "\n").encode())
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(report)
        typer.echo(f"\nWritten: {run}/audit.json")
    if report.verdict in FAILED:
        raise typer.Exit(1)


def _load(run: Path) -> Federation:
    from rescind.core.executor import InProcess
    from rescind.core.settings import from_table
    from rescind.experiments.recipe import GuardSettings
    from rescind.storage.federations import load_federation
    from rescind.storage.run_folder import read_facts

    settings = (read_facts(run) or {})["configuration"]
    guards = from_table(GuardSettings, settings.get("guards", {}), {})
    device = settings.get("run", {}).get("device", "cpu")
    return load_federation(run / "model", InProcess(device=device, guards=guards.guards))


def _unlearner(name: str | None, changes: Sequence[str]) -> By:
    return "nothing" if name == "nothing" and not changes else unlearner(name, changes)


def facts_of(report: Report, method: str | None, kind: str, seed: int) -> dict[str, Any]:
    """Return the content of audit.json."""
    from rescind.storage.provenance import versions

    return {
        "verdict": report.verdict,
        "why": report.why,
        "subjects": dict(report.subjects),
        "request": kind,
        "unlearner": method or "the run's own method",
        "seed": seed,
        "findings": [f.facts() for f in report.findings],
        "versions": versions(),
    }


def _print(report: Report) -> None:
    from rescind.audits.finding import VERDICTS, legend, question

    head = f"{'check':<18} {'verdict':<13} {'value':>8} {'retrains':>9} {'margin':>7} {'no-op':>7}"
    typer.echo(f"{head}  asks")
    for f in report.findings:
        if f.value is None:
            continue
        reference, margin, no_op = (
            "" if n is None else f"{n:.4f}"
            for n in (f.reference, f.margin, f.controls.get("no-op"))
        )
        typer.echo(
            f"{f.check:<18} {f.verdict:<13} {f.value:>8.4f} {reference:>9} {margin:>7} {no_op:>7}  "
            f"{question(f.check)}"
        )
    others = ", ".join(f"{r}: {v}" for r, v in report.subjects.items() if r != "subject")
    typer.echo("")
    for line in legend(f.verdict for f in report.findings if f.verdict != report.verdict):
        typer.echo(line)
    typer.echo(f"Controls: {others}.")
    why = f" {report.why[0].upper()}{report.why[1:]}." if report.why else ""
    typer.echo(f"{report.verdict}: {VERDICTS[report.verdict]}{why}")


def _progress(finished: int, total: int) -> None:
    print(f"  {finished} of {total} models to compare with", file=sys.stderr, flush=True)
