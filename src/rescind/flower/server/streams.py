"""A stream of blocks over silos: each brings its own block, the server hears how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.core.federation import Federation
from rescind.experiments.cell import Cell
from rescind.experiments.stream_run import StreamCheckpointFiles, blocks_of, facts_of
from rescind.experiments.streams import Block, Stream, Watch, run_stream
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.storage import load_elsewhere, save_elsewhere


@dataclass
class SiloHalts(StreamCheckpointFiles):
    """A stream whose devices are elsewhere, and whose silos keep no block but the present one."""

    def save(self, fed: Federation, place: Path) -> None:
        """Write a federation as a block begins."""
        save_elsewhere(fed, place)

    def load(self, place: Path) -> Federation:
        """What `save` wrote."""
        return load_elsewhere(place, self.executor)

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        """Once it is written that a block has begun nobody comes back to the one before.

        Said again by a server that goes on: the silos have just been asked for their first block.
        """
        super().begins(fed, done)
        if done and isinstance(self.executor, FlowerExecutor):
            self.executor.turned(fed)


def train_stream(
    cell: Cell,
    executor: FlowerExecutor,
    folder: Path,
    again: bool,
    wait: float,
    watch: Sequence[Watch] = (),
) -> tuple[Federation, dict[str, Any]]:
    """The blocks of a cell, and what run.json says of them.

    again: go on in the block, and at the checkpoint in it, where an earlier run stopped
    """
    seed = cell.run.seed
    halts = SiloHalts(folder / "checkpoints", cell, executor.run, executor)
    if not again:
        halts.clear()
    stream = Stream(executor.gather(seed, wait), executor.arrivals(seed))
    keep = executor.watch(cell.run.checkpoint_every)
    done = run_stream(
        stream, cell.method, seed, blocks_of(cell), executor, (halts.meter, keep, *watch),
        keeper=halts,
    )  # fmt: skip
    return done.fed, facts_of(cell, done, halts.meter)
