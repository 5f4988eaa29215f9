"""`rescind reproduce`: the tables and figures of the papers, run again and written anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rescind_papers.index import Exhibit
    from rescind_papers.reproduction import Plan, Progress


def command(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A paper, or paper/table as in --list; everything unless given.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="All rows in small: minutes, and every cell says so.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; runs/reproduce or runs/reproduce-quick unless given."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs side by side, one thread each.")] = 2,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only so many of the seeds.")] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Run nothing: write what committed results say.")
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="Only say what there is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Run the recipes behind a table or figure, and write it: Markdown, CSV, LaTeX, SVG, PNG.

    Given again, it goes on where it stopped. Committed results are not touched. Without --quick
    everything takes many hours; --list says how many runs each table needs.
    """
    from rescind.errors import ConfigError, DataError
    from rescind.experiments.recipe_file import folder_with

    check_installed()
    from rescind_papers.index import MAP, Shelf, chosen

    if committed and (quick or seeds is not None):
        raise ConfigError("--committed runs nothing, so --quick and --seeds mean nothing with it.")
    if quick and seeds is not None:
        raise ConfigError("--quick takes one seed. Leave --seeds out, or --quick.")
    shelf = Shelf(folder_with(MAP))
    wanted = chosen(shelf.folder, what)
    from rescind_papers import reproduction  # loads torch; a wrong name has answered before

    home = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    if list_only:
        _list(wanted, shelf, home)
        return
    if committed:
        plan = reproduction.Plan(wanted, shelf, home, ())
        at = None
    else:
        plan = reproduction.planned(wanted, shelf, home, quick, seeds)
        at = _run(plan, workers)
    files = reproduction.written(plan)
    failed = {} if at is None else dict(at.failed)
    for why in dict.fromkeys(failed.values()):
        cells = [name for name, reason in failed.items() if reason == why]
        typer.echo(f"not run: {', '.join(cells)}\n  because {why}", err=True)
    if at is not None and not at.done:
        raise DataError("nothing could be run; the reasons are above.")
    shown = "table or figure" if len(wanted) == 1 else "tables and figures"
    names = f": {', '.join(path.name for path in files)}" if len(files) < 9 else ""
    typer.echo(f"{len(files)} files of {len(wanted)} {shown} in {home}{names}")
    if as_json:
        runs = {"runs": len(plan.jobs), "done": 0 if at is None else at.done}
        told = {**runs, "failed": failed, "files": [str(path) for path in files]}
        typer.echo(json.dumps(told))


def check_installed() -> None:
    """Refuse where rescind_papers, which reproduces papers and measures speed, is missing."""
    from importlib.util import find_spec

    from rescind.errors import ConfigError

    if find_spec("rescind_papers") is None:
        raise ConfigError(
            "this command needs the package rescind_papers, which is missing. It comes with "
            "rescind: install its wheel, or a checkout, again."
        )


def _list(wanted: tuple[Exhibit, ...], shelf, home: Path) -> None:
    """Every table and figure with the number of its runs and the recipes behind it."""
    from rescind_papers.index import behind
    from rescind_papers.reproduction import planned

    for one in wanted:
        many = len(planned([one], shelf, home, quick=False).jobs)
        typer.echo(f"{one.place:18} {many:4d} runs  {one.title}")
        typer.echo(f"{'':30}recipes: {', '.join(behind(one))}")


def _run(plan: Plan, workers: int) -> Progress:
    """Make the runs behind a bar, or with a line now and then where nobody looks."""
    from rescind_papers import reproduction

    seen = [-1]

    def told(at: Progress) -> None:
        left = "" if at.left is None else f", about {_minutes(at.left)} left"
        text = f"{at.done} of {at.all} runs{left}"
        if sys.stderr.isatty():
            typer.echo(f"\r{text:60}", err=True, nl=at.done == at.all)
        elif at.done > seen[0]:
            typer.echo(text, err=True)
        seen[0] = at.done

    try:
        return reproduction.run(plan, workers, told)
    except KeyboardInterrupt:
        typer.echo("\nstopped. Give the same command again to go on.", err=True)
        raise typer.Exit(130) from None


def _minutes(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
