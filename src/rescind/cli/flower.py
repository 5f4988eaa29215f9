"""`rescind flower`: run recipes over silos on several machines."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli import witness as witnesses
from rescind.cli.flower_given import (
    LOOPBACK,
    check_installed,
    check_own_folder,
    deployment,
    place_of,
)
from rescind.cli.flower_told import answers_told, exit_code, silos_told
from rescind.cli.options import Recipe
from rescind.cli.progress import Followed, working
from rescind.cli.request import Case, File, Item, Kind, Received, User, said
from rescind.cli.stopping import interruptible
from rescind.core.words import count_of

app = typer.Typer(
    help="Run recipes over silos on several machines, through Flower (docs/deploy.md).",
    no_args_is_help=True,
)

Cell = Annotated[str | None, Option(help="The cell to run, if the recipe has several.")]
Change = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting.")]
Insecure = Annotated[bool, Option("--insecure", help="No TLS and no keys, only for tests.")]
ServerKit = Annotated[Path | None, Option(help="The server's folder of a kit.")]
Silos = Annotated[int, Option(min=1, help="Number of silos.")]
Out = Annotated[Path, Option(help="Output folder.")]
Server = Annotated[str, Option(metavar="HOST:PORT", help="Address of the server.")]
OWN = ("127.0.0.1", "localhost")
"""Names of the server on its own machine, part of every certificate."""


@app.command()
def kit(
    silos: Silos,
    host: Annotated[
        list[str] | None, Option(help="A name or address of the server for silos; repeatable.")
    ] = None,
    out: Out = Path("kit"),
) -> None:
    """Make certificates and keys: a folder for the server and one for every silo.

    Example: rescind flower kit --silos 2 --host server.example
    """
    check_installed()
    from rescind.flower.certificates import make_kit

    hosts = list(dict.fromkeys([*(host or ()), *OWN]))
    make_kit(out, silos, hosts)
    typer.echo(f"{out}/server is for the server ({', '.join(hosts)}).")
    typer.echo(f"{out}/operator is for whoever submits runs, on the server's machine.")
    typer.echo(f"{out}/silo-0 to silo-{silos - 1} go to the silos, each to one machine only.")
    typer.echo(f"{out}/ca.key can sign new certificates: keep it offline.")
    typer.echo(f"Next: rescind flower up --kit {out}/server")


@app.command()
def up(
    kit: ServerKit = None,
    listen: Annotated[str, Option(metavar="HOST:PORT", help="Own address.")] = LOOPBACK,
    state: Annotated[Path, Option(help="Folder for Flower's state.")] = Path("flower"),
    insecure: Insecure = False,
) -> None:
    """Start the server (a SuperLink) and admit the silos of a kit. Ctrl-C ends it.

    Example: rescind flower up --kit kit/server --listen 0.0.0.0:7800
    """
    deploy, link = deployment(listen, kit, insecure, "server")
    from rescind.flower.server_folder import opened

    deploy.check_free(link)
    names = deploy.guests(kit)
    with opened(state) as database:  # a second server would write the same files
        environment = deploy.environment(state)
        secret = deploy.new_secret(state)
        command = deploy.superlink(link, kit, database, secret)
        with (
            interruptible(
                f"Its state is kept in {state}.",
                "Start again: the same command; then resume a run that was going on: rescind "
                "flower run, with --resume.",
            ),
            deploy.started(command, environment) as process,
        ):
            deploy.listening(link.near, process)
            with deploy.started(deploy.superexec(link.near, secret), environment):
                if names:
                    typer.echo(f"known silos: {', '.join(names)}; no other node is admitted.")
                    typer.echo("runs: from this machine only, signed with the operator's key.")
                typer.echo(f"listening on {link.address}. Next: rescind flower join, on every silo")
                _check(process.wait())


@app.command()
def join(
    recipe: Recipe,
    silo: Annotated[str, Option(metavar="I/N", help="Index and number of silos: 0/2.")],
    server: Server = LOOPBACK,
    kit: Annotated[Path | None, Option(help="This silo's folder of a kit.")] = None,
    store: Annotated[Path | None, Option(help="Folder of its state. Default: silo-I.")] = None,
    cell: Cell = None,
    change: Change = None,
    own: Annotated[
        Path | None,
        Option(
            metavar="ITEMS",
            help="The data has this silo's users only, and the file ITEMS the items of all "
            "silos, one id a line.",
        ),
    ] = None,
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    port: Annotated[
        int | None, Option(help="A free port for its processes. Default: 9094 + I.")
    ] = None,
    single_updates: Annotated[
        bool,
        Option(
            help="Allow methods that send updates of single users to the server. Gram needs it to "
            "forget."
        ),
    ] = False,
    questions: Annotated[bool, Option(help="Answer questions about single records.")] = False,
    secure: Annotated[bool, Option("--secure", help="Send only masked sums.")] = False,
    lines: Annotated[
        bool, Option("--lines", help="Make and sign the lines of its devices for a roster.")
    ] = False,
    witness: Annotated[
        list[str] | None,
        Option(help="Also cosign this log (its key, NAME+ID+KEY, or a file); repeatable."),
    ] = None,
    witness_host: Annotated[str, Option(help="Where the witness listens.")] = "127.0.0.1",
    witness_port: Annotated[int | None, Option(help="Its port. Default: 8017 + I.")] = None,
    insecure: Insecure = False,
) -> None:
    """Join as a silo (a SuperNode), with the data of a recipe. Ctrl-C ends it.

    Example: rescind flower join silos.toml --silo 0/2 --kit kit/silo-0 --server server.example:7800
    """
    number, count = place_of(silo)
    deploy, link = deployment(server, kit, insecure, f"silo-{number}")
    from rescind.core.executor import InProcess
    from rescind.core.files import locked, make_folder
    from rescind.errors import ConfigError
    from rescind.flower.silo.data_source import RecipeData
    from rescind.flower.silo.identity import Identity, check_place
    from rescind.flower.silo.node import Node
    from rescind.flower.silo.own_people import OwnPeople
    from rescind.flower.silo.resident import Resident
    from rescind.flower.silo.secure_sum import Masks
    from rescind.flower.silo.storage import Store

    folder = store or Path(f"silo-{number}")
    if kit is not None:
        check_place(kit, number, count)
        check_own_folder(folder, kit)
    if lines and (secure or kit is None):
        raise ConfigError("--lines needs this silo's --kit, to sign them, and no --secure.")
    people = None if own is None else OwnPeople(own, number, count)
    data = RecipeData(recipe, cell, tuple(change or ()), people)
    data.check_own()
    make_folder(folder)
    near = deploy.Link(port=port or 9094 + number)
    with locked(folder):  # two processes would write the same files
        deploy.check_free(near, "--port")
        data.note_in(Store(folder))  # `rescind flower recommend` reads original ids from it
        executor = InProcess(device=device, guards=data.guards)
        masks = Masks(Identity.of_kit(kit) if kit and (secure or lines) else None)
        node = Node(
            Store(folder), data, number, count, executor, single_updates, questions, secure, masks
        )
        resident = Resident(node.answer_bytes)
        environment = deploy.environment(folder)
        secret = deploy.new_secret(folder)
        command = deploy.supernode(link, resident.path, kit, near.port, secret)
        watching: AbstractContextManager[object] = nullcontext()
        if witness:
            at = witness_port or witnesses.PORT + number
            watching = witnesses.witnessing(
                folder / "witness", f"silo-{number}", witness, witness_host, at
            )
        try:
            with (
                interruptible(
                    f"What this silo holds is kept in {folder}.", "Join again: the same command."
                ),
                watching,
                deploy.started(command, environment) as process,
                deploy.started(deploy.superexec(near, secret), environment),
            ):
                typer.echo(f"silo {number} of {count}: {folder}")
                resident.serve(lambda: process.poll() is None)
                _check(process.wait())
        finally:
            resident.close()


@app.command()
def run(
    recipe: Recipe,
    silos: Silos,
    server: Server = LOOPBACK,
    kit: Annotated[Path | None, Option(help="The operator's folder of a kit.")] = None,
    cell: Cell = None,
    change: Change = None,
    out: Out = Path("runs/flower"),
    deadline: Annotated[float, Option(min=1.0, help="Seconds to answer in a round.")] = 300.0,
    wait: Annotated[float, Option(min=0.0, help="Seconds to wait for all silos.")] = 300.0,
    least: Annotated[
        float, Option(min=0.0, max=1.0, help="Fraction of silos a round needs.")
    ] = 0.5,
    resume: Annotated[bool, Option("--resume", help="Resume the run in --out.")] = False,
    user: User = None,
    item: Item = None,
    kind: Kind = None,
    file: File = None,
    received: Received = None,
    case: Case = "",
    at: Annotated[
        int | None,
        Option(metavar="SILO", help="Users of this silo are meant, if several have the same ids."),
    ] = None,
    unlearner: Annotated[
        str | None, Option(help="An unlearner. Default: that of the method.")
    ] = None,
    secure: Annotated[
        bool, Option("--secure", help="Silos mask their sums; the server sees totals.")
    ] = False,
    limit: Annotated[
        float, Option(min=0.0, help="Largest norm of an update, as a mean over a silo's clients.")
    ] = 1000.0,
    trim: Annotated[
        float,
        Option(min=0.0, max=0.49, help="Trimmed means: fraction of silos left out at each end."),
    ] = 0.0,
    secure_range: Annotated[float, Option(help="Largest entry of a silo's masked sum.")] = 1024.0,
    roster: Annotated[
        Path | None,
        Option(metavar="PUBLIC", help="Afterwards publish the lines of all devices here."),
    ] = None,
    log: Annotated[
        Path | None,
        Option(help="Folder of the log for --roster. Default: log/ beside the server's keys."),
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Run one cell of a recipe over the silos and wait for it, on the server's machine.

    Users who ask are answered after training, one after another, each with a receipt. If the run
    in --out is finished, it is not trained again. A silo that is away is waited for: --resume.
    Exit code 0: all answered; 10: something waits; 20: something is refused or late.

    Examples: rescind flower run silos.toml --silos 2 --kit kit/operator;
    rescind flower run silos.toml --silos 2 --kit kit/operator --user 17 --item 3 --kind erase
    """
    deploy, link = deployment(server, kit, insecure, "operator")
    from rescind.errors import DataError
    from rescind.flower.handed_over import remove_untaken
    from rescind.flower.recipe_cell import one_cell
    from rescind.flower.run_request import LOG, RunRequest, silo_names
    from rescind.flower.server.rosters import check_possible
    from rescind.flower.waiting import newer, wait_for

    operator = deploy.Operator.of_kit(link, kit)
    path, chosen = one_cell(recipe, cell, tuple(change or ()))
    if roster is not None:
        check_possible(chosen, secure)
    out.mkdir(parents=True, exist_ok=True)
    done, failed = out / "run.json", out / "error.txt"
    named = user or file
    requests = tuple(said(user, item, kind, file, received, case)) if named else ()
    asked = RunRequest(
        str(path.resolve()), silos, str(out.resolve()), cell, tuple(change or ()), deadline, wait,
        least, resume, requests, at, unlearner,
        secure_range if secure else None, limit, trim,
        str(roster.resolve()) if roster else None, str(log.resolve()) if log else None,
    )  # fmt: skip
    follow = Followed(out / LOG, chosen.run.rounds)
    answered, ended_badly = newer(done), newer(failed)
    number = operator.submit(asked)
    typer.echo(f"run {number}: {chosen.name} seed {chosen.run.seed} over {silos} silos")
    typer.echo(f"log: {out / LOG}")
    kept = f"Run {number} goes on at the server, which writes {done}."
    with interruptible(kept, f"Follow it in {out / LOG}."), working(follow.told()) as say:
        try:
            wait_for(
                lambda: answered() or ended_badly(), operator, number, lambda: say(follow.told())
            )
        except DataError:  # its end cannot come any more
            remove_untaken(out)
            raise
    if ended_badly():
        raise DataError(failed.read_text(encoding="utf-8").strip())
    facts = json.loads(done.read_text(encoding="utf-8"))
    shown = ", ".join(f"{n} {v:.4f}" for n, v in facts["metrics"]["test"].items())
    for line in answers_told(facts["requests"]):
        typer.echo(line)
    typer.echo(f"{shown} (round {facts['round']}, {facts['silos']['messages']} messages)")
    if without := facts.get("measured_without"):
        typer.echo(
            f"  measured without {silo_names(without)}: not to be compared with numbers of all "
            f"silos", err=True,
        )  # fmt: skip
    if facts["silos"]["refused"]:
        counts = ", ".join(f"{n} x {why}" for why, n in facts["silos"]["refused"].items())
        typer.echo(f"  not accepted: {counts}", err=True)
    for line in silos_told(facts["silos"]):
        typer.echo(f"  {line}", err=True)
    typer.echo(f"Written: {done} and {out}/model/")
    if published := facts.get("roster"):
        _tell_roster(published)
    if "why" in (published or {}):
        raise typer.Exit(2)
    waits = 10 * bool(facts["silos"]["waiting"])
    raise typer.Exit(max(exit_code(facts["requests"]), waits))


@app.command()
def simulate(
    recipe: Recipe,
    silos: Annotated[int, Option(min=1, help="Number of silos to simulate.")],
    cell: Cell = None,
    change: Change = None,
    out: Out = Path("runs/flower"),
) -> None:
    """Run a recipe over silos that Flower simulates on this machine (needs Ray).

    Example: rescind flower simulate basics/floor --cell ml-100k/FedAvg --silos 10
    """
    check_installed()
    from rescind.flower.recipe_cell import one_cell
    from rescind.flower.run_request import RunRequest
    from rescind.flower.simulation import simulate as simulated

    changes = tuple(change or ())
    path, _ = one_cell(recipe, cell, changes)
    simulated(RunRequest(str(path.resolve()), silos, str(out.resolve()), cell, changes))
    typer.echo(f"Written: {out}/run.json and {out}/model/")


@app.command()
def recommend(
    store: Annotated[Path, Argument(help="The folder of a silo, on its machine.")],
    user: Annotated[str, Option(help="The original id of a user of this silo.")],
    k: Annotated[int, Option("-k", "--k", min=1, help="Number of items.")] = 20,
) -> None:
    """Recommend on the silo itself. Data and scores do not leave it.

    Example: rescind flower recommend silo-0 --user 17
    """
    check_installed()
    from rescind.flower.silo.recommend import recommend_to

    for one in recommend_to(store, user, k):
        typer.echo(f"{one.item:>8}  {one.score:.4f}  {one.title}")


def _tell_roster(facts: dict[str, Any]) -> None:
    if "why" in facts:
        typer.echo(f"no roster to rely on: {facts['why']}", err=True)
        typer.echo("Ask again without training: the same command with --resume", err=True)
        return
    typer.echo(
        f"roster {facts['number']}: {count_of(facts['lines'], 'line')}. Written: {facts['folder']}"
    )
    typer.echo(f"Next: rescind roster check {facts['folder']} --log-key KEY --silos silos.pub")


def _check(code: int) -> None:
    """End with the exit code of Flower's process, if that ended by itself."""
    if code:
        raise typer.Exit(code)
