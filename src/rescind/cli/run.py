"""`rescind run`: run the cells of a recipe."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.progress import Countdown
from rescind.cli.stopping import interruptible

if TYPE_CHECKING:
    from rescind.experiments.recipe import Cell, Recipe
    from rescind.experiments.unlearning_run import TrialCache

_SET = "Change a setting, e.g. run.rounds=20, method.negatives=4, seed=3."
_SEED = {"seed", "run.seed"}
_RESUME = ("Checkpoints and finished models are kept.", "To resume, add --resume.")
_SHOWN = ("HR", "NDCG", "Recall", "accuracy", "ROC")
"""What names of metrics begin with that are printed; run.json has all."""


def command(
    recipe: Annotated[
        str | None,
        Argument(help="A TOML file, or the name of a recipe (paper/table). Or give --data."),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Run on this dataset without a recipe; without --method, one is chosen.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        Option(
            metavar="NAME|FILE.py",
            help="Run this method: a name, or a file of your own (FILE.py:CLASS).",
        ),
    ] = None,
    change: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_SET)] = None,
    cell: Annotated[str | None, Option(help="Run one cell only, e.g. ml-100k/FedAvg.")] = None,
    seeds: Annotated[int | None, Option(min=1, help="Run seeds 0 to N-1.")] = None,
    out: Annotated[
        Path | None,
        Option(help="Output folder. Default: runs/PAPER/TABLE, or runs/data/DATA-METHOD."),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Resume an interrupted run.")] = False,
    workers: Annotated[
        int, Option(min=1, help="Processes that train reference models, for cells that forget.")
    ] = 2,
    record: Annotated[bool, Option("--record", help="Add runs to the recipe's results.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print final metrics as JSON.")] = False,
) -> None:
    """Run a recipe, or one cell of it, and write run.json and the model to the run's folder.

    Examples: rescind run basics/floor --cell ml-100k/FedAvg --seeds 1; rescind run --data mine;
    rescind run mine.toml --method anchored.py

    With --record, each run adds one line to the .jsonl file next to the recipe, which `rescind
    table` prints. Runs with changed settings (but the seed) cannot be recorded.
    """
    from rescind.errors import ConfigError, RescindError

    change = change or []
    changed = {text.partition("=")[0].strip() for text in change}
    if seeds is not None and changed & _SEED:
        raise ConfigError("--seeds and --set seed=K were both given. Give one of them.")
    if recipe is None:
        found = _own(data, method, change, record)
    else:
        more = [f"{key}={value}" for key, value in (("data", data), ("method", method)) if value]
        found = _from_file(recipe, [*more, *change], cell, record)
    from rescind.experiments.learning_run import append_facts

    cells = found.choose(cell, None if seeds is None else range(seeds))
    if not resume:  # what is finished needs no data
        _check_data(cells)
    _tell_more_rounds(cells)
    home, folders = _places(found, cells, out, bool(changed & _SEED))
    if not resume:
        _tell_finished(folders)
    cache = _cache(home, resume, workers)
    finished: list[dict[str, Any]] = []
    failed: dict[str, list[str]] = {}  # by reason
    for number, (chosen, folder) in enumerate(zip(cells, folders, strict=True), 1):
        name, seed = chosen.name, chosen.run.seed
        place = f"[{number}/{len(cells)}] " if len(cells) > 1 else ""
        try:
            facts = _one(chosen, folder, resume, f"{place}{name} seed {seed}", cache)
        except RescindError as error:  # the others may run
            if len(cells) == 1:
                raise
            why = str(error) if str(error) not in failed else "for the same reason as before"
            typer.echo(f"{place}{name} seed {seed} cannot run: {why}", err=True)
            failed.setdefault(str(error), []).append(f"{name} seed {seed}")
            continue
        if record:
            append_facts(found, facts)
        metrics = facts["metrics"]["test"]
        about = {"cell": name, "seed": seed, "out": str(folder), **_judged(facts)}
        finished.append({**about, "metrics": metrics})
        typer.echo(f"{name}{_chosen(facts, chosen)} seed {seed}: {_summary(facts)} -> {folder}")
        _warn(facts)
    if finished:
        _next(found, finished, record)
    if as_json and finished:
        last: Any = {**finished[-1]["metrics"]} if len(finished) == 1 else {"runs": finished}
        typer.echo(json.dumps(last))
    if failed:
        count = f"{len(cells) - len(finished)} of {len(cells)} runs cannot run"
        raise ConfigError(
            f"{count}{'; the others are finished' if finished else ''}.\n  "
            + "\n  ".join(f"{', '.join(runs)}: {why}" for why, runs in failed.items())
        )


def _home(recipe: Recipe, seed: int | None) -> Path:
    """Return where the runs of a recipe go by themselves. seed: one that no other folder states"""
    home = Path("runs") / recipe.place
    return home if seed is None else home.with_name(f"{home.name}-seed-{seed}")


def _places(
    recipe: Recipe, cells: Sequence[Cell], out: Path | None, seed_changed: bool
) -> tuple[Path, list[Path]]:
    """Return the folder of all runs, and that of each."""
    from rescind.experiments.recipe import folder_name

    several = len(cells) > 1 or len(recipe.names) > 1 or len(recipe.cells) > 1
    home = out or _home(recipe, cells[0].run.seed if seed_changed and not several else None)
    if not several:
        return home, [home]
    if out is None and not recipe.path.is_file():  # the folder above is of a single run
        return home, [_home(recipe, cell.run.seed) for cell in cells]
    return home, [home / folder_name(cell.name, cell.run.seed) for cell in cells]


def _check_data(cells: Sequence[Cell]) -> None:
    """Raise one error about a dataset that is not there, instead of one for each run."""
    from rescind.data.loading import check_name

    for name in dict.fromkeys(cell.data.name for cell in cells):
        check_name(name)


def _tell_more_rounds(cells: Sequence[Cell]) -> None:
    """Say so, once for each method, if it is trained longer than its class says is enough."""
    for cls, rounds in dict.fromkeys((type(cell.method), cell.run.rounds) for cell in cells):
        if (enough := cls.rounds_or(rounds)) < rounds:
            typer.echo(
                f"{cls.__name__}: run.rounds = {rounds}, and {enough} is enough, as its class says",
                err=True,
            )


def _from_file(name: str, change: list[str], cell: str | None, record: bool) -> Recipe:
    from rescind.experiments.recipe_file import check, check_record, locate

    path = locate(name)
    check(path, change, cell)  # before torch is loaded: an error answers at once
    from rescind.experiments.recipe import read

    found = read(path, change, cell)
    if record:
        check_record(path, change, found.changed)
    return found


def _own(data: str | None, method: str | None, change: list[str], record: bool) -> Recipe:
    """Return the recipe of a dataset by itself; say which method was chosen, and why."""
    from rescind.errors import ConfigError

    if data is None:
        raise ConfigError(
            "give a recipe (rescind run basics/floor), or a dataset (rescind run --data ml-100k)."
        )
    if record:
        raise ConfigError("--record adds to the results of a recipe. Write one (docs/recipes.md).")
    from rescind.experiments.advice import advice_for, recipe_for

    if method is None:
        advice = advice_for(data)
        method = advice.method
        typer.echo(f"method: {method}, because: {'; '.join(advice.why)}", err=True)
    return recipe_for(data, method, change)


def _chosen(facts: dict[str, Any], cell: Cell) -> str:
    """Return the method that was used, if it was chosen when the data was known."""
    chooses = cell.method.for_items(0) is not cell.method
    return f" ({facts['configuration']['method']['name']})" if chooses else ""


def _summary(facts: dict[str, Any]) -> str:
    test = facts["metrics"]["test"]
    shown = ", ".join(f"{k} {v:.4f}" for k, v in test.items() if k.startswith(_SHOWN))
    if users := facts.get("measured_users", {}).get("test"):
        shown += f" of {users:,} users"
    took = f"(round {facts['round']}, {facts['seconds']['wall']:.1f} s)"
    forgot = facts.get("forget")
    if forgot is None:
        return f"{shown} {took}"
    verdict = _judged(facts)["verdict"]
    return f"{verdict}, {shown}, {forgot['client_rounds']:,.0f} client-rounds {took}"


def _judged(facts: dict[str, Any]) -> dict[str, str]:
    """Return the verdict on a run that forgot; nothing for one that only learnt."""
    return {"verdict": facts["forget"].get("verdict", "unaudited")} if "forget" in facts else {}


def _tell_means(finished: Sequence[dict[str, Any]]) -> None:
    """Print mean and spread of each cell that ran with several seeds, and its verdicts."""
    from rescind.experiments.verdicts import counted

    by_cell: dict[str, list[dict[str, Any]]] = {}
    for one in finished:
        by_cell.setdefault(one["cell"], []).append(one)
    for name, runs in by_cell.items():
        if len(runs) < 2:
            continue
        measured = [one["metrics"] for one in runs]
        shown = ", ".join(
            f"{key} {statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"
            for key in measured[0]
            if key.startswith(_SHOWN)
            for values in [[test[key] for test in measured]]
        )
        words = [one["verdict"] for one in runs if "verdict" in one]
        judged = f"; verdict: {counted(words)}" if words else ""
        typer.echo(f"{name}, {len(runs)} seeds (mean ± standard deviation): {shown}{judged}")


def _warn(facts: dict[str, Any]) -> None:
    """Print refused updates and the epsilon of the guards, which the metrics do not show."""
    if refused := facts.get("refused"):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in refused.items())
        summed = f"{facts['client_rounds']:,} were summed"
        typer.echo(f"  refused updates: {reasons}; {summed}", err=True)
    epsilon = (facts.get("privacy") or {}).get("epsilon")
    if epsilon is not None:
        typer.echo(f'  privacy: epsilon {epsilon:.3g} (see "privacy" in run.json)', err=True)


def _one(cell: Cell, folder: Path, resume: bool, title: str, cache: TrialCache) -> dict[str, Any]:
    from rescind.experiments import stream_run
    from rescind.experiments.learning_run import tidy
    from rescind.experiments.unlearning_run import run_one
    from rescind.reporting.progress import BlockBar, RoundBar
    from rescind.storage.learning import settle
    from rescind.storage.run_folder import LEARNING, read_facts

    if resume and folder.is_dir():
        settle(folder)
    earlier = (folder / LEARNING).is_dir()  # what is finished here is to be replaced
    done = read_facts(folder) if resume and not earlier else None
    if done is not None and _same(done, cell):
        typer.echo(f"{title}: finished before", err=True)
        tidy(folder)
        return done
    if done is not None:
        _tell_finished([folder])
    bar_of = BlockBar if cell.data.variant else RoundBar
    shown = bar_of(title, cell.run.rounds, cell.run.measure)
    with interruptible(*_RESUME), shown as bar, _log_to_stderr():
        result = run_one(cell, folder, replace(cache, watch=(bar,)), resume)
        if cell.data.variant and cell.forget is None:
            stream_run.draw(result.facts, folder / stream_run.PICTURE)
    return result.facts


def _tell_finished(folders: Sequence[Path]) -> None:
    """Say which finished runs are replaced."""
    if there := [str(folder) for folder in folders if (folder / "run.json").exists()]:
        typer.echo(
            f"replaced: {', '.join(there)}. To keep a finished run, stop and give --out; --resume "
            f"skips those of the same settings.",
            err=True,
        )


def _same(done: dict[str, Any], cell: Cell) -> bool:
    """Return whether a finished run is of this cell, and of the same text of an own method."""
    made = done.get("versions", {})
    same = all(  # the digest of a file, after its name, which may change
        made.get(name, "").rpartition(" ")[2] == code.rpartition(" ")[2]
        for name, code in cell.code.items()
    )
    return same and (done.get("digest"), done.get("seed")) == (cell.digest, cell.run.seed)


def _cache(home: Path, resume: bool, workers: int) -> TrialCache:
    """Return the cache that cells with unlearners share: trained models and reference models."""
    from rescind.experiments.unlearning_run import TrialCache

    return TrialCache(home, resume, workers, progress=Countdown("retrained models to compare with"))


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Report which checkpoint a run resumes from, and which ones were damaged."""
    handler, source = logging.StreamHandler(), logging.getLogger("rescind")
    handler.setFormatter(logging.Formatter("  %(message)s"))
    level = source.level
    source.addHandler(handler)
    source.setLevel(logging.INFO)
    try:
        yield
    finally:
        source.removeHandler(handler)
        source.setLevel(level)


def _how_to_record(recipe: Recipe) -> str:
    from rescind.experiments.recipe_file import copy_command, in_package

    if recipe.changed or not recipe.path.is_file():
        return "Results are recorded for recipes with their own settings (docs/recipes.md)."
    again = "To add it to the recipe's results, give the same command with --resume --record"
    return f"{again}, after:\n  {copy_command(recipe.path)}" if in_package(recipe.path) else again


def _next(recipe: Recipe, finished: list[dict[str, Any]], recorded: bool) -> None:
    _tell_means(finished)
    where = finished[-1]["out"]
    trial = recipe.cells[-1].forget is not None
    typer.echo(f"\nWritten: {where}/run.json" + ("" if trial else f" and {where}/model/"))
    if recipe.cells[-1].data.variant and not trial:
        typer.echo(f"Drawn: {where}/matrix.svg, each block measured after every later block")
    if recorded:
        typer.echo(f"Recorded: one line per run in {recipe.results}.")
        typer.echo(f"Next: rescind table {recipe.path}")
    else:
        typer.echo(f"Not recorded. {_how_to_record(recipe)}")
    if not trial and recipe.cells[-1].method.model.task == "ranking":
        typer.echo(f"Next: rescind recommend {where} --user ID")
