"""A stream of blocks: train on what arrives, remember the best round, measure every block again.

After block t the model is measured on the test items of every block s <= t: a_(t,s). Its diagonal
tells how well new things are learnt, its last row what is left of all of them at the end.
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
from rescind.core.tasks.metrics import Ranking, masked_lot
from rescind.data import Dataset
from rescind.data.blocks import block_split
from rescind.errors import ConfigError, DataError

Watch = Callable[[RoundResult], Any]


@dataclass(frozen=True, eq=False)
class Announcement(Arrive):
    """A block whose records are on machines elsewhere: how large it is, and who trains on it."""

    trains: Tensor
    """[clients] bool"""


@dataclass(frozen=True)
class Stream:
    """A first block and those that follow, as they arrive at devices."""

    first: Holdings
    later: Iterable[Arrive]
    """A generator is asked for a block when the one before is done: a stream that still runs."""
    labels: Labels = field(default_factory=Labels)

    @classmethod
    def of(cls, dataset: Dataset, seed: int = 0) -> Stream:
        """A dataset with blocks (`data.blocks`); without a split, one is drawn inside blocks."""
        if dataset.block is None:
            raise DataError(
                f"dataset '{dataset.name}' is not cut into blocks. Load it with variant='blocks', "
                f"or cut it with rescind.data.blocks.arrange."
            )
        split = dataset.split
        if split is None:
            split = block_split(dataset, dataset.block, seed)
        block = torch.tensor(dataset.block).long()
        records = Records.of(
            torch.tensor(dataset.user), torch.tensor(dataset.item), torch.tensor(dataset.time)
        )
        kind, last = torch.tensor(split), int(block.max()) if len(block) else 0
        parts = ((records[block == n], kind[block == n]) for n in range(last + 1))
        return cls.arriving(parts, Labels.of(dataset))

    @classmethod
    def arriving(
        cls, blocks: Iterable[tuple[Records, Tensor]], labels: Labels | None = None
    ) -> Stream:
        """Blocks of (records, split) that are all there; tables grow to the largest index so far.

        A record belongs to the block it arrives in, whatever its time says: late and unordered
        records are new to the device. A pair that comes twice in a block counts once.
        """
        live = cls.live(blocks, labels)
        return replace(live, later=tuple(live.later))

    @classmethod
    def live(cls, blocks: Iterable[tuple[Records, Tensor]], labels: Labels | None = None) -> Stream:
        """Blocks of (records, split) as they come: each is asked for when it is needed, once."""
        made = _arrivals(blocks)
        base = next(made, None)
        if base is None or not len(base.records):
            raise DataError("a stream needs a first block with records in it. Drop empty blocks.")
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
    """A ranking that also hides what people had in earlier blocks (`mask="all"`).

    Only the one who simulates knows this: devices do not keep earlier blocks.
    """

    before: tuple[Tensor, Tensor] = field(
        default_factory=lambda: (torch.zeros(0).long(), torch.zeros(0).long())
    )
    """(client, item) of earlier blocks."""

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Totals as usual, with more items hidden."""
        client, item = self.before
        at = torch.searchsorted(cohort.ids, client).clamp(max=max(len(cohort) - 1, 0))
        here = cohort.ids[at] == client if len(cohort) else torch.zeros_like(client).bool()
        more = Lot(at[here], item[here], len(cohort))
        return super().totals(scores, cohort, masked_lot(cohort, [masked, more]))


@dataclass(frozen=True)
class Blocks:
    """How blocks are run: the fields of a recipe's [run] that a stream uses."""

    rounds: int = 100
    """At most, in each block (F3CRec: 150 for ML-Latest-Small and Last.fm)."""
    patience: int | None = 30
    """Rounds without a better validation before a block ends."""
    every: int = 1
    """Validate after every so many rounds."""
    value: str = "NDCG@20"
    """What validation picks the round by."""
    k: tuple[int, ...] = (20,)
    """Lengths of the lists that are measured."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"a block is trained for 1 or more rounds, got {self.rounds}.")


@dataclass(frozen=True)
class Block:
    """What one block gave."""

    number: int
    begun: int
    """The round of the run it began at."""
    round: int
    """The best round, counted inside the block."""
    rounds: int
    """How many were run."""
    trained: int
    """How many clients had something to train on."""
    returning: int
    """How many of them were there before."""
    history: tuple[tuple[int, Mapping[str, float]], ...]
    test: tuple[Mapping[str, float], ...]
    """Row t of the matrix: what is measured on the test items of blocks 0..t."""


@dataclass(frozen=True)
class Streamed:
    """A finished stream: the federation, and the matrix a_(t,s)."""

    fed: Federation
    blocks: tuple[Block, ...]

    def matrix(self, value: str) -> list[list[float]]:
        """a_(t,s), s <= t, NaN where a block had no test items."""
        return [[cell[value] for cell in block.test] for block in self.blocks]

    def summary(self, value: str) -> dict[str, float]:
        """Learning, retention and their harmonic mean, and what new blocks gave."""
        return summary(self.matrix(value))


def summary(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Learning (mean diagonal), retention (mean last row), their harmonic mean; `new` is the mean
    diagonal without the first block, which is what F3CRec's Table 2 averages.

    rows: a_(t,s), s <= t
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
    """Where a stream is written down while it runs; as it stands: nowhere."""

    def found(self) -> tuple[Federation, tuple[Block, ...]] | None:
        """Where an earlier run stopped: a block that began, and what those before it gave."""
        return None

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        """A block begins."""

    def inside(
        self, fed: Federation, until: EarlyStop
    ) -> tuple[Federation, EarlyStop, tuple[Watch, ...]]:
        """Where in the block an earlier run stopped, and who watches its rounds."""
        return fed, until, ()


Answer = Callable[[int, Federation], Federation]
"""What is done after a block was trained and before the next arrives: requests are answered."""


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
    """Train on one block after another and measure all blocks so far after each."""
    how, keeper = how or Blocks(), keeper or StreamCheckpoints()
    found = keeper.found()
    done = list(found[1]) if found else []
    fed, last = found[0] if found else None, None
    seen, known = list[Records](), torch.zeros(0, dtype=torch.bool)
    for number, (arrival, there) in enumerate(_every(stream)):
        if number >= len(done):
            if last is not None and fed is not None:
                fed = next_block(fed, last, arrival)
            fed = fed or Federation.start(stream.first, method, seed, executor, stream.labels)
            keeper.begins(fed, done)
            hidden = seen if getattr(method, "mask", "block") == "all" else []
            trained, last, until = train_block(
                fed, how, _ranking("valid", how.k, hidden), watch, keeper
            )
            begun, able = fed.now.state.round, fed.world.available.cpu()
            rounds, fed = last.state.round - begun, trained
            if answer is not None:  # what was forgotten must not come back from the last round
                fed, last = _answered(answer, number, fed, last)
            asked = [replace(_ranking("test", how.k, hidden), block=s) for s in range(number + 1)]
            done.append(
                Block(
                    number=number,
                    begun=begun,
                    round=fed.now.state.round - begun,
                    rounds=rounds,
                    trained=int(able.sum()),
                    returning=int((able[: len(known)] & known).sum()),
                    history=until.history,
                    test=tuple(on_block(fed, metric) for metric in asked),
                )
            )
        known = torch.cat([known, torch.zeros(len(there) - len(known), dtype=torch.bool)]) | there
        seen.append(arrival.records)
    assert fed is not None
    return Streamed(fed, tuple(done))


def _every(stream: Stream) -> Iterator[tuple[Arrive, Tensor]]:
    """All blocks, the first one too, and who has something to train on in it. [clients] bool"""
    first = stream.first
    block = Arrive(first.records, first.split, first.clients, first.items)
    yield block, first.available.cpu()
    for block in stream.later:
        yield block, _trains(block)


def _trains(block: Arrive) -> Tensor:
    """Who has something to train on in a block. [clients] bool"""
    if isinstance(block, Announcement):
        return block.trains
    there = torch.zeros(block.clients, dtype=torch.bool)
    there[block.records.client[block.split == TRAIN].cpu()] = True
    return there


def _answered(
    answer: Answer, number: int, fed: Federation, last: RunState
) -> tuple[Federation, RunState]:
    """After the requests of a block: where it stands, and where `carry="last"` goes on from."""
    after = answer(number, fed)
    return after, last if after is fed else after.now


def train_block(
    fed: Federation,
    how: Blocks,
    metric: Ranking,
    watch: Sequence[Watch] = (),
    keeper: StreamCheckpoints | None = None,
) -> tuple[Federation, RunState, EarlyStop]:
    """The rounds of one block: (the federation at its best round, its last round, the rule).

    A block in which nobody has anything to train on leaves the model as it is; one without
    validation items is trained to the end and its last round counts as the best.
    """
    until = EarlyStop(metric=metric, value=how.value, every=how.every, patience=how.patience)
    end = fed.now.state.round + (how.rounds if bool(fed.world.available.any()) else 0)
    ids = _holders(fed, metric)
    fed, until, keeping = (keeper or StreamCheckpoints()).inside(fed, until)
    caught: list[RoundResult] = []
    while fed.now.state.round < end and not until.done:
        fed = fed.run(1, watch=[caught.append])
        if len(ids):
            until = until.update(fed.now, _asking(fed, ids))
        for look in (*watch, *keeping):
            look(replace(caught[-1], until=until))
        caught.clear()
    last = fed.now
    return replace(fed, now=until.best or last), last, until


def next_block(fed: Federation, last: RunState, arrival: Arrive) -> Federation:
    """A block arrives at a federation that stands at its best round.

    Devices and server remember the best round; with `carry="last"` training goes on from the last.
    """
    method = fed.method
    after = fed.apply(arrival)
    carry, again = getattr(method, "carry", "best"), getattr(method, "reset_private", False)
    if carry == "best" and not again:
        return after
    state, vault = after.now.state, after.now.vault
    ids = torch.arange(vault.holdings.clients, device=vault.holdings.members.device)
    first = method.model.private(ids, after.clock.at(0))
    if carry == "last":
        public = {n: _onto(state.public[n], v) for n, v in last.state.public.items() if _trained(n)}
        state = replace(state, public={**state.public, **public})
        mine = {n: _onto(vault.private[n], last.vault.private[n]) for n in first}
        vault = replace(vault, private={**vault.private, **mine})
    if again:
        vault = replace(vault, private={**vault.private, **first})
    after = after.with_(state=state, vault=vault)
    # Whoever trains this block again must begin where it began.
    past = after.past and replace(after.past, base=after.now.point)
    return replace(after, past=past)


def _trained(name: str) -> bool:
    return not name.startswith(REFERENCE)


def _onto(grown: Tensor, rows: Tensor) -> Tensor:
    """Rows of before at the head of a table that has grown since."""
    return torch.cat([rows.to(grown), grown[len(rows) :]])


def _ranking(split: str, k: tuple[int, ...], hidden: Sequence[Records]) -> Ranking:
    """How a block is measured: hidden are its training items, for the test its validation items
    too, and those of earlier blocks where they are given.
    """
    mask = ("own", "valid") if split == "test" else ("own",)
    if not hidden:
        return Ranking(split=split, k=k, mask=mask)
    before = torch.cat([r.client for r in hidden]), torch.cat([r.item for r in hidden])
    return Seen(split=split, k=k, mask=mask, before=before)


def _holders(fed: Federation, metric: Ranking) -> Tensor:
    """Members with a held-out item: the mean is over them, the others need not be scored."""
    return fed.now.vault.holdings.holders(metric.split, metric.block)


def _asking(fed: Federation, ids: Tensor) -> Callable[[RunState, Metric], dict[str, float]]:
    """What a stopping rule asks with: the federation as it stands, some members only."""
    return lambda _, metric: fed.evaluate(metric=metric, clients=ids)


def on_block(fed: Federation, metric: Ranking) -> dict[str, float]:
    """Quality on the held-out items of a block."""
    return fed.evaluate(metric=metric, clients=_holders(fed, metric))


def mean(values: Sequence[float]) -> float:
    """The mean of what was measured; NaN if nothing was."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan
