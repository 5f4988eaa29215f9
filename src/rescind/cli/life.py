"""`rescind life`: play the lifecycle benchmark, and check result lines of others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer import Argument, Option

from rescind.cli.progress import Bar, working
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
            "--data",
            "--dataset",
            metavar="NAME",
            help="ml-100k, ml-1m, lastfm-2k, cora, or any with times.",
        ),
    ] = "ml-100k",
    method: Annotated[
        str | None,
        Option(help="A row, an installed method, or a file: my_method.py. Default: all."),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Play with seeds 0 to N-1.")] = 3,
    blocks: Annotated[int, Option(min=4, help="Number of blocks.")] = 12,
    out: Annotated[Path, Option(help="Folder for the result lines.")] = Path("runs/life"),
    change: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Change a setting of your own method."),
    ] = None,
    story: Annotated[
        Path | None, Option(help="Only write the story of seed 0 into this file.")
    ] = None,
) -> None:
    """Play the lifecycle benchmark: users join, lend, unshare, erase, withdraw and come back.

    Plays the story with one method or with all rows, and prints the table. Each cell (a row with
    one seed) writes one line when it is finished; the same command goes on after an interrupt.

    Examples: rescind life --method Gram --seeds 1; rescind life --data ml-1m --method mine.py
    --set method.rate=0.1
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
    changes = _changes(change or [], method)
    if method is not None:
        find(method, DATASETS.get(dataset, "ranking"), changes)  # before anything long begins
    cells = cells_of([dataset], range(seeds), blocks, method and [method], changes)
    jobs = [Job(cell, out) for cell in cells]
    _play(jobs)
    own = next((Path(job.cell.row) for job in jobs if job.cell.row.endswith(".py")), None)
    _print([file_of(job) for job in jobs], own)


def _changes(given: list[str], method: str | None) -> tuple[tuple[str, Any], ...]:
    """Return the fields and values of --set, such as method.rate=0.1 or rate=0.1."""
    from rescind.errors import ConfigError
    from rescind.experiments.recipe_file import setting

    if given and method is None:
        raise ConfigError("--set changes a method of your own. Give it, too: --method my_method.py")
    found = (setting(text, "method.rate=0.1") for text in given)
    return tuple((key.removeprefix("method."), value) for key, value in found)


def _play(jobs: list[Job]) -> None:
    """Play all cells, with a bar of their blocks."""
    from rescind.forgetting.parallel import one_thread
    from rescind.life.cells import finished, run_job

    with interruptible("Finished cells are kept."), _BlockBar(jobs) as bar, one_thread():
        for job in jobs:
            bar.begin(job)
            if finished(job):
                typer.echo(f"{job.cell.name} seed {job.cell.seed}: finished before", err=True)
            else:
                run_job(job, bar)


class _BlockBar(Bar):
    """A bar over the blocks of all cells; without a terminal, a line every ten seconds."""

    def __init__(self, jobs: list[Job]) -> None:
        super().__init__("life", "blocks")
        self._lines = ExitStack()
        self._say: Callable[[str], None] = lambda _: None
        self.done, self.total = 0, sum(job.cell.blocks for job in jobs)
        self.bar.update(self.task, total=self.total)

    def __enter__(self) -> Self:
        if not self.terminal:
            self._say = self._lines.enter_context(working("life"))
        return super().__enter__()

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        self._lines.close()

    def begin(self, job: Job) -> None:
        self.title = f"{job.cell.name}, seed {job.cell.seed}"
        self.bar.update(self.task, description=self.title, completed=self.done)
        self.start = self.done
        self.done += job.cell.blocks
        if not self.terminal:
            typer.echo(self.title, err=True)
            self._say(f"{self.title}, block 1 of {job.cell.blocks}")

    def __call__(self, block: int, blocks: int, step: str) -> None:
        self.bar.update(self.task, completed=self.start + block)
        self._say(f"{self.title}, block {block + 1} of {blocks}")


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

    if not line.is_file():
        raise ConfigError(f"there is no file {line}. Give a file with result lines.")
    texts = [text for text in line.read_text(encoding="utf-8").splitlines() if text.strip()]
    if not texts:
        raise ConfigError(f"{line} is empty. Give a file with result lines.")
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
