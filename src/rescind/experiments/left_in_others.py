"""Remember what other runs still have of answered requests, until they have nothing of it.

The file of a request is deleted with its answer, so its user and items are noted as keyed digests:
`about.json` and `log.jsonl` hold no ids. Whoever has the erasure key finds them in a run by them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.data.blocklist import Blocklist, keyed_digest
from rescind.errors import DataError
from rescind.experiments.other_runs import still_has
from rescind.experiments.request_files import ABOUT, ANSWERED, Asked
from rescind.experiments.request_log import add_to_log, log_lines
from rescind.privacy.keys import erasure_key
from rescind.storage.run_folder import has_model, newest

OTHERS = "other_runs"
"""In the notes on an answer: which other runs still had some of it, and what, in digests."""
GONE = "gone from other runs"
"""An event of the log: from then on, no other run that was noted has any of it."""


@dataclass(frozen=True)
class Left:
    """An answered request of which other runs still have some."""

    name: str
    received: datetime
    due: datetime
    runs: tuple[Path, ...]


def noted(folder: Path, one: Asked, runs: Sequence[Path]) -> dict[str, Any]:
    """Return what is noted about other runs that have some of a request.

    Their places are seen from the folder of requests: a command may be given from anywhere.
    """
    key, here = erasure_key(), folder.resolve()
    pairs = [keyed_digest(key, one.user, item) for item in one.items or ()]
    return {
        "runs": [os.path.relpath(run.resolve(), here) for run in runs],
        "user": keyed_digest(key, one.user),
        "items": None if one.items is None else pairs,
    }


def left_in_others(folder: Path) -> list[Left]:
    """Return the answered requests of which other runs still have some. It changes nothing."""
    return [left for about in _with_others(folder) if (left := _left(folder, about)).runs]


def settle_others(folder: Path) -> list[Left]:
    """Return the same, and note of which requests the other runs have nothing any more."""
    found = list[Left]()
    for about in _with_others(folder):
        if (left := _left(folder, about)).runs:
            found.append(left)
            continue
        add_to_log(folder, {"event": GONE, "request": left.name})
        if (path := folder / ANSWERED / left.name / ABOUT).is_file():
            kept = {name: value for name, value in about.items() if name != OTHERS}
            write_atomically(path, json.dumps(kept, indent=2).encode())
    return found


def _with_others(folder: Path) -> list[dict[str, Any]]:
    """Return the notes on answers that name other runs. Of deleted folders the log has them."""
    found = dict[str, dict[str, Any]]()
    for line in log_lines(folder):
        if OTHERS in line:
            found[line["request"]] = line
        elif line["event"] == GONE:
            found.pop(line["request"], None)
    for path in sorted((folder / ANSWERED).glob(f"*/{ABOUT}")):
        about = json.loads(path.read_text(encoding="utf-8"))
        found.pop(about["request"], None)
        if OTHERS in about:
            found[about["request"]] = about
    return list(found.values())


def _left(folder: Path, about: dict[str, Any]) -> Left:
    received, due = (datetime.fromisoformat(about[name]) for name in ("received", "due"))
    places = [Path(os.path.normpath(folder.resolve() / run)) for run in about[OTHERS]["runs"]]
    # A run that answered others since then was replaced, and the new one may still have it.
    stand = dict.fromkeys(_standing(run) for run in places)
    runs = (run for run in stand if has_model(run) and _has(run, about))
    return Left(str(about["request"]), received, due, tuple(_short(run) for run in runs))


def _has(run: Path, about: dict[str, Any]) -> bool:
    """Return whether a run has some of what was noted. One that cannot be read may: look there."""
    key, what = erasure_key(), about[OTHERS]
    try:
        names, listed = {*_names(run)}, Blocklist.of_dataset(about["imported"])
    except (OSError, ValueError, DataError):
        return True
    user = next((name for name in names if keyed_digest(key, name) == what["user"]), None)
    if user is None:
        return False
    asked = frozenset(what["items"] or ())
    if what["items"] is None:
        if listed.has_withdrawn(user) or not listed.has_asked(user):
            return still_has(run, {user: None})
        asked = listed.erased  # let in again (`rescind data admit`): new rows may be there
    items = [name for name in names if keyed_digest(key, user, name) in asked]
    return bool(items) and still_has(run, {user: items})


def _names(run: Path) -> Iterator[str]:
    """Yield every name that a saved run keeps, of users and of items: without a load."""
    for path in run.glob("model/labels/*.json"):
        table = json.loads(path.read_bytes())
        if isinstance(table, list):  # the other files say which lists there are
            yield from map(str, table)


def _standing(run: Path) -> Path:
    try:
        return newest(run)
    except DataError:  # its note about the run that replaced it is broken
        return run


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
