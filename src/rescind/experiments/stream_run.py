"""Run a stream of blocks as a cell of a recipe, with checkpoints to resume from."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.core import files, params
from rescind.core.doing import step
from rescind.core.executor import Executor, InProcess
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.run_state import EarlyStop
from rescind.core.tasks.metrics import Ranking
from rescind.data import Dataset
from rescind.data.blocklist import Blocklist
from rescind.data.blocks import block_split
from rescind.errors import ConfigError, DataError
from rescind.experiments import learning_run, streams
from rescind.experiments.cell import Cell
from rescind.experiments.drift import Drift
from rescind.experiments.learning_run import Meter, Result, about, tidy
from rescind.experiments.prepared_data import answered_alone, prepare, withheld_from
from rescind.experiments.registering import artefact, departures_of, finish
from rescind.experiments.results import ALONE, only_numbers
from rescind.experiments.streams import Block, Blocks, Stream, StreamCheckpoints, Streamed, Watch
from rescind.experiments.validation import check_stream
from rescind.reporting import charts
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.learning import begin_learning, learning_in
from rescind.storage.provenance import versions

log = logging.getLogger(__name__)

PICTURE = "matrix.svg"
BEGUN = "begun.json"
"""Written last when a block starts, so that an incomplete folder is not used."""


def run_cell(
    cell: Cell,
    folder: Path,
    again: bool = False,
    watch: Sequence[Watch] = (),
    dataset: Dataset | None = None,
) -> Result:
    """Run the stream of one cell and measure it; writes `folder/run.json` and `folder/model/`.

    again: resume from the block and checkpoint where an earlier run stopped
    `rounds` counts inside a block. Records that were erased are left out.
    """
    with learning_in(folder):
        return _run_cell(cell, folder, again, watch, dataset)


def _run_cell(
    cell: Cell, folder: Path, again: bool, watch: Sequence[Watch], dataset: Dataset | None
) -> Result:
    counted = departures_of(cell.data.name)
    with step(f"reading {cell.data.name}"):
        dataset = dataset or prepare(cell.data, erased_too=True, folder=folder)
    withheld = withheld_from(dataset, folder)
    key = learning_run.run_key(cell, dataset)
    halts = StreamCheckpointFiles(folder / "checkpoints", cell, key)
    if not again:
        halts.clear()
    model = begin_learning(folder)
    fed, facts = measured(cell, dataset, watch, halts, withheld)
    if answered_alone(dataset, folder):
        facts[ALONE] = True
    facts["artefact"] = artefact(folder)
    save_federation(fed, model)
    finish(folder, facts, counted)
    tidy(folder)
    return Result(fed, facts, folder)


def measured(
    cell: Cell,
    dataset: Dataset,
    watch: Sequence[Watch] = (),
    halts: StreamCheckpointFiles | None = None,
    withheld: Blocklist | None = None,
) -> tuple[Federation, dict[str, Any]]:
    """Run the stream of one cell. Return (federation, content of run.json).

    Only `halts` writes files.
    """
    guards, settings = cell.guards, cell.run
    if cell.sharing is not None or (guards and guards.epsilon is not None):
        raise ConfigError("a stream takes neither [sharing] nor guards.epsilon. Leave them out.")
    executor = InProcess(device=settings.device, guards=guards.guards if guards else ())
    split = "drawn inside blocks" if dataset.split is None else "as given"
    dataset = _left(dataset, settings.seed, withheld)
    stream = Stream.of(dataset, settings.seed)
    check_stream(cell, (stream.first.split, *(block.split for block in stream.later)))
    meter, drift = Meter(), Drift()
    if halts is not None:
        meter, drift, halts.executor = halts.meter, halts.drift, executor
    done = streams.run_stream(
        stream, cell.method, settings.seed, blocks_of(cell), executor, (meter, drift, *watch),
        keeper=halts, answer=drift.ended,
    )  # fmt: skip
    facts = facts_of(cell, done, meter)
    facts["data"] = {**about(dataset), "split": split}
    facts["metrics"]["test"] |= drift.found()
    facts["kept_bytes"]["devices"] = done.fed.now.vault.nbytes
    facts["model"]["private"] = params.digest(done.fed.now.vault.private)
    return meter.ledger(done.fed), facts


def blocks_of(cell: Cell) -> Blocks:
    run = cell.run
    return Blocks(run.rounds, run.patience, run.evaluate_every, run.measure, run.k)


def _left(dataset: Dataset, seed: int, withheld: Blocklist | None) -> Dataset:
    """Return the dataset without erased records. The other records keep their split."""
    if not withheld or dataset.block is None:
        return dataset
    split = dataset.split
    if split is None:
        split = block_split(dataset, dataset.block, seed)
    return withheld.left_of(replace(dataset, split=split))


@dataclass
class StreamCheckpointFiles(StreamCheckpoints):
    """Checkpoints of a stream on disk: the start of each block, and rounds inside it."""

    folder: Path
    cell: Cell
    key: str
    """Identity of the run: configuration, seed, data and code of the user's own."""
    executor: Executor | None = None

    def __post_init__(self) -> None:
        self.meter, self.drift = Meter(), Drift()
        self.place: Path | None = None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self, fed: Federation, place: Path) -> None:
        save_federation(fed, place)

    def load(self, place: Path) -> Federation:
        return load_federation(place, self.executor)

    def found(self) -> tuple[Federation, tuple[Block, ...]] | None:
        """Return the newest complete start of a block; skip incomplete ones with a warning."""
        for place in sorted(self.folder.glob("block-*"), reverse=True):
            try:
                facts = json.loads((place / BEGUN).read_text(encoding="utf-8"))
                if facts["key"] != self.key:
                    raise ConfigError(
                        f"{place} belongs to another run: its configuration, its data or the file "
                        f"of its method differ. Give the command without --resume to start from "
                        f"the beginning, which removes it, or choose another --out."
                    )
                fed = self.load(place)
                self.drift.load(place, self.executor)
            except (OSError, ValueError, DataError) as error:
                log.warning("passed over a block that was not written whole: %s", error)
                continue
            self._count(facts["meter"], self.cell.run.checkpoint_every)
            log.info("going on in block %d", len(facts["done"]))
            return replace(fed, method=self._method(fed)), tuple(map(_block, facts["done"]))
        return None

    def _method(self, fed: Federation) -> Method:
        """Return the method with the settings of now; one that chose another stays so."""
        given = self.cell.method
        return fed.method if given.for_items(0) is not given else given

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        """Save the start of a block if it is not there yet, and remove older blocks."""
        self.place = self.folder / f"block-{len(done):03d}"
        if not (self.place / BEGUN).is_file():
            self.save(fed, self.place)
            self.drift.save(self.place)
            finished = [vars(block) for block in done]
            facts = {"key": self.key, "done": finished, "meter": self.meter.read()}
            files.write_atomically(self.place / BEGUN, json.dumps(facts).encode())
        for old in self.folder.glob("block-*"):
            if old != self.place:
                shutil.rmtree(old)

    def inside(
        self, fed: Federation, until: EarlyStop
    ) -> tuple[Federation, EarlyStop, tuple[Watch, ...]]:
        """Resume from the newest checkpoint inside the block, if there is one."""
        assert self.place is not None, "begins() was not called before inside()"
        every = self.cell.run.checkpoint_every
        rounds = Checkpoints(self.place / "rounds", every, self.key, self.meter.read)
        at = resume(rounds.folder, self.key, fed, until)
        if at is not None:
            assert at.until is not None
            self._count(at.extra, every * (1 + len(at.skipped)))
            fed, until = learning_run.restored(fed, at), at.until
            log.info("going on after round %d", at.now.state.round)
        return fed, until, (rounds,)

    def _count(self, read: dict[str, Any], repeated: int) -> None:
        """Continue the counters of a checkpoint, in the meter that the run uses."""
        vars(self.meter).update(vars(Meter(**read)))
        self.meter.repeated += repeated


def _block(facts: dict[str, Any]) -> Block:
    history = tuple((r, dict(v)) for r, v in facts["history"])
    return Block(**{**facts, "history": history, "test": tuple(facts["test"])})


def facts_of(cell: Cell, done: Streamed, meter: Meter) -> dict[str, Any]:
    """Return the content of run.json: the matrix, and Table 2's averages as metrics."""
    state = done.fed.now.state
    names = [f"{name}@{k}" for k in cell.run.k for name in ("NDCG", "Recall", "HR")]
    matrix = {name: done.matrix(name) for name in names}
    best = [v for b in done.blocks[1:] for r, v in b.history if r == b.begun + b.round]
    valid = {name: streams.mean([values[name] for values in best]) for name in names}
    return {
        **cell.stated,
        "versions": versions() | cell.code,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": sum(block.rounds for block in done.blocks),
        "round": state.round,
        "blocks": [
            {"block": b.number, "round": b.round, "rounds": b.rounds, "trained": b.trained,
             "returning": b.returning, "valid": [dict(v, round=r) for r, v in b.history]}
            for b in done.blocks
        ],
        "matrix": matrix,
        "metrics": {"test": averages(matrix), "valid": only_numbers(valid)},
        **meter.costs(),
        "privacy": cell.promise(meter.most_often(), done.fed.world.sizes.clients)
        | done.fed.method.promise(done.fed),
        "kept_bytes": {"server": learning_run.server_bytes(done.fed)},
        "model": {"public": params.digest(state.public)},
    }  # fmt: skip


def averages(matrix: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """Return the metrics of a stream: mean over new blocks (Table 2), of each block, and more."""
    test = {name: streams.summary(rows)["new"] for name, rows in matrix.items()}
    for name, rows in list(matrix.items())[:2]:
        test |= {f"D{number} {name}": row[-1] for number, row in enumerate(rows)}
        test |= {f"{n} {name}": v for n, v in streams.summary(rows).items() if n != "new"}
    return test


def draw(facts: Mapping[str, Any], path: Path) -> None:
    """Draw the matrix a_(t,s) of a run as heat maps, for its first two metrics."""
    shown = list(facts["matrix"].items())[:2]
    made, axes = charts.figure(len(shown))
    for ax, (name, rows) in zip(axes, shown, strict=True):
        charts.heat(ax, rows, name)
    charts.write(made, path)


def measured_again(facts: Mapping[str, Any], fed: Federation) -> dict[str, Any]:
    """Return the changed parts of run.json after a request was answered in the last block.

    Rows of earlier blocks stay; the last row is measured again.
    """
    matrix = {name: [*rows[:-1], []] for name, rows in facts["matrix"].items()}
    k = tuple(sorted({int(name.split("@")[1]) for name in matrix}))
    for block in range(len(facts["blocks"])):
        metric = Ranking(split="test", k=k, mask=("own", "valid"), block=block)
        values = streams.on_block(fed, metric)
        for name, rows in matrix.items():
            rows[-1].append(values[name])
    *earlier, last = facts["blocks"]
    blocks = [*earlier, {**last, "valid": []}]  # validation was of the replaced model
    return {"matrix": matrix, "blocks": blocks, "metrics": {"test": averages(matrix), "valid": {}}}
