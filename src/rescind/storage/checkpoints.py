"""Checkpoints: one file with both sides of a run, the best round so far, and digests."""

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
from rescind.storage.packing import (
    FORMAT,
    Facts,
    as_notes,
    drawer,
    pack_now,
    read_packed,
    under,
    unpack_now,
)

log = logging.getLogger(__name__)


@dataclass
class Checkpoints:
    """A watcher that writes a checkpoint every so many rounds and keeps the last two."""

    folder: Path
    every: int
    key: str
    """What the run is (configuration and data, as a digest): another run is refused."""
    extra: Callable[[], Facts] = dict
    """More to carry along, such as counters of the run."""

    def __call__(self, moment: RoundResult) -> None:
        done = moment.until is not None and moment.until.done
        if moment.now.state.round % self.every == 0 or done:
            self.write(moment.now, moment.until, moment.past)

    def clear(self) -> None:
        """Remove all checkpoints: a finished run keeps no trace of its way."""
        for path in self.folder.glob("round-*.safetensors"):
            path.unlink(missing_ok=True)
        files.sweep(self.folder)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def write(self, now: RunState, until: EarlyStop | None, past: History | None = None) -> Path:
        """Write one checkpoint now. Of the past it carries who took part, not the points."""
        tensors, facts = pack_now(now)
        tensors = under("now", tensors)
        if past is not None:
            tensors["first"] = past.first
        notes: Facts = {"format": FORMAT, "key": self.key, "now": facts, "extra": self.extra()}
        if until is not None:
            same = until.best is now
            if until.best is not None and not same:
                best, best_facts = pack_now(until.best)
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
        self._forget_others(path)
        return path

    def _forget_others(self, newest: Path) -> None:
        """Keep the newest and the one before; what is dated later was torn, else it were newest."""
        known = sorted(self.folder.glob("round-*.safetensors"))
        before = [old for old in known if old.name < newest.name]
        later = [torn for torn in known if torn.name > newest.name]
        for gone in (*before[:-1], *later):
            gone.unlink(missing_ok=True)
        files.sweep(self.folder)


@dataclass(frozen=True)
class Resumed:
    """Where a run was when its checkpoint was written."""

    now: RunState
    until: EarlyStop | None
    extra: Facts
    path: Path
    first: Tensor | None = None
    """[clients] the round each client first took part in."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be read, and why."""


def resume(
    folder: Path, key: str, fed: Federation, until: EarlyStop | None = None
) -> Resumed | None:
    """The newest whole checkpoint of this run, or None. A torn one is passed over and said so.

    `fed` has the same world and devices as when the run began; `until` is the rule it began with.
    """
    skipped: list[str] = []
    for path in sorted(folder.glob("round-*.safetensors"), reverse=True):
        try:
            tensors, facts = read_packed(path)
        except DataError as error:
            skipped.append(str(error))
            log.warning("passed over a checkpoint: %s", error)
            continue
        if facts["key"] != key:
            raise ConfigError(
                f"{path} is a checkpoint of another run: its configuration or data differ. "
                f"Choose another --out, or remove {folder} to start anew."
            )
        now = unpack_now(drawer("now", tensors), facts["now"], fed)
        if until is not None and "until" in facts:
            until = _unpack_until(until, facts, tensors, now, fed)
        return Resumed(now, until, facts["extra"], path, tensors.get("first"), tuple(skipped))
    if skipped:
        log.warning("no checkpoint in %s can be used: starting anew", folder)
    return None


def _unpack_until(
    until: EarlyStop, facts: Facts, tensors: Params, now: RunState, fed: Federation
) -> EarlyStop:
    seen = facts["until"]
    best = now if seen["best_is_now"] else None
    if "best" in facts:
        best = unpack_now(drawer("best", tensors), facts["best"], fed)
    history = tuple((r, v) for r, v in seen["history"])
    return replace(
        until, best=best, best_score=seen["best_score"], history=history, done=seen["done"]
    )
