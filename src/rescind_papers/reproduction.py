"""Rerun the recipes behind tables and figures in parallel, and write the tables and figures.

Committed results are not changed: runs, result lines, tables (Markdown, CSV, LaTeX) and figures
(SVG, PNG) go to a separate folder. A cell of several recipes is run once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rescind.core.files import make_folder, write_atomically
from rescind.data.catalogue import ENTRIES
from rescind.errors import ConfigError, RescindError
from rescind.experiments import unlearning_run as trials
from rescind.experiments.cell import Cell, DataSettings
from rescind.experiments.learning_run import append_facts
from rescind.experiments.recipe import Recipe
from rescind.experiments.tables import lines
from rescind.experiments.unlearning_run import run_one
from rescind.storage.run_folder import read_facts
from rescind_papers import exhibits, figures
from rescind_papers.index import Exhibit, Part, Shelf, authors_of, shown

SMALLER = {
    "ml-1m": "ml-100k",
    "gowalla": "ml-100k",
    "amazon-video-games-2018-5core": "ml-100k",
    "hetrec2011-movielens": "ml-100k",
    "ml-latest-small": "ml-100k",
    "lastfm-2k": "ml-100k",
    "pubmed": "cora",
    "tolokers": "cora",
}
"""Smaller datasets for quick runs, so that all of them take minutes, not hours."""
ROUNDS = 4
"""Rounds of a quick run: enough for the snapshots of FedShare's forgetting."""
POLL = 0.5
"""Seconds between two progress updates."""


@dataclass(frozen=True)
class Job:
    """One run, and the recipe cells that it counts for."""

    cell: Cell
    folder: Path
    cache: Path
    """Folder that trials on the same federation share."""
    counts_for: tuple[tuple[Recipe, str], ...]
    weight: float = 1.0
    """Expected time, relative to others."""

    @property
    def done(self) -> bool:
        """Return whether it is finished."""
        facts = read_facts(self.folder)
        here = (self.cell.digest, self.cell.run.seed)
        return facts is not None and (facts.get("digest"), facts.get("seed")) == here


@dataclass(frozen=True)
class Plan:
    """The runs to do, their output folder, and what was made smaller."""

    exhibits: tuple[Exhibit, ...]
    shelf: Shelf
    out: Path
    jobs: tuple[Job, ...]
    quick: Mapping[str, str] | None = None
    """What was made smaller, by "paper/table: cell"; None for complete runs."""


@dataclass(frozen=True)
class Progress:
    """Progress of the runs."""

    done: int
    all: int
    failed: Mapping[str, str] = field(default_factory=dict)


def quick_form(cell: Cell) -> tuple[Cell, str]:
    """Return a smaller version of a cell, and a description of what is smaller."""
    notes, data, run, forget = [], cell.data, cell.run, cell.forget
    if data.name in SMALLER:
        notes.append(f"{SMALLER[data.name]} for {data.name}")
        name, variant = SMALLER[data.name], data.variant
        if variant is not None and variant not in ENTRIES[name].variants:
            variant = "blocks"  # a form of one dataset alone, such as its authors' own blocks
        data = DataSettings(name, variant, split=data.split, parts=data.parts)
    if run.rounds > ROUNDS:
        notes.append(f"{ROUNDS} rounds for {run.rounds}")
        run = replace(run, rounds=ROUNDS, evaluate_every=ROUNDS, patience=None, valid_users=None)
    if forget is not None and len(forget.clients) > 1:
        notes.append(f"1 leaver for {len(forget.clients)}")
        forget = replace(forget, client=forget.clients[0])
    return replace(cell, data=data, run=run, forget=forget), ", ".join(["one seed", *notes])


def planned(
    wanted: Sequence[Exhibit], shelf: Shelf, out: Path, quick: bool, seeds: int | None = None
) -> Plan:
    """Plan every run that the tables and figures need, each once.

    seeds: use the first `seeds` seeds of each recipe. Default: all; one if quick
    """
    most = 1 if quick else seeds
    changed: dict[str, Recipe] = {}
    smaller: dict[str, str] = {}
    needed: dict[str, dict[str, None]] = {}
    for part in _parts(wanted, shelf):
        recipe = shelf.recipe(part.recipe)
        names = [cell.name for cell in shown(recipe, part)]
        needed.setdefault(part.recipe, {}).update(dict.fromkeys(names))
        if part.recipe in changed:
            continue
        order = list(dict.fromkeys(cell.run.seed for cell in recipe.cells))[:most]
        cells = [cell for cell in recipe.cells if cell.run.seed in order]
        if quick:
            forms = [quick_form(cell) for cell in cells]
            for cell, how in forms:
                smaller[f"{part.recipe}: {cell.name}"] = how
            cells = [cell for cell, _ in forms]
        path = out / "results" / f"{part.recipe}.toml"
        changed[part.recipe] = replace(recipe, path=path, cells=tuple(cells), also=())
    mine = Shelf(shelf.folder, changed)
    times = {} if quick else _times(shelf, changed)
    jobs = _jobs(mine, needed, out, times)
    return Plan(tuple(wanted), mine, out, jobs, smaller if quick else None)


def _parts(wanted: Sequence[Exhibit], shelf: Shelf) -> list[Part]:
    """Return the shown parts, the recipes of their floors, and the authors' methods beside them."""
    shown_ones = [part for exhibit in wanted for part in exhibit.parts]
    floors = [Part(name) for part in shown_ones for name in part.floors]
    return [*shown_ones, *floors, *(part for one in wanted for part in authors_of(one, shelf))]


def _times(shelf: Shelf, names: Mapping[str, Recipe]) -> dict[str, float]:
    """Return the CPU seconds of a committed run of each cell, by the digest of its settings."""
    made = [line for name in names for line in lines(shelf.recipe(name))]
    return {line["digest"]: float(line.get("seconds", {}).get("cpu", 1.0)) for line in made}


def _jobs(
    shelf: Shelf, needed: Mapping[str, Mapping[str, None]], out: Path, times: Mapping[str, float]
) -> tuple[Job, ...]:
    cells: dict[tuple[str, int], Cell] = {}
    counts: dict[tuple[str, int], list[tuple[Recipe, str]]] = {}
    for name, wanted in needed.items():
        recipe = shelf.recipe(name)
        for cell in recipe.cells:
            if cell.name in wanted:
                key = (cell.digest, cell.run.seed)
                cells.setdefault(key, cell)
                counts.setdefault(key, []).append((recipe, cell.name))
    usual = sorted(times.values())[len(times) // 2] if times else 1.0
    return tuple(
        Job(
            cell=cell,
            folder=out / "runs" / _short(*key),
            cache=out / "rooms" / _short(replace(cell, forget=None).digest, cell.run.seed),
            counts_for=tuple(counts[key]),
            weight=max(times.get(cell.digest, usual), 0.1),
        )
        for key, cell in cells.items()
    )


def _short(digest: str, seed: int) -> str:
    return f"{sha256(digest.encode()).hexdigest()[:16]}-seed-{seed}"


# -- running --------------------------------------------------------------------------------------


def run(plan: Plan, workers: int, progress: Callable[[Progress], Any]) -> Progress:
    """Run all jobs that are not done, in processes of one thread each.

    progress: called with the current `Progress`
    """
    if workers < 1:
        raise ConfigError(f"at least one worker is needed; got {workers}.")
    for job in (job for job in plan.jobs if job.done):
        _record(job, read_facts(job.folder) or {})
    rest = [job for job in plan.jobs if not job.done]
    failed: dict[str, str] = {}
    at = Progress(len(plan.jobs) - len(rest), len(plan.jobs))
    progress(at)
    # The longest first, so that no core is idle at the end.
    groups = sorted(_groups(rest), key=lambda g: -sum(job.weight for job in g))
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        futures = [pool.submit(_work, group) for group in groups]
        for finished in _polled(futures):
            for future in finished:
                failed.update(future.result())
            missing = sum(not (job.folder / "run.json").is_file() for job in rest)
            at = Progress(len(plan.jobs) - missing, len(plan.jobs), dict(failed))
            progress(at)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return at


def _polled(futures: Sequence[Future[dict[str, str]]]) -> Iterator[set[Future[dict[str, str]]]]:
    """Yield the futures that finished since the last poll, until all are done."""
    left = set(futures)
    while left:
        finished, left = wait(left, timeout=POLL, return_when=FIRST_COMPLETED)
        yield finished


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group trials on one federation, which run one after another and share a cache."""
    out: dict[str, list[Job]] = {}
    for job in jobs:
        shared = job.cache if job.cell.forget is not None else job.folder
        out.setdefault(str(shared), []).append(job)
    return list(out.values())


def _work(group: Sequence[Job]) -> dict[str, str]:
    """Run jobs and record them, in a worker process. Return the errors by cell."""
    failed = {}
    cache = trials.TrialCache(group[0].cache, resume=True, workers=1)
    for job in group:
        try:
            make_folder(job.folder)
            _record(job, run_one(job.cell, job.folder, cache).facts)
        except RescindError as error:
            for recipe, name in job.counts_for:
                failed[f"{recipe.path.parent.name}/{recipe.path.stem}: {name}"] = str(error)
    return failed


def _record(job: Job, facts: Mapping[str, Any]) -> None:
    for recipe, name in job.counts_for:
        make_folder(recipe.results.parent)
        append_facts(recipe, {**facts, "cell": name})


# -- writing --------------------------------------------------------------------------------------


def short_line(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as one short line: its identity and its test metrics."""
    measured = facts["metrics"]["test"]
    names = [n for n in ("NDCG@20", "HR@20", "accuracy") if n in measured]
    return {
        "cell": facts["cell"],
        "seed": facts["seed"],
        "digest": facts["digest"],
        "test": {name: round(measured[name], 6) for name in names},
        "seconds": round(facts["seconds"]["cpu"], 1),
        "commit": facts["versions"]["commit"],
    }


def written(plan: Plan) -> list[Path]:
    """Write the tables and figures from the results in the folder. Return their paths."""
    out = []
    if plan.jobs:
        finished = [facts for job in plan.jobs if (facts := read_facts(job.folder)) is not None]
        out.append(plan.out / "runs.jsonl")
        lines_of = "".join(json.dumps(short_line(facts)) + "\n" for facts in finished)
        write_atomically(out[0], lines_of.encode())
    for one in plan.exhibits:
        found = exhibits.rows(one, plan.shelf, plan.quick)
        stem = plan.out / f"{one.paper}-{one.name}"
        compared = "" if plan.quick else exhibits.compared(one, plan.shelf)
        text = f"# {one.title}\n\n{one.source}.{_warning(plan)}\n\n"
        blocks = [exhibits.markdown(one, found), exhibits.legend(found), compared]
        text += "\n\n".join(filter(None, blocks)) + "\n"
        parts = {
            ".md": text,
            ".csv": exhibits.as_csv(one, found),
            ".tex": exhibits.latex(one, found),
        }
        for ending, body in parts.items():
            path = stem.with_name(stem.name + ending)
            write_atomically(path, body.encode())
            out.append(path)
        out += figures.draw(one, plan.shelf, found, plan.out, ("svg", "png"))
    return out


def _warning(plan: Plan) -> str:
    if plan.quick is None:
        return ""
    notes = "; ".join(sorted(set(plan.quick.values())))
    return f" QUICK: every number is of a small run and only shows that the code runs ({notes})."
