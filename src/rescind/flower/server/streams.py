"""Streams of blocks over silos. Records stay on the silos, the server knows only sizes."""

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
from rescind.flower.server.storage import load_remote, save_remote


@dataclass
class SiloStreamCheckpoints(StreamCheckpointFiles):
    """Checkpoints of a stream over silos, which keep the current block only."""

    def save(self, fed: Federation, place: Path) -> None:
        """Write a federation at the start of a block."""
        save_remote(fed, place)

    def load(self, place: Path) -> Federation:
        """Read what `save` wrote."""
        return load_remote(place, self.executor)

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        """Write the start of a block, then let silos remove the blocks before it.

        A server that resumes repeats this, because its silos have loaded their first block again.
        """
        super().begins(fed, done)
        if done and isinstance(self.executor, FlowerExecutor):
            self.executor.drop_earlier_blocks(fed)


def train_stream(
    cell: Cell,
    executor: FlowerExecutor,
    folder: Path,
    resume: bool,
    wait: float,
    on_round: Sequence[Watch] = (),
) -> tuple[Federation, dict[str, Any]]:
    """Train on the blocks of a cell. Return the federation and the facts for run.json.

    resume: start at the last checkpoint of an earlier run
    """
    seed = cell.run.seed
    checkpoints = SiloStreamCheckpoints(folder / "checkpoints", cell, executor.run, executor)
    if not resume:
        checkpoints.clear()
    stream = Stream(executor.gather(seed, wait), executor.arrivals(seed))
    keep = executor.watch(cell.run.checkpoint_every)
    done = run_stream(
        stream, cell.method, seed, blocks_of(cell), executor, (checkpoints.meter, keep, *on_round),
        keeper=checkpoints,
    )  # fmt: skip
    return done.fed, facts_of(cell, done, checkpoints.meter)
