"""`rescind leak`: measure what single updates and sums reveal to a curious server."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.experiments.leak_report import _cell, _titled, draw, rows_of

if TYPE_CHECKING:
    from rescind.audits.defences import Defence
    from rescind.core.federation import Federation
    from rescind.data import Dataset
    from rescind.experiments.update_leaks import Case


def command(
    run: Annotated[
        Path | None,
        Argument(
            metavar="RUN",
            help="The folder of a finished run: its method, data and settings are attacked.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        Option(
            help="One method. Default: all that send updates, and Gram, whose sums and releases "
            "are peeled into complete histories."
        ),
    ] = None,
    model: Annotated[str | None, Option(help="The backbone. Default: that of the method.")] = None,
    data: Annotated[str, Option(help="A dataset of interactions (rescind data list).")] = "ml-100k",
    users: Annotated[int, Option(min=2, help="Number of attacked users.")] = 100,
    rounds: Annotated[
        str, Option(help="Rounds to average over, separated by commas.")
    ] = "1,10,100",
    epsilon: Annotated[
        str, Option(help="Epsilons of Gaussian noise over all rounds, separated by commas.")
    ] = "8,1",
    clip: Annotated[
        float, Option(help="Norm to which updates are clipped before the noise.")
    ] = 1.0,
    delta: Annotated[float, Option(help="Delta of the epsilons.")] = 1e-5,
    seed: Annotated[int, Option(help="Seed of everything except noise and pseudo-items.")] = 0,
    out: Annotated[Path, Option(help="Output folder.")] = Path("runs/leak"),
    as_json: Annotated[
        bool, Option("--json", help="Print leak.json and the peeled histories.")
    ] = False,
) -> None:
    """Attack what devices send, and what an additive learner publishes, with and without defences.

    Single updates: users take part in every round of a small run; the attacker names as many items
    as a user has. Sums and releases of Gram: complete histories are read out of the sum, of sums
    over a few users, of the published weights in every form, and of the difference of two releases,
    without and with each of its privacy settings.

    Writes leak.json, leak.png, leak.svg and peeling.json; finished methods are kept in leak.jsonl,
    so the same command resumes after an interrupt. Noise, shares and pseudo-items come from the
    operating system's entropy, so lines with them differ a little between two runs.
    """
    from rescind.audits.defences import defences
    from rescind.core.files import write_atomically
    from rescind.errors import ConfigError
    from rescind.experiments.learning_run import prepare
    from rescind.experiments.peeling import peeled_lines, peeled_run
    from rescind.experiments.recipe import DataSettings
    from rescind.experiments.update_leaks import case_of, cases, facts_of
    from rescind.methods.additive.gram import Gram
    from rescind.privacy.accountant import check_delta

    check_delta(delta)
    windows = tuple(sorted({int(n) for n in _numbers(rounds, "--rounds", whole=True)}))
    epsilons = _numbers(epsilon, "--epsilon")
    if not 0 < clip < float("inf"):
        raise ConfigError(f"--clip must be a finite number above 0, got {clip}.")
    given = None
    if run is not None:
        if method is not None or model is not None:
            raise ConfigError("a run has a method and a model. Leave out --method and --model.")
        given, data, seed = _of_run(run)
    dataset = prepare(DataSettings(name=data))
    if given is not None and isinstance(given.method, Gram):
        _say_peeled(_peeled(peeled_run(given), dataset, data, seed, out), out, as_json)
        return
    if method is not None and method.lower() == "gram" and model is None:
        peeled = _peeled(peeled_lines(dataset, seed, _progress), dataset, data, seed, out)
        _say_peeled(peeled, out, as_json)
        return
    chosen = cases(dataset, method, model) if given is None else (case_of(given.method, dataset),)
    wanted = defences(windows[-1], epsilons, clip, delta)
    lines = _all_lines(dataset, chosen, wanted, users, windows, delta, seed, out)
    facts = facts_of(dataset, data, users, windows, delta, seed, lines)
    write_atomically(out / "leak.json", _text(facts).encode())
    draw(facts, out)
    everything = run is None and method is None and model is None
    if not as_json:
        _say(facts)
        typer.echo(f"\nWritten: {out}/leak.json, leak.png and leak.svg")
    if everything:
        peeled = _peeled(peeled_lines(dataset, seed, _progress), dataset, data, seed, out)
        facts["peeling"] = peeled
    if as_json:
        typer.echo(json.dumps(facts))
        return
    if everything:
        typer.echo("")
        _say_peeled(peeled, out)
    typer.echo("More: docs/privacy.md, on what each guard guarantees")


def _all_lines(
    dataset: Dataset,
    chosen: Sequence[Case],
    wanted: Sequence[Defence],
    users: int,
    windows: tuple[int, ...],
    delta: float,
    seed: int,
    out: Path,
) -> list[dict[str, Any]]:
    """Return the lines of all cases. Each case is saved when it is finished."""
    from rescind.core.settings import to_table
    from rescind.experiments.update_leaks import measure, measured, remember

    lines: list[dict[str, Any]] = []
    try:
        with _Bar(len(chosen)) as bar:
            for case in chosen:
                about = {
                    "data": dataset.digest,
                    "method": to_table(case.method),
                    "users": users,
                    "rounds": list(windows),
                    "defences": [d.name for d in wanted],
                    "delta": delta,
                    "seed": seed,
                }
                mine = measured(out / "leak.jsonl", about)
                if mine is None:
                    mine = measure(dataset, case, users, windows, wanted, delta, seed, bar)
                    remember(out / "leak.jsonl", about, mine)
                else:
                    bar(case.name, windows[-1], windows[-1])
                lines += mine
    except KeyboardInterrupt:
        typer.echo("\nstopped. To resume, give the same command.", err=True)
        raise typer.Exit(130) from None
    return lines


def _of_run(run: Path) -> tuple[Federation, str, int]:
    """Load a finished run. Return (federation, name of its data, seed)."""
    from rescind.storage.run_folder import check_finished

    check_finished(run)
    from rescind.storage.federations import load_federation
    from rescind.storage.run_folder import read_facts

    facts = read_facts(run) or {}
    return load_federation(run / "model"), str(facts["data"]["name"]), int(facts["seed"])


def _progress(name: str, done: int, total: int) -> None:
    print(f"  {done} of {total}: Gram, {name}", file=sys.stderr, flush=True)


def _peeled(
    lines: list[dict[str, Any]], dataset: Dataset, name: str, seed: int, out: Path
) -> dict[str, Any]:
    """Write and return the facts about histories read out of the additive learner's sums."""
    from rescind.core.files import write_atomically
    from rescind.storage.provenance import versions

    facts: dict[str, Any] = {
        "question": "how many complete histories peeling reads out of the additive learner",
        "data": name,
        "digest": dataset.digest,
        "seed": seed,
        "lines": lines,
        "versions": versions(),
    }
    write_atomically(out / "peeling.json", _text(facts).encode())
    return facts


def _say_peeled(facts: Mapping[str, Any], out: Path, as_json: bool = False) -> None:
    """Print the histories read out, as a table or as JSON."""
    from rescind.experiments.peeling import grid

    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"Complete histories read out of the additive learner, Gram ({facts['data']}):")
    names, rows = grid(facts["lines"])
    for number, setting in enumerate(names, 1):
        typer.echo(f"  [{number}] {setting}")
    typer.echo(
        f"  {'':40}{'there':>7}" + "".join(f"{f'[{n}]':>7}" for n in range(1, len(names) + 1))
    )
    for view, people, cells in rows:
        typer.echo(f"  {view:40}{people:>7}" + "".join(f"{cell:>7}" for cell in cells))
    typer.echo(
        "0 is the result of this attack, not a guarantee. A guarantee needs noise with an epsilon."
    )
    typer.echo(f"\nWritten: {out}/peeling.json")
    typer.echo("More: docs/additive.md")


def _text(facts: Mapping[str, Any]) -> str:
    """Return JSON with one measurement per line, which is easy to compare."""
    head = {name: value for name, value in facts.items() if name != "lines"}
    lines = ",\n".join(f"  {json.dumps(line)}" for line in facts["lines"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "lines": [\n{lines}\n ]\n}}\n'


def _numbers(given: str, option: str, whole: bool = False) -> tuple[float, ...]:
    from rescind.errors import ConfigError

    try:
        found = tuple(float(part) for part in given.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < n < float("inf") and (not whole or n == int(n)) for n in found):
        kind = "whole numbers from 1 on" if whole else "numbers above 0"
        raise ConfigError(f"{option} takes {kind}, separated by commas; got '{given}'.")
    return found


def _say(facts: Mapping[str, Any]) -> None:
    windows = facts["rounds"]
    typer.echo(
        f"Fraction of a user's items that the server finds from their single updates "
        f"({facts['data']},\n{facts['people']} users, mean and 95 % interval; the attacker names "
        f"as many items as the user has).\nGuessing the most popular items, without any update: "
        f"{facts['popular_guess']:.3f}."
    )
    for case in dict.fromkeys(line["case"] for line in facts["lines"]):
        mine = [line for line in facts["lines"] if line["case"] == case]
        typer.echo(f"\n{case}    chance {mine[0]['chance']:.3f}")
        heads = "".join(f"{f'{n} rounds' if n > 1 else '1 round':>22}" for n in windows)
        typer.echo(f"  {'':44}{heads}")
        for name, attack, cells in rows_of(mine, windows):
            shown = "".join(f"{_cell(cell):>22}" for cell in cells)
            typer.echo(f"  {_titled(name, attack):44}{shown}")


class _Bar:
    """Progress bar over attacked rounds; without a terminal, a line for every case."""

    def __init__(self, cases: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self.cases, self.terminal = cases, sys.stderr.isatty()
        self.seen: list[str] = []
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            Left(),
        )
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not self.terminal)
        self.task = self.bar.add_task("attacking", total=None)

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, case: str, done: int, total: int) -> None:
        if case not in self.seen:
            self.seen.append(case)
            self.bar.update(self.task, description=case)
        before = (len(self.seen) - 1) * total
        self.bar.update(self.task, completed=before + done, total=self.cases * total)
        if not self.terminal and done == total:
            print(f"  {len(self.seen)} of {self.cases}: {case}", file=sys.stderr, flush=True)
