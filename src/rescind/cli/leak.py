"""`rescind leak`: measure what single updates and sums reveal to a curious server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.progress import Steps
from rescind.cli.stopping import interruptible

if TYPE_CHECKING:
    from rescind.audits.defences import Defence
    from rescind.core.federation import Federation
    from rescind.data import Dataset
    from rescind.experiments.update_leaks import Case


def command(
    run: Annotated[
        Path | None, Argument(help="A finished run: its method, data and settings are attacked.")
    ] = None,
    method: Annotated[
        str | None, Option(help="Default: all that send updates, and Gram. Or SeqGram, GraphGram.")
    ] = None,
    model: Annotated[str | None, Option(help="The backbone. Default: that of the method.")] = None,
    data: Annotated[
        str, Option(help="A dataset of interactions, or a graph for GraphGram.")
    ] = "ml-100k",
    users: Annotated[int, Option(min=2, help="Number of attacked users.")] = 100,
    rounds: Annotated[str, Option(help="Rounds to average over, comma-separated.")] = "1,10,100",
    epsilon: Annotated[
        str, Option(help="Epsilons of Gaussian noise over all rounds, separated by commas.")
    ] = "8,1",
    clip: Annotated[float, Option(help="Norm to which updates are clipped before noise.")] = 1.0,
    delta: Annotated[float, Option(help="Delta of the epsilons.")] = 1e-5,
    seed: Annotated[int, Option(help="Seed of everything except noise and pseudo-items.")] = 0,
    out: Annotated[Path, Option(help="Output folder.")] = Path("runs/leak"),
    as_json: Annotated[bool, Option("--json", help="Print leak.json and peeling.json.")] = False,
) -> None:
    """Attack what devices send, and what an additive learner publishes, with and without defences.

    Single updates: users take part in every round of a small run; the attacker names as many items
    as a user has. Sums and releases of Gram: complete histories are read out of the sum, of sums
    over a few users, of the published weights in every form, and of the difference of two releases,
    without and with each of its privacy settings.

    Writes leak.json, leak.png, leak.svg and peeling.json; finished methods are kept in leak.jsonl,
    so the same command resumes after an interrupt. Noise, shares and pseudo-items come from the
    operating system's entropy, so lines with them differ a little between two runs.

    Examples: rescind leak runs/mine;
    rescind leak --method FedAvg --model MF --rounds 1,10 --users 50
    """
    from rescind.audits.defences import defences
    from rescind.core.files import write_atomically
    from rescind.errors import ConfigError
    from rescind.experiments.prepared_data import prepare
    from rescind.experiments.recipe import DataSettings
    from rescind.experiments.update_leaks import case_of, cases, facts_of
    from rescind.privacy.gaussian import check_delta

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
    wanted = (method or "").lower()
    if wanted == "graphgram" or (given and given.world.task == "nodes"):
        _show(_graph(given, data, seed, out), _print_graph, as_json, out)
        return
    if wanted == "seqgram" or (given and given.method.ordered):
        _show(_ordered(given, data, seed, out), _print_ordered, as_json, out)
        return
    dataset = prepare(DataSettings(name=data))
    if (wanted == "gram" and model is None) or (given is not None and given.method.additive):
        _show(_peeled(given, dataset, data, seed, out), _print_peeled, as_json, out)
        return
    chosen = cases(dataset, method, model) if given is None else (case_of(given.method, dataset),)
    guards = defences(windows[-1], epsilons, clip, delta)
    lines = _all_lines(dataset, chosen, guards, users, windows, delta, seed, out)
    facts = facts_of(dataset, data, users, windows, delta, seed, lines)
    write_atomically(out / "leak.json", _text(facts).encode())
    draw(facts, out)
    if not as_json:
        _print(facts)
        typer.echo(f"\nWritten: {out}/leak.json, leak.png and leak.svg")
    if run is None and method is None and model is None:
        facts["peeling"] = _peeled(None, dataset, data, seed, out)
        if not as_json:
            typer.echo("")
            _print_peeled(facts["peeling"])
    typer.echo(json.dumps(facts) if as_json else "More: docs/privacy.md, on what each guard does")


def _show(
    facts: dict[str, Any], printed: Callable[[Mapping[str, Any]], None], as_json: bool, out: Path
) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    printed(facts)
    typer.echo(f"\nWritten: below {out}\nMore: docs/leak.md")


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
    total = len(chosen) * windows[-1]
    with interruptible(), Steps("attacking", "rounds") as steps:
        for number, case in enumerate(chosen):
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
                show = partial(_reached, steps, number * windows[-1], total)
                mine = measure(dataset, case, users, windows, wanted, delta, seed, show)
                remember(out / "leak.jsonl", about, mine)
            lines += mine
    return lines


def _reached(steps: Steps, before: int, total: int, case: str, done: int, _: int) -> None:
    steps(before + done, total, case)


def _of_run(run: Path) -> tuple[Federation, str, int]:
    from rescind.storage.run_folder import check_finished, read_facts

    check_finished(run)
    from rescind.storage.federations import load_federation

    facts = read_facts(run) or {}
    return load_federation(run / "model"), str(facts["data"]["name"]), int(facts["seed"])


def _kept(path: Path, question: str, data: str, digest: str, seed: int, lines: Any) -> Any:
    """Write what an attack found, and return it."""
    from rescind.core.files import write_atomically
    from rescind.storage.provenance import versions

    facts: dict[str, Any] = {
        "question": question,
        "data": data,
        "digest": digest,
        "seed": seed,
        "lines": lines,
        "versions": versions(),
    }
    write_atomically(path, _text(facts).encode())
    return facts


def _peeled(
    run: Federation | None, dataset: Dataset, name: str, seed: int, out: Path
) -> dict[str, Any]:
    """Read histories out of the sums of a run, or of new learners."""
    from rescind.experiments.peeling import peeled_lines, peeled_run

    def progress(setting: str, done: int, total: int) -> None:
        typer.echo(f"  {done} of {total}: Gram, {setting}", err=True)

    lines = peeled_lines(dataset, seed, progress) if run is None else peeled_run(run)
    question = "how many complete histories peeling reads out of the additive learner"
    return _kept(out / "peeling.json", question, name, dataset.digest, seed, lines)


def _ordered(run: Federation | None, name: str, seed: int, out: Path) -> dict[str, Any]:
    """Read sequences out of the sums of SeqGram."""
    from rescind.errors import ConfigError
    from rescind.experiments.peeling import ordered_leaks
    from rescind.experiments.prepared_data import prepare
    from rescind.experiments.recipe import DataSettings
    from rescind.methods.additive.seq_gram import SeqGram

    method = run.method if run else SeqGram.sequences()
    if not isinstance(method, SeqGram):
        raise ConfigError(f"{type(method).__name__} has no ordered pairs to attack; SeqGram has.")
    dataset = prepare(DataSettings(name=name, split="last"))
    holdings = run.now.vault.holdings if run else dataset.on_devices(seed)

    def progress(people: int) -> None:
        typer.echo(f"  the sum of {people:,} users: attacked", err=True)

    lines = ordered_leaks(holdings, method.nearness, progress)
    question = "how many whole sequences peeling reads out of the sums of SeqGram"
    return _kept(out / f"ordered-{name}.json", question, name, dataset.digest, seed, lines)


def _graph(run: Federation | None, name: str, seed: int, out: Path) -> dict[str, Any]:
    """Attack the sums of GraphGram on a graph."""
    from rescind.core.federation import Federation
    from rescind.experiments.graph_leaks import graph_leaks
    from rescind.experiments.prepared_data import prepare_graph
    from rescind.experiments.recipe import DataSettings
    from rescind.methods.additive.graph_gram import GraphGram

    graph = prepare_graph(DataSettings(name=name))
    fed = run or Federation.start(graph, GraphGram(), seed).run(1)
    question = "what the sums of GraphGram say of single nodes, their words, edges and labels"
    path = out / f"graph-{name}.json"
    return _kept(path, question, name, graph.digest, seed, graph_leaks(fed))


_NO_GUARANTEE = "0 is the result of this attack, not a guarantee. A guarantee needs noise."


def _print_ordered(facts: Mapping[str, Any]) -> None:
    typer.echo(f"Whole sequences read out of the sums of SeqGram ({facts['data']}):")
    names = list(facts["lines"][0])
    typer.echo("  " + "".join(f"{name:>{len(name) + 4}}" for name in names))
    for line in facts["lines"]:
        typer.echo("  " + "".join(f"{line[name]:>{len(name) + 4}}" for name in names))
    typer.echo(_NO_GUARANTEE)


def _print_graph(facts: Mapping[str, Any]) -> None:
    typer.echo(f"What the sums of GraphGram say of single nodes ({facts['data']}):")
    for line in facts["lines"]:
        typer.echo(f"  {line['view']}")
        for name, value in line.items():
            if name != "view":
                typer.echo(f"    {name:28}{'-' if value is None else f'{value:.3f}':>10}")


def _print_peeled(facts: Mapping[str, Any]) -> None:
    from rescind.experiments.peeling import grid

    typer.echo(f"Complete histories read out of the additive learner, Gram ({facts['data']}):")
    names, rows = grid(facts["lines"])
    for number, setting in enumerate(names, 1):
        typer.echo(f"  [{number}] {setting}")
    heads = "".join(f"{f'[{n}]':>7}" for n in range(1, len(names) + 1))
    typer.echo(f"  {'':40}{'there':>7}{heads}")
    for view, people, cells in rows:
        typer.echo(f"  {view:40}{people:>7}" + "".join(f"{cell:>7}" for cell in cells))
    typer.echo(_NO_GUARANTEE)


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


def _print(facts: Mapping[str, Any]) -> None:
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
            typer.echo(f"  {name if attack == 'split' else f'    {attack}':44}{shown}")


def _cell(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['found']:.3f} [{line['low']:.3f}, {line['high']:.3f}]"


SHOWN = ("split", "split, then popularity", "split, then least moved", "IMIA")


def rows_of(
    lines: Sequence[Mapping[str, Any]], windows: Sequence[int]
) -> list[tuple[str, str, list[Mapping[str, Any] | None]]]:
    """Return (defence, attack, a line or None per number of rounds), in measured order."""
    out = []
    for defence in dict.fromkeys(line["defence"] for line in lines):
        for attack in SHOWN:
            found = [x for x in lines if (x["defence"], x["attack"]) == (defence, attack)]
            mine = {line["rounds"]: line for line in found}
            if mine:
                out.append((defence, attack, [mine.get(n) for n in windows]))
    return out


def draw(facts: Mapping[str, Any], folder: Path) -> None:
    """Plot the strongest attack on each defence over rounds, a panel per case."""
    from rescind.reporting import charts

    names = list(dict.fromkeys(line["case"] for line in facts["lines"]))
    figure, panels = _panels(len(names))
    for ax, case in zip(panels, names, strict=True):
        mine = [line for line in facts["lines"] if line["case"] == case]
        strongest: dict[tuple[str, int], Mapping[str, Any]] = {}
        for line in sorted(mine, key=lambda x: float(x["found"])):
            strongest[line["defence"], line["rounds"]] = line
        lines = {
            defence: [
                (n, best["found"], (best["high"] - best["low"]) / 2)
                for n in facts["rounds"]
                if (best := strongest.get((defence, n)))
            ]
            for defence in dict.fromkeys(line["defence"] for line in mine)
        }
        charts.sweep(ax, lines, "items found", "rounds averaged")
        for repeated in ax.containers[len(charts.MARKS) :]:  # colours repeat from here
            repeated.lines[0].set_linestyle("--")
            repeated.lines[0].set_markerfacecolor("white")
        ax.axhline(mine[0]["chance"], color=charts.GREY, linestyle="--", linewidth=1.2)
        ax.set_xscale("log")
        ax.set_xticks(facts["rounds"], [str(n) for n in facts["rounds"]])
        ax.minorticks_off()
        ax.set_ylim(0, 1.05)
        ax.set_title(case, fontsize=10)
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    for ending in ("png", "svg"):
        charts.write(figure, folder / f"leak.{ending}")


def _panels(count: int) -> tuple[Any, list[Any]]:
    """Create panels, at most five in a row."""
    from rescind.reporting import charts

    across = min(count, 5)
    down = -(-count // across)
    figure, first = charts.figure(1, width=max(8.0, 3.2 * across), height=2.8 * down + 1.6)
    for ax in first:
        ax.remove()
    panels = [figure.add_subplot(down, across, n + 1) for n in range(count)]
    for ax in panels:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9)
    return figure, panels
