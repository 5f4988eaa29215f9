"""Checkpoints: one file with server and client state, the best round so far, and digests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.history import History
from rescind.core.params import Params
from rescind.core.run_state import EarlyStop, RoundResult, RunState
from rescind.errors import ConfigError, DataError
from rescind.storage import packing
from rescind.storage.packing import FORMAT, Facts, as_notes, drawer, read_packed, under

log = logging.getLogger(__name__)


@dataclass
class Checkpoints:
    """A round callback that writes a checkpoint every `every` rounds and keeps the last two."""

    folder: Path
    every: int
    key: str
    """Digest of configuration and data. Checkpoints of another run are refused."""
    extra: Callable[[], Facts] = dict
    """Returns further values to save, such as counters."""

    def __call__(self, moment: RoundResult) -> None:
        done = moment.until is not None and moment.until.done
        if moment.now.state.round % self.every == 0 or done:
            self.write(moment.now, moment.until, moment.past)

    def clear(self) -> None:
        """Remove all checkpoints, when the run is finished."""
        for path in self.folder.glob("round-*.safetensors"):
            path.unlink(missing_ok=True)
        files.sweep(self.folder)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def write(self, now: RunState, until: EarlyStop | None, past: History | None = None) -> Path:
        """Write a checkpoint. Of the history it has only the first rounds of clients."""
        tensors, facts = packing.pack_now(now)
        tensors = under("now", tensors)
        if past is not None:
            tensors["first"] = past.first
        notes: Facts = {"format": FORMAT, "key": self.key, "now": facts, "extra": self.extra()}
        if until is not None:
            same = until.best is now
            if until.best is not None and not same:
                best, best_facts = packing.pack_now(until.best)
                tensors |= under("best", best)
                notes["best"] = best_facts
            notes["until"] = {
                "best_is_now": same,
                "best_score": until.best_score,
                "history": [[r, dict(v)] for r, v in until.history],
                "done": until.done,
            }
        path = self.folder / f"round-{now.state.round:08d}.safetensors"
        params.save(path, tensors, as_notes(notes))
        self._remove_others(path)
        return path

    def _remove_others(self, newest: Path) -> None:
        """Keep the newest and the one before. Files of later rounds are damaged ones."""
        known = sorted(self.folder.glob("round-*.safetensors"))
        before = [path for path in known if path.name < newest.name]
        damaged = [path for path in known if path.name > newest.name]
        for path in (*before[:-1], *damaged):
            path.unlink(missing_ok=True)
        files.sweep(self.folder)


@dataclass(frozen=True)
class Resumed:
    """The state of a run in a checkpoint."""

    now: RunState
    until: EarlyStop | None
    extra: Facts
    path: Path
    first: Tensor | None = None
    """[clients] the first round of each client."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be read, and why."""


def resume(
    folder: Path, key: str, fed: Federation, until: EarlyStop | None = None
) -> Resumed | None:
    """Return the newest readable checkpoint of this run, or None. Log those that are skipped.

    `fed` and `until` are as they were at the start of the run.
    """
    skipped: list[str] = []
    for path in sorted(folder.glob("round-*.safetensors"), reverse=True):
        try:
            tensors, facts = read_packed(path)
        except DataError as error:
            skipped.append(str(error))
            log.warning("skipped a checkpoint: %s", error)
            continue
        if facts["key"] != key:
            raise ConfigError(f"{path} is a checkpoint of another run. Start without --resume.")
        now = packing.unpack_now(drawer("now", tensors), facts["now"], fed)
        if until is not None and "until" in facts:
            until = _unpack_until(until, facts, tensors, now, fed)
        return Resumed(now, until, facts["extra"], path, tensors.get("first"), tuple(skipped))
    if skipped:
        log.warning("no checkpoint in %s can be used: starting from the beginning", folder)
    return None


def _unpack_until(
    until: EarlyStop, facts: Facts, tensors: Params, now: RunState, fed: Federation
) -> EarlyStop:
    saved = facts["until"]
    best = now if saved["best_is_now"] else None
    if "best" in facts:
        best = packing.unpack_now(drawer("best", tensors), facts["best"], fed)
    history = tuple((r, v) for r, v in saved["history"])
    return replace(
        until, best=best, best_score=saved["best_score"], history=history, done=saved["done"]
    )
