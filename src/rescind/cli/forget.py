"""`rescind forget`: answer a request to erase records, take loans back, or leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.method import Unlearner
    from rescind.core.records import Event
    from rescind.core.run_state import RoundResult
    from rescind.experiments.forget_run import Kind

SET = "Change a setting of the unlearner, e.g. rounds=20, damping=measured. Repeatable."


def command(
    run: Annotated[Path, Argument(help="The folder of a finished run, e.g. runs/demo.")],
    erase: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Erase records everywhere: a CSV with original ids, columns user,item (or user "
            "alone for all their records); draw:0.3 draws 30 % of the lenders.",
        ),
    ] = None,
    unshare: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Take lent records back; devices keep them. Same format as --erase.",
        ),
    ] = None,
    withdraw: Annotated[
        str | None, Option(metavar="USER", help="A user leaves with all their data.")
    ] = None,
    method: Annotated[
        str | None, Option(help="Name of an unlearner. Default: exact retraining.")
    ] = None,
    change: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=SET)] = None,
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
            "the user leaves, and the receipt states it (Gram).",
        ),
    ] = None,
    request: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the exact request to FILE. The requester can check the receipt with "
            "rescind verify --event FILE --event-key receipt.key. Send both, then delete them.",
        ),
    ] = None,
) -> None:
    """Forget records of a run: make a new run without them, and a signed receipt.

    The old folder keeps its metrics and a page that links to the new run. Give the receipt's key to
    the requester: only with it can the receipt be matched with the records.
    """
    from contextlib import ExitStack

    from rescind.errors import ConfigError
    from rescind.storage.run_folder import check_finished

    asked: dict[Kind, str | None] = {"erase": erase, "unshare": unshare, "withdraw": withdraw}
    given = [(kind, source) for kind, source in asked.items() if source is not None]
    if len(given) != 1:
        raise ConfigError(
            "give exactly one of --erase FILE, --unshare FILE and --withdraw USER; "
            f"{len(given)} were given."
        )
    kind, source = given[0]
    if audits not in ("standard", "full", "none"):
        raise ConfigError(f"--audits is standard, full or none; got '{audits}'.")
    check_finished(run)
    from rescind.audits.finding import legend, question
    from rescind.core.files import write_atomically
    from rescind.experiments.forget_run import answer
    from rescind.reporting.progress import RoundBar
    from rescind.storage.events import event_text

    how = unlearner(method, change or ())
    bars: list[RoundBar] = []
    with ExitStack() as stack:

        def on_start(fed: Federation, event: Event, count: int) -> None:
            typer.echo(
                f"{kind}: {count:,} records. The old run is emptied when the new one is complete."
            )
            if request is not None:
                write_atomically(request, event_text(event).encode())
                request.chmod(0o600)
            rounds = fed.now.state.round if how is None else None
            bars.append(stack.enter_context(RoundBar(f"forgetting ({kind})", rounds)))

        def on_round(moment: RoundResult) -> None:
            bars[0](moment)

        done = answer(
            run, kind, source, how, audits, out, workers,  # type: ignore[arg-type]
            watch=(on_round,), told=_retrains, begun=on_start, away=away or (),
        )  # fmt: skip
    receipt = done.evidence.receipt
    asked_for = receipt.asked
    typer.echo(
        f"forgot {asked_for.records:,} records, people concerned: {asked_for.people:,}, by "
        f"{receipt.done.unlearning} in {receipt.done.seconds:.1f} s "
        f"({receipt.done.rounds} rounds, level {receipt.done.level}): {receipt.verdict}"
    )
    for finding in receipt.findings:
        value = "" if finding.value is None else f"{finding.value:.4f}"
        reference = "" if finding.reference is None else f"retrain {finding.reference:.4f}"
        typer.echo(
            f"  {finding.check:<16} {finding.verdict:<13} {value:>8}  {reference:<15} "
            f"{question(finding.check)}"
        )
        if finding.verdict == "UNAUDITED" and finding.note:
            typer.echo(f"    {finding.note}")
    for line in legend([receipt.verdict, *(finding.verdict for finding in receipt.findings)]):
        typer.echo(f"  {line}")
    typer.echo(f"\nWritten: {done.folder}/receipt.json and receipt.html; new run in {done.folder}")
    typer.echo(f"For the requester only: {done.key_file}")
    typer.echo(f"Next: rescind verify {done.folder}/receipt.json")


def unlearner(name: str | None, changes: Sequence[str] = ()) -> Unlearner | None:
    """Return the unlearner of this name; None if no name is given (the run's method forgets)."""
    from rescind.core.method import Method
    from rescind.core.settings import classes, from_table
    from rescind.errors import ConfigError, suggest
    from rescind.experiments.recipe_file import setting
    from rescind.forgetting.forget import settings_of_forgetting
    from rescind.storage.federations import MODELS, UNLEARNERS

    if name is None:
        if changes:
            raise ConfigError(
                f"--set {changes[0]} changes an unlearner, and none was named. Name one: "
                f"--method FedShareUnlearn."
            )
        return None
    known = {
        given: cls
        for given, cls in classes(*UNLEARNERS).items()
        if cls.forget is not Method.forget  # type: ignore[attr-defined]
    }
    cls = {given.lower(): cls for given, cls in known.items()}.get(name.lower())
    if cls is None:
        raise ConfigError(f"there is no unlearner '{name}': {suggest(name, known)}")
    given = dict(setting(text, "rounds=20") for text in changes)
    own = settings_of_forgetting(cls)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{cls.__name__} has no setting of forgetting '{key}' (it learns as the run did); "
                + (suggest(key, own) if own else "it has none at all. Leave --set out.")
            )
    found: Unlearner = from_table(cls, {**given, "name": name}, {"model": MODELS})
    return found


def _retrains(finished: int, total: int) -> None:
    typer.echo(f"  audit: {finished} of {total} retrained models to compare with", err=True)
