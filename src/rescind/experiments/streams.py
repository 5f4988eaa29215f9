"""A stream of blocks: train on each block, keep its best round, evaluate on all blocks so far.

After block t the model is evaluated on the test items of every block s <= t: a_(t,s). The diagonal
measures learning of new blocks, the last row retention of all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rescind.core.cohort import Cohort, Lot
from rescind.core.executor import Executor
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.labels import Labels
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Arrive, Records
from rescind.core.run_state import EarlyStop, RoundResult, RunState
from rescind.core.state import REFERENCE
from rescind.core.tasks import Metric
from rescind.core.tasks.metrics import Ranking, Scores, masked_lot
from rescind.data import Dataset
from rescind.data.blocks import block_split
from rescind.errors import ConfigError, DataError

Watch = Callable[[RoundResult], Any]


@dataclass(frozen=True, eq=False)
class Announcement(Arrive):
    """A block whose records are on other machines: its size, and the clients that train on it."""

    trains: Tensor
    """[clients] bool"""


@dataclass(frozen=True)
class Stream:
    """A first block and the later blocks, as they arrive at devices."""

    first: Holdings
    later: Iterable[Arrive]
    """May be a generator: the next block is requested when the last one is done."""
    labels: Labels = field(default_factory=Labels)

    @classmethod
    def of(cls, dataset: Dataset, seed: int = 0) -> Stream:
        """Create a stream from a dataset with blocks; without a split, one is drawn per block."""
        if dataset.block is None:
            raise DataError(
                f"dataset '{dataset.name}' has no blocks. Load it with variant='blocks'."
            )
        split = dataset.split
        if split is None:
            split = block_split(dataset, dataset.block, seed)
        block = torch.tensor(dataset.block).long()
        rating = None if dataset.rating is None else torch.tensor(dataset.rating)
        user, item, time = map(torch.tensor, (dataset.user, dataset.item, dataset.time))
        records = Records.of(user, item, time, rating)
        kind, last = torch.tensor(split), int(block.max()) if len(block) else 0
        parts = ((records[block == n], kind[block == n]) for n in range(last + 1))
        return cls.arriving(parts, Labels.of(dataset))

    @classmethod
    def arriving(
        cls, blocks: Iterable[tuple[Records, Tensor]], labels: Labels | None = None
    ) -> Stream:
        """Create a stream from given blocks (records, split); tables grow with the largest index.

        A record belongs to the block it arrives in, even if its time is earlier. A pair that
        occurs twice in a block counts once.
        """
        live = cls.live(blocks, labels)
        return replace(live, later=tuple(live.later))

    @classmethod
    def live(cls, blocks: Iterable[tuple[Records, Tensor]], labels: Labels | None = None) -> Stream:
        """Create a stream from blocks (records, split), each requested when it is needed."""
        made = _arrivals(blocks)
        base = next(made, None)
        if base is None or not len(base.records):
            raise DataError("a stream needs a first block with records. Remove empty ones.")
        first = Holdings.of(base.records, base.split, base.clients, base.items)
        return cls(first, made, labels or Labels())


def _arrivals(blocks: Iterable[tuple[Records, Tensor]]) -> Iterator[Arrive]:
    clients = items = 0
    for records, split in blocks:
        if len(records):
            clients = max(clients, int(records.client.max()) + 1)
            items = max(items, int(records.item.max()) + 1)
        yield Arrive(records, split, clients, items)


@dataclass(frozen=True)
class Seen(Ranking):
    """A ranking metric that also hides the items of earlier blocks (`mask="all"`).

    For simulations only: devices do not keep earlier blocks.
    """

    before: tuple[Tensor, Tensor] = (torch.zeros(0).long(), torch.zeros(0).long())
    """(client, item) of earlier blocks."""

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        client, item = self.before
        at = torch.searchsorted(cohort.ids, client).clamp(max=max(len(cohort) - 1, 0))
        here = cohort.ids[at] == client if len(cohort) else torch.zeros_like(client).bool()
        more = Lot(at[here], item[here], len(cohort))
        return super().totals(scores, cohort, masked_lot(cohort, [masked, more]))


@dataclass(frozen=True)
class Blocks:
    """Settings of a block: the fields of a recipe's [run] that a stream uses."""

    rounds: int = 100
    """Largest number of rounds per block (F3CRec: 150 for ML-Latest-Small and Last.fm)."""
    patience: int | None = 30
    """Rounds without improvement on validation before a block ends."""
    every: int = 1
    """Rounds between two validations."""
    value: str = "NDCG@20"
    """Validation metric that selects the best round."""
    k: tuple[int, ...] = (20,)
    """Lengths of the evaluated lists."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1 per block; got {self.rounds}.")


@dataclass(frozen=True)
class Block:
    """The results of one block."""

    number: int
    begun: int
    """Round of the run at which the block started."""
    round: int
    """The best round, counted inside the block."""
    rounds: int
    """Number of rounds run."""
    trained: int
    """Number of clients with training records."""
    returning: int
    """Number of these clients that took part before."""
    history: tuple[tuple[int, Mapping[str, float]], ...]
    test: tuple[Mapping[str, float], ...]
    """Row t of the matrix: metrics on the test items of blocks 0..t."""


@dataclass(frozen=True)
class Streamed:
    """A finished stream: the federation, and the matrix a_(t,s)."""

    fed: Federation
    blocks: tuple[Block, ...]

    def matrix(self, value: str) -> list[list[float]]:
        """Return a_(t,s), s <= t, NaN if a block had no test items."""
        return [[cell[value] for cell in block.test] for block in self.blocks]

    def summary(self, value: str) -> dict[str, float]:
        """Compute learning, retention, their harmonic mean, and `new`."""
        return summary(self.matrix(value))


def summary(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Compute learning (mean diagonal), retention (mean last row) and their harmonic mean.

    `new` is the mean diagonal without the first block (F3CRec's Table 2). rows: a_(t,s), s <= t
    """
    learning, retention = mean([row[-1] for row in rows]), mean(rows[-1])
    both = learning + retention
    return {
        "new": mean([row[-1] for row in rows[1:]]),
        "learning": learning,
        "retention": retention,
        "harmonic": 2 * learning * retention / both if both else 0.0,
    }


class StreamCheckpoints:
    """Checkpoints of a running stream; this base class stores nothing."""

    def found(self) -> tuple[Federation, tuple[Block, ...]] | None:
        """Return the federation at the start of the interrupted block and all finished blocks."""
        return None

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        """Store the start of a block."""

    def inside(
        self, fed: Federation, until: EarlyStop
    ) -> tuple[Federation, EarlyStop, tuple[Watch, ...]]:
        """Return the state inside an interrupted block, and the watchers of its rounds."""
        return fed, until, ()


Answer = Callable[[int, Federation], Federation]
"""Called after a block is trained, before the next one arrives, to answer requests."""


def run_stream(
    stream: Stream,
    method: Method,
    seed: int = 0,
    how: Blocks | None = None,
    executor: Executor | None = None,
    watch: Sequence[Watch] = (),
    keeper: StreamCheckpoints | None = None,
    answer: Answer | None = None,
) -> Streamed:
    """Train on one block after another, and evaluate on all blocks so far after each."""
    how, keeper = how or Blocks(), keeper or StreamCheckpoints()
    found = keeper.found()
    done = list(found[1]) if found else []
    fed, last = found[0] if found else None, None
    seen, known = list[Records](), torch.zeros(0, dtype=torch.bool)
    for number, (arrival, there) in enumerate(_all_blocks(stream)):
        if number >= len(done):
            if last is not None and fed is not None:
                fed = next_block(fed, last, arrival)
            fed = fed or Federation.start(stream.first, method, seed, executor, stream.labels)
            keeper.begins(fed, done)
            hidden = seen if getattr(method, "mask", "block") == "all" else []
            begun, able = fed.now.state.round, fed.world.available.cpu()
            valid, test = (_ranking(split, how.k, hidden) for split in ("valid", "test"))
            fed, last, until = train_block(fed, how, valid, watch, keeper)
            rounds = last.state.round - begun
            after = fed if answer is None else answer(number, fed)
            if after is not fed:  # forgotten data must not come back from the last round
                fed, last = after, after.now
            tested = tuple(on_block(fed, replace(test, block=s)) for s in range(number + 1))
            best, returning = fed.now.state.round - begun, able[: len(known)] & known
            people = int(able.sum()), int(returning.sum())
            done.append(Block(number, begun, best, rounds, *people, until.history, tested))
        known = torch.cat([known, torch.zeros(len(there) - len(known), dtype=torch.bool)]) | there
        seen.append(arrival.records)
    assert fed is not None
    return Streamed(fed, tuple(done))


def _all_blocks(stream: Stream) -> Iterator[tuple[Arrive, Tensor]]:
    """Yield all blocks, and the clients with training records in each. [clients] bool"""
    first = stream.first
    block = Arrive(first.records, first.split, first.clients, first.items)
    yield block, first.available.cpu()
    for block in stream.later:
        if isinstance(block, Announcement):
            yield block, block.trains
        else:
            there = torch.zeros(block.clients, dtype=torch.bool)
            there[block.records.client[block.split == TRAIN].cpu()] = True
            yield block, there


def train_block(
    fed: Federation,
    how: Blocks,
    metric: Ranking,
    watch: Sequence[Watch] = (),
    keeper: StreamCheckpoints | None = None,
) -> tuple[Federation, RunState, EarlyStop]:
    """Run the rounds of one block. Return (federation at the best round, last round, stop rule).

    A block without training records leaves the model unchanged. Without validation items, all
    rounds are run and the last one is the best.
    """
    until = EarlyStop(metric=metric, value=how.value, every=how.every, patience=how.patience)
    end = fed.now.state.round + (how.rounds if bool(fed.world.available.any()) else 0)
    ids = _holders(fed, metric)
    fed, until, keeping = (keeper or StreamCheckpoints()).inside(fed, until)
    caught: list[RoundResult] = []

    def evaluate(_: RunState, chosen: Metric) -> dict[str, float]:
        return fed.evaluate(metric=chosen, clients=ids)

    while fed.now.state.round < end and not until.done:
        fed = fed.run(1, watch=[caught.append])
        if len(ids):
            until = until.update(fed.now, evaluate)
        for look in (*watch, *keeping):
            look(replace(caught[-1], until=until))
        caught.clear()
    last = fed.now
    return replace(fed, now=until.best or last), last, until


def next_block(fed: Federation, last: RunState, arrival: Arrive) -> Federation:
    """Apply a new block to a federation at its best round.

    Devices and server keep the best round; with `carry="last"` training continues from the last.
    """
    method = fed.method
    after = fed.apply(arrival)
    carry, reset = getattr(method, "carry", "best"), getattr(method, "reset_private", False)
    if carry == "best" and not reset:
        return after
    state, vault = after.now.state, after.now.vault
    ids = torch.arange(vault.holdings.clients, device=vault.holdings.members.device)
    first = method.model.private(ids, after.clock.at(0))
    if carry == "last":
        trained = {n: v for n, v in last.state.public.items() if not n.startswith(REFERENCE)}
        public = {n: _onto(state.public[n], v) for n, v in trained.items()}
        state = replace(state, public={**state.public, **public})
        mine = {n: _onto(vault.private[n], last.vault.private[n]) for n in first}
        vault = replace(vault, private={**vault.private, **mine})
    if reset:
        vault = replace(vault, private={**vault.private, **first})
    after = after.with_(state=state, vault=vault)
    # A rerun of this block must start from here.
    past = after.past and replace(after.past, base=after.now.point)
    return replace(after, past=past)


def _onto(grown: Tensor, rows: Tensor) -> Tensor:
    """Put old rows at the start of a table that has grown."""
    return torch.cat([rows.to(grown), grown[len(rows) :]])


def _ranking(split: str, k: tuple[int, ...], hidden: Sequence[Records]) -> Ranking:
    """Return a metric that hides training items, for the test validation items, and `hidden`."""
    mask = ("own", "valid") if split == "test" else ("own",)
    if not hidden:
        return Ranking(split=split, k=k, mask=mask)
    before = torch.cat([r.client for r in hidden]), torch.cat([r.item for r in hidden])
    return Seen(split=split, k=k, mask=mask, before=before)


def _holders(fed: Federation, metric: Ranking) -> Tensor:
    """Return members with a held-out item; the mean is over them."""
    return fed.now.vault.holdings.holders(metric.split, metric.block)


def on_block(fed: Federation, metric: Ranking) -> dict[str, float]:
    """Evaluate on the held-out items of a block."""
    return fed.evaluate(metric=metric, clients=_holders(fed, metric))


def mean(values: Sequence[float]) -> float:
    """Return the mean without NaN; NaN if there is nothing else."""
    present = [value for value in values if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan
