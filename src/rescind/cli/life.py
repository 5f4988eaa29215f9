"""`rescind life`: play the lifecycle benchmark, and check result lines of others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.progress import Steps
from rescind.cli.stopping import interruptible
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.life.cells import Job


app = typer.Typer(invoke_without_command=True)


@app.callback()
def command(
    ctx: typer.Context,
    dataset: Annotated[
        str,
        Option(
            "--data", metavar="NAME", help="ml-100k, ml-1m, lastfm-2k, cora, or any with times."
        ),
    ] = "ml-100k",
    method: Annotated[
        str | None,
        Option(help="A row, an installed method, or a file: my_method.py. Default: all."),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Play with seeds 0 to N-1.")] = 3,
    blocks: Annotated[int, Option(min=4, help="Number of blocks.")] = 12,
    out: Annotated[Path, Option(help="Folder for the result lines.")] = Path("runs/life"),
    story: Annotated[
        Path | None, Option(help="Only write the story of seed 0 into this file.")
    ] = None,
) -> None:
    """Play the lifecycle benchmark: users join, lend, unshare, erase, withdraw and come back.

    Plays the story with one method or with all rows, and prints the table. Each cell (a row with
    one seed) writes one line when it is finished. The same command goes on after an interrupt:
    cells that have a line are not played again, unless the file of their method has changed.

    Examples: rescind life --method Gram --seeds 1; rescind life --data ml-1m --method mine.py
    """
    if ctx.invoked_subcommand is not None:
        return
    from rescind.life.cells import DATASETS, Job, cells_of, file_of
    from rescind.life.find import find
    from rescind.life.lines import story_of

    if story is not None:
        made = story_of(dataset, DATASETS.get(dataset, "ranking"), 0, blocks)
        made.write(story)
        typer.echo(f"{len(made.steps)} steps, {made.digest}\nWritten: {story}")
        return
    if method is not None:
        find(method, DATASETS.get(dataset, "ranking"))  # before anything long begins
    cells = cells_of([dataset], range(seeds), blocks, method and [method])
    jobs = [Job(cell, out) for cell in cells]
    _play(jobs)
    own = next((Path(job.cell.row) for job in jobs if job.cell.row.endswith(".py")), None)
    _print([file_of(job) for job in jobs], own)


def _play(jobs: list[Job]) -> None:
    """Play all cells, and show the blocks of all."""
    from rescind.forgetting.parallel import one_thread
    from rescind.life.cells import finished, run_job

    total, before = sum(job.cell.blocks for job in jobs), 0
    with interruptible("Finished cells are kept."), Steps("life", "blocks") as steps, one_thread():
        for job in jobs:
            name = f"{job.cell.name}, seed {job.cell.seed}"
            if finished(job):
                typer.echo(f"{job.cell.name} seed {job.cell.seed}: finished before", err=True)
            else:
                run_job(job, partial(_show, steps, before, total, name))
            before += job.cell.blocks


def _show(steps: Steps, before: int, total: int, name: str, block: int, *_: object) -> None:
    steps(before + block, total, name)


def _print(files: list[Path], own: Path | None = None) -> None:
    """Print what was found. own: the file of a method that is not one of ours"""
    from rescind.life.lines import read_line
    from rescind.life.page import COSTS, by_row, forgetting

    lines = [read_line(path.read_text(encoding="utf-8")) for path in files]
    for name, mine in by_row(lines).items():
        typer.echo(f"\n{name} (seeds {', '.join(str(line['seed']) for line in mine)})")
        for title, column in {**forgetting(mine[0]["task"]), **COSTS}.items():
            typer.echo(f"  {title}: {column(mine)}")
    typer.echo(f"\nWritten: {count_of(len(files), 'line')} below {files[0].parent}")
    method = "" if own is None else f" --method {own}"
    typer.echo(f"Check one: rescind life verify {files[0]}{method}    More: docs/life.md")


@app.command("verify")
def verify(
    line: Annotated[Path, Argument(help="A file with one result line, or several.")],
    method: Annotated[
        str | None, Option(help="The file of the method, if the line is of one: my_method.py")
    ] = None,
) -> None:
    """Check result lines: digests first, then play the cell again and compare.

    Ends with 1 if a line is wrong.

    Example: rescind life verify runs/life/ml-100k/gram-seed-0-of-12.json
    """
    from rescind.errors import ConfigError
    from rescind.forgetting.parallel import one_thread
    from rescind.life import lines

    written = line.read_text(encoding="utf-8") if line.is_file() else ""
    texts = [text for text in written.splitlines() if text.strip()]
    if not texts:
        raise ConfigError(f"there are no result lines in {line}. Give a file with some.")
    wrong: list[Any] = []
    with interruptible("Nothing was changed."), one_thread():
        for number, text in enumerate(texts, 1):
            found = lines.verify(text, method)
            about = lines.read_line(text)
            says = "\n  ".join(["WRONG", *found]) if found else "the same in everything but times"
            typer.echo(f"line {number}, {about['row']}, seed {about['seed']}: {says}")
            wrong += found
    if wrong:
        raise typer.Exit(1)
