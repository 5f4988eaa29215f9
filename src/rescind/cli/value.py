"""`rescind value`: measure what sharing data gains, by group."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.progress import Steps
from rescind.cli.stopping import interruptible
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.experiments.value import Interval, Value

LENDS = {"all": "lends everything", "part": "lends a part", "nothing": "lends nothing"}


def command(
    run: Annotated[Path, Argument(help="The folder of a finished run, with run.json.")],
    users: Annotated[int, Option(min=1, help="Users drawn from each group.")] = 20,
    processes: Annotated[int, Option(min=1, help="Models trained in parallel.")] = min(
        2, os.cpu_count() or 1
    ),
    k: Annotated[int, Option("-k", "--k", min=1, help="Length of the recommendation lists.")] = 20,
    as_json: Annotated[bool, Option("--json", help="Print value.json.")] = False,
) -> None:
    """Compare users who lend all, a part or nothing, and measure what lending gains them.

    For each drawn user, one model is retrained in which only this user decides differently.
    Finished models are kept in value.jsonl: after an interrupt, the same command resumes.

    Example: rescind value runs/demo
    """
    from rescind.storage.run_folder import check_finished

    check_finished(run)
    from rescind.core.files import write_atomically
    from rescind.experiments.value import facts_of, value_of_sharing

    with interruptible(), Steps("value", "models") as bar:
        found = value_of_sharing(run, users, processes, k, bar)
    facts = facts_of(found)
    write_atomically(run / "value.json", json.dumps(facts, indent=2).encode())
    draw(found, run)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    _print(found, users)
    typer.echo(f"\nWritten: {run}/value.json, value.png and value.svg")


def _print(found: Value, users: int) -> None:
    typer.echo("Quality of the recommendations (mean over users, 95 % interval)")
    _rows({LENDS[g]: v for g, v in found.quality.items()}, signed=False)
    each = f"one model of {count_of(found.rounds, 'round')} for each"
    typer.echo(
        f"\nGain of one user from lending (sharing minus keeping; up to {users} drawn users of "
        f"each group,\n{each}; for partial sharers, what they lend now)"
    )
    rows: dict[str, Any] = {LENDS[g]: v for g, v in found.gain.items()}
    _rows({**rows, "others (noise)": found.others}, signed=True)
    moved = " and ".join(f"{v:.4f} in {m}" for m, v in found.noise.items())
    typer.echo(
        f'"others": drawn users whose decision did not change. Their values move by a standard\n'
        f"deviation of {moved}: a gain of that size in one user means nothing."
    )
    if all(p.gain(m) == 0 for p in found.people for m in found.metrics):
        typer.echo("No gain is different from 0: this method does not use lent data.")
    if not found.reproduced:
        typer.echo("Note: retrained, the run gave another model; gains are relative to that one.")


def _rows(rows: dict[str, Any], signed: bool) -> None:
    metrics = list(next(iter(rows.values())))
    typer.echo(f"  {'':18}{'users':>7}  " + "".join(f"{m:>28}" for m in metrics))
    for name, found in rows.items():
        people = next(iter(found.values())).people
        cells = "".join(f"{_shown(found[m], signed):>28}" for m in metrics)
        typer.echo(f"  {name:18}{people:7d}  {cells}")


def _shown(found: Interval, signed: bool) -> str:
    if not found.people:
        return "no users"
    form = "+.4f" if signed else ".4f"
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def draw(found: Value, folder: Path) -> None:
    """Plot quality by group and the gain from lending, as value.png and value.svg."""
    from rescind.reporting import charts

    metric = found.metrics[-1]
    colours = (charts.BLUE, charts.ORANGE, charts.GREY, charts.GREEN)
    made, (left, right) = charts.figure(2)
    short = {"all": "all", "part": "a part", "nothing": "nothing"}
    quality = _ends({short[g]: v[metric] for g, v in found.quality.items()})
    charts.intervals(left, quality, metric, colours)
    left.set_xlabel("what users lend", fontsize=11)
    gains = {short[g]: v[metric] for g, v in found.gain.items()}
    gain = _ends({**gains, "others": found.others[metric]})
    charts.intervals(right, gain, f"gain in {metric}", colours, zero=True)
    right.set_xlabel("what the user lends in the run", fontsize=11)
    for ending in ("png", "svg"):
        charts.write(made, folder / f"value.{ending}")


def _ends(found: dict[str, Interval]) -> dict[str, tuple[float, float, float]]:
    return {name: (v.mean, v.low, v.high) for name, v in found.items() if v.people}
