"""What an additive learner costs, in CPU seconds of one thread, beside copying what it must copy.

    python bench/additive.py [--json]       ML-1M: learning, forgetting, publishing
    python bench/additive.py --large        Gowalla: one round of LocalGram
    either with --write                     into the table of docs/results/additive-details.md

Timed is the server's work: it takes loans out of the sum, adds what devices sent, and updates the
inverse, all as new values. Counting on devices and moving the simulated world are not timed,
except for the round and the whole request, where everything is.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.data import Dataset, load
from rescind.data.simulated_lending import draw_groups, draw_regret, draw_share
from rescind.forgetting.claims import sum_digest
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind_papers.pages import write_block

MANY = 60
"""Requests of each kind, one after another."""
PAGE = Path(__file__).parent.parent / "docs" / "results" / "additive-details.md"

TAKEN: list[float] = []
"""Seconds of every change of a server's sum, in order."""


class Timed(Gram):
    """The additive learner with a watch on the server's part of an event."""

    def server_absorb(
        self,
        state: ServerState,
        sums: Mapping[str, Sum],
        world: World,
        lenders: Tensor | None = None,
    ) -> ServerState:
        """As ever."""
        begun = time.process_time()
        after = super().server_absorb(state, sums, world, lenders)
        TAKEN.append(time.process_time() - begun)
        return after


def lending() -> Federation:
    """ML-1M, where people lend as in FedShare; nobody has been counted."""
    data = load("ml-1m")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, Timed(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))


def after_each(fed: Federation, events: Iterable[Event]) -> tuple[Federation, float, float]:
    """One request after another: (what is left, median of the server, median of the yardstick).

    The yardstick is a copy of the inverse, which a change as a new value cannot do without; the two
    take turns, so that both see the same neighbours on this machine.
    """
    TAKEN.clear()
    copies = []
    for event in events:
        fed = fed.method.unlearn(fed, event)
        begun = time.process_time()
        fed.now.state.own["inverse"].clone()
        copies.append(time.process_time() - begun)
    return fed, median(TAKEN), median(copies)


def single_records(fed: Federation) -> Iterator[Event]:
    """People erase one record each: half of them one they lent, half one they kept."""
    held = fed.now.vault.holdings
    for lent in (True, False):
        mine = held.records[(held.split == 0) & (held.lent == lent)]
        first = torch.cat([torch.ones(1, dtype=torch.bool), mine.client[1:] != mine.client[:-1]])
        chosen = mine[first][: MANY // 2]
        for client, item in zip(chosen.client.tolist(), chosen.item.tolist(), strict=True):
            yield Erase(Records.of([client], [item]))


def whole_request(fed: Federation) -> tuple[int, int, float]:
    """FedShare's request: 30 % of the lenders take all their loans back. Everything is timed."""
    gone = draw_regret(fed.world.shared, fed.clock, 0.3)
    begun = time.process_time()
    after = fed.method.unlearn(fed, Unshare(gone))
    seconds = time.process_time() - begun
    assert sum_digest(after.now.state.own) == after.method.rebuilt(after), "not exact"
    return len(gone.client.unique()), len(gone), seconds


def peak() -> float:
    """The most memory this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and its CPU seconds."""
    begun = time.process_time()
    found = call()
    return found, time.process_time() - begun


def usual() -> list[Figure]:
    """ML-1M, where people lend as in FedShare."""
    start = lending()
    fed, learning = timed(lambda: start.run(1))
    room = peak()
    _, solving = timed(lambda: fed.method.server_solved(fed.now.state.own, fed.world))
    _, publishing = timed(lambda: fed.now.state.public[WEIGHTS])
    many, gone, request = whole_request(fed)
    leave = [Withdraw(client) for client in range(0, 40 * MANY, 40)]
    after, person, copy = after_each(fed, leave)
    after, record, _ = after_each(after, single_records(after))
    assert sum_digest(after.now.state.own) == after.method.rebuilt(after), "not exact"
    row = f"median of {MANY} in a row"
    return [
        Figure("the round with everybody, counting on devices included", learning, "s", 10),
        Figure("of it, solving", solving, "s"),
        Figure("the most memory of the process in the round", room, "GB", 1),
        Figure("the weights B from C, when they are next read", 1e3 * publishing, "ms"),
        Figure(f"forget a person: G and C as new values, {row}", 1e3 * person, "ms", 15),
        Figure("beside it: a copy of C, which new values cannot do without", 1e3 * copy, "ms"),
        Figure(f"forget a record: two parts change, {row}", 1e3 * record, "ms", 40),
        Figure(
            f"FedShare's request, {many} people take back {gone:,} records, all devices included",
            request,
            "s",
            8,
        ),
    ]


def large() -> list[Figure]:
    """Gowalla, where items have neighbours only."""
    data = load("gowalla")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, LocalGram(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))
    _, learning = timed(lambda: fed.run(1))
    return [
        Figure("the round with everybody on Gowalla", learning, "s", 180),
        Figure("the most memory of the process in it", peak(), "GB", 6),
    ]


@dataclass(frozen=True)
class Figure:
    """One thing measured, and the most it may be."""

    name: str
    value: float
    unit: str
    most: float | None = None

    @property
    def row(self) -> str:
        """For a table."""
        bound = "" if self.most is None else f"{self.most:g} {self.unit}"
        within = "" if self.most is None or self.value <= self.most else ", **above**"
        return f"| {self.name} | {self.value:.3g} {self.unit} | {bound}{within} |"


def main() -> None:
    """Measure, hold against the bounds, and print."""
    torch.set_num_threads(1)
    kind = "large" if "--large" in sys.argv[1:] else "usual"
    figures = large() if kind == "large" else usual()
    if "--json" in sys.argv[1:]:
        print(json.dumps([asdict(figure) for figure in figures]))
        return
    table = "\n".join(["| | measured | at most |", "|---|---|---|", *(f.row for f in figures)])
    print(table)
    if "--write" in sys.argv[1:]:
        write_block(PAGE, f"bench/additive.py, {kind}", table)


if __name__ == "__main__":
    main()
