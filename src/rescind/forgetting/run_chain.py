"""Find the other folders of a run: each request is answered in a new one, named by the one before.

    runs/mine  ->  runs/mine-forgot-1  ->  runs/mine-forgot-2

Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rescind.errors import DataError
from rescind.forgetting.succession import BEFORE, LAST, RECEIPT, REQUEST, replaced, settle
from rescind.storage.run_folder import (
    MOVED,
    has_model,
    newest,
    read_facts,
    read_note,
    successor,
)  # fmt: skip


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


def answer_to(request: str, run: Path) -> Path | None:
    """Return the folder that answered a request last, also if the run was trained again since.

    request: its keyed digest    run: any folder of the run that stands now
    """
    root, found = chain(run)[0].resolve(), list[Path]()
    for folder in (path.parent for path in run.parent.glob(f"*/{BEFORE}")):
        same = read_note(folder / BEFORE).get(REQUEST) == request
        if same and (folder / RECEIPT).is_file() and _root(folder).resolve() == root:
            found.append(folder)
    return max(found, key=lambda one: (one / RECEIPT).stat().st_mtime_ns, default=None)


def _root(run: Path) -> Path:
    """Return the first run of those whose places were taken, trained again or not."""
    seen = {run}
    while (run / BEFORE).is_file() and (place := _place(run)) not in seen and place.is_dir():
        seen.add(run := place)
    return run


def lineage(run: Path) -> list[Path]:
    """Return these, and those of the run that was trained again where the first of them had stood.

    A run that is trained again names no successors any more; an answer from before it still names
    the folder, whose list of who left counts.
    """
    found = chain(run)
    while (again := _begun_at(found[0])) is not None and again not in found:
        found = [*chain(again), *found]
    return found


def outlived_by(run: Path) -> Path | None:
    """Return the run that stands now, if this one answered for a model that was trained again.

    The receipts that come after go on from the same one: a receipt from here, too, would be a fork.
    A copy of an answer is not meant, nor one that was moved: its receipt is that of the answer.
    """
    while (run / BEFORE).is_file():
        place = _place(run)
        if (after := successor(place)) is None:
            return place if has_model(place) and (place / LAST).is_file() else None
        if after.is_dir() and _receipt(after) != _receipt(run):
            return newest(place)
        run = place
    return None


def check_not_outlived(run: Path) -> None:
    """Raise if a receipt from this run would fork the history of the run that stands now."""
    if (now := outlived_by(run)) is not None:
        raise DataError(
            f"{run} is from before its run was trained again: {now} stands now, and a second "
            f"receipt after the same one would read as a fork. Give the same command with {now}, "
            f"and delete {run / 'model'}."
        )


def _receipt(run: Path) -> bytes:
    return (run / RECEIPT).read_bytes() if (run / RECEIPT).is_file() else b""


def _place(run: Path) -> Path:
    """Return the folder of the run whose place an answer took."""
    return Path(os.path.normpath(run / str(read_note(run / BEFORE)["run"])))


def _begun_at(first: Path) -> Path | None:
    """Return the run whose place an answer took, if a run is there now."""
    if not (first / BEFORE).is_file():
        return None
    place = _place(first)
    return place if read_facts(place) else None
