"""`rescind reproduce`: rerun and write the tables and figures of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.progress import Steps
from rescind.cli.stopping import interruptible

if TYPE_CHECKING:
    from rescind_papers.index import Exhibit
    from rescind_papers.reproduction import Plan, Progress


def command(
    what: Annotated[
        str | None, Argument(help="A paper, or paper/table as in --list. Default: everything.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Small versions of all rows, in minutes, marked as quick.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="Output folder. Default: runs/reproduce or runs/reproduce-quick.")
    ] = None,
    workers: Annotated[int, Option(min=1, help="Parallel runs, one thread each.")] = 2,
    seeds: Annotated[int | None, Option(min=1, help="Use only the first N seeds.")] = None,
    committed: Annotated[
        bool, Option("--committed", help="Only write the committed results.")
    ] = False,
    list_only: Annotated[bool, Option("--list", help="Only list the tables and figures.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Run the recipes behind a table or figure, and write it: Markdown, CSV, LaTeX, SVG, PNG.

    The same command resumes an interrupted one. Committed results are not changed. Without --quick
    everything takes many hours; --list shows the number of runs of each table.

    Examples: rescind reproduce --list; rescind reproduce fedshare/table3; rescind reproduce --quick
    """
    from rescind.errors import ConfigError, DataError
    from rescind.experiments.recipe_file import folder_with

    check_installed()
    from rescind_papers.index import MAP, Shelf, chosen

    if committed + quick + (seeds is not None) > 1:
        raise ConfigError("give one of --committed, --quick and --seeds.")
    shelf = Shelf(folder_with(MAP))
    wanted = chosen(shelf.folder, what)
    from rescind_papers import reproduction  # loads torch; wrong names are refused before

    home = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    if list_only:
        _list(wanted, shelf, home)
        return
    if committed:
        plan, at = reproduction.Plan(wanted, shelf, home, ()), None
    else:
        plan = reproduction.planned(wanted, shelf, home, quick, seeds)
        at = _run(plan, workers)
    files = reproduction.written(plan)
    failed = {} if at is None else dict(at.failed)
    for why in dict.fromkeys(failed.values()):
        cells = [name for name, reason in failed.items() if reason == why]
        typer.echo(f"not run: {', '.join(cells)}\n  because {why}", err=True)
    if at is not None and not at.done:
        raise DataError("no run was successful. The reasons are listed above.")
    shown = "table or figure" if len(wanted) == 1 else "tables and figures"
    names = f": {', '.join(path.name for path in files)}" if len(files) < 9 else ""
    typer.echo(f"{len(files)} files of {len(wanted)} {shown} in {home}{names}")
    if as_json:
        runs = {"runs": len(plan.jobs), "done": 0 if at is None else at.done}
        typer.echo(json.dumps({**runs, "failed": failed, "files": list(map(str, files))}))


def check_installed() -> None:
    """Raise an error if the package rescind_papers is missing."""
    from importlib.util import find_spec

    from rescind.errors import ConfigError

    if find_spec("rescind_papers") is None:
        raise ConfigError("the package rescind_papers is missing. Install rescind again.")


def _list(wanted: tuple[Exhibit, ...], shelf, home: Path) -> None:
    from rescind_papers.index import behind
    from rescind_papers.reproduction import planned

    for one in wanted:
        count = len(planned([one], shelf, home, quick=False).jobs)
        typer.echo(f"{one.place:18} {count:4d} runs  {one.title}")
        typer.echo(f"{'':30}recipes: {', '.join(behind(one))}")


def _run(plan: Plan, workers: int) -> Progress:
    """Run the jobs and show how many are done."""
    from rescind_papers import reproduction

    with interruptible(), Steps("reproducing", "runs") as steps:
        return reproduction.run(plan, workers, lambda at: steps(at.done, at.all))
