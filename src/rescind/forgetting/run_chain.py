"""Find the other folders of a run: each request is answered in a new one, named by the one before.

    runs/mine  ->  runs/mine-forgot-1  ->  runs/mine-forgot-2

Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rescind.forgetting.succession import BEFORE, replaced, settle
from rescind.storage.run_folder import MOVED, read_facts, read_note


def current(run: Path) -> Path:
    """Return the run that stands now: the last one that replaced this run."""
    for link in links(run):
        run = link
    return run


def links(run: Path) -> Iterator[Path]:
    """Yield a run and all that replaced it; an interrupted replacement is finished first."""
    while True:
        yield run
        new = settle(run) if run.is_dir() else None
        if new is None or not new.is_dir() or not (run / MOVED).is_file():
            return
        run = new


def chain(run: Path) -> list[Path]:
    """Return all folders of a run, the first one first, whichever of them is named."""
    return [*links([run, *replaced(run)][-1])]


def lineage(run: Path) -> list[Path]:
    """Return these, and those of the run that was trained again where the first of them had stood.

    A run that is trained again names no successors any more; an answer from before it still names
    the folder, whose list of who left counts.
    """
    found = chain(run)
    while (again := _begun_at(found[0])) is not None and again not in found:
        found = [*chain(again), *found]
    return found


def _begun_at(first: Path) -> Path | None:
    """Return the run whose place an answer took, if a run is there now."""
    if not (first / BEFORE).is_file():
        return None
    place = Path(os.path.normpath(first / str(read_note(first / BEFORE)["run"])))
    return place if read_facts(place) else None
