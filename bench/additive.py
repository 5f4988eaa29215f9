"""Time an additive learner in CPU seconds of one thread.

    python bench/additive.py [--json]       ML-1M: learning, forgetting, publishing
    python bench/additive.py --large        Gowalla: one round of LocalGram
    either with --write                     writes the table of docs/results/additive-details.md

Only the server's work is timed: removing loans from the sum, adding what devices sent, and updating
the inverse, all as new tensors. The round and the whole request include the devices and the
simulated world.
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
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.receipts.claims import sum_digest
from rescind_papers.pages import write_block

REQUESTS = 60
"""Number of requests of each kind."""
PAGE = Path(__file__).parent.parent / "docs" / "results" / "additive-details.md"

TAKEN: list[float] = []
"""Seconds of every change of the server's sum, in order."""


class Timed(Gram):
    """The additive learner, with the server's part of an event timed."""

    def server_absorb(
        self,
        state: ServerState,
        sums: Mapping[str, Sum],
        world: World,
        lenders: Tensor | None = None,
    ) -> ServerState:
        """Call the base method and record its time."""
        start = time.process_time()
        after = super().server_absorb(state, sums, world, lenders)
        TAKEN.append(time.process_time() - start)
        return after


def lending() -> Federation:
    """Load ML-1M with lenders as in FedShare, before the first round."""
    data = load("ml-1m")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, Timed(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))


def after_each(fed: Federation, events: Iterable[Event]) -> tuple[Federation, float, float]:
    """Answer all requests. Return (federation, median server time, median time of a copy).

    The copy of the inverse is the minimum cost of a change as a new tensor. Both are timed in turn,
    so that other load on the machine affects both.
    """
    TAKEN.clear()
    copies = []
    for event in events:
        fed = fed.method.unlearn(fed, event)
        start = time.process_time()
        fed.now.state.own["inverse"].clone()
        copies.append(time.process_time() - start)
    return fed, median(TAKEN), median(copies)


def single_records(fed: Federation) -> Iterator[Event]:
    """Yield requests to erase one record: half of them lent, half not lent."""
    held = fed.now.vault.holdings
    for lent in (True, False):
        mine = held.records[(held.split == 0) & (held.lent == lent)]
        first = torch.cat([torch.ones(1, dtype=torch.bool), mine.client[1:] != mine.client[:-1]])
        chosen = mine[first][: REQUESTS // 2]
        for client, item in zip(chosen.client.tolist(), chosen.item.tolist(), strict=True):
            yield Erase(Records.of([client], [item]))


def whole_request(fed: Federation) -> tuple[int, int, float]:
    """Time FedShare's request: 30 % of the lenders take back all loans, devices included."""
    loans = draw_regret(fed.world.shared, fed.clock, 0.3)
    start = time.process_time()
    after = fed.method.unlearn(fed, Unshare(loans))
    seconds = time.process_time() - start
    assert sum_digest(after.now.state.own) == after.method.rebuilt(after), "not exact"
    return len(loans.client.unique()), len(loans), seconds


def peak() -> float:
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function. Return its result and CPU seconds."""
    start = time.process_time()
    found = call()
    return found, time.process_time() - start


def usual() -> list[Figure]:
    """Measure ML-1M with lenders as in FedShare."""
    start = lending()
    start.run(1)  # so that numba is imported, and its loops are there
    fed, learning = timed(lambda: start.run(1))
    memory = peak()
    _, solving = timed(lambda: fed.method.server_solved(fed.now.state.own, fed.world))
    _, publishing = timed(lambda: fed.now.state.public[WEIGHTS])
    count, gone, request = whole_request(fed)
    leave = [Withdraw(client) for client in range(0, 40 * REQUESTS, 40)]
    after, person, copy = after_each(fed, leave)
    after, record, _ = after_each(after, single_records(after))
    assert sum_digest(after.now.state.own) == after.method.rebuilt(after), "not exact"
    row = f"median of {REQUESTS} in a row"
    return [
        Figure("the round with everybody, counting on devices included", learning, "s", 2),
        Figure("of it, solving", solving, "s"),
        Figure("the most memory of the process in the round", memory, "GB", 1),
        Figure("the weights B from C, when they are next read", 1e3 * publishing, "ms"),
        Figure(f"forget a person: G and C as new values, {row}", 1e3 * person, "ms", 15),
        Figure("beside it: a copy of C, which new values cannot do without", 1e3 * copy, "ms"),
        Figure(f"forget a record: two parts change, {row}", 1e3 * record, "ms", 40),
        Figure(
            f"FedShare's request, {count} people take back {gone:,} records, all devices included",
            request,
            "s",
            8,
        ),
    ]


def large() -> list[Figure]:
    """Measure LocalGram on Gowalla."""
    data = load("gowalla")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, LocalGram(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))
    _, learning = timed(lambda: fed.run(1))
    return [
        Figure("the round with everybody on Gowalla, first call of its loops", learning, "s", 30),
        Figure("the most memory of the process in it", peak(), "GB", 6),
    ]


@dataclass(frozen=True)
class Figure:
    """One measured value and its limit."""

    name: str
    value: float
    unit: str
    most: float | None = None

    @property
    def row(self) -> str:
        """A row of the table."""
        bound = "" if self.most is None else f"{self.most:g} {self.unit}"
        within = "" if self.most is None or self.value <= self.most else ", **above**"
        return f"| {self.name} | {self.value:.3g} {self.unit} | {bound}{within} |"


def main() -> None:
    """Measure and print the table."""
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
