"""What forgetting costs an additive learner on ML-1M, in CPU seconds of one thread.

    python bench/additive.py [--json]

Timed is the server's work: it takes loans out of the sum, adds what devices sent, and updates the
inverse, all as new values. Counting on devices and moving the simulated world are not timed,
except for the whole request, where everything is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

import torch
from torch import Tensor

from rescind.claims import rebuilt, sum_digest
from rescind.data import Dataset, load
from rescind.federation import Federation
from rescind.methods.gram import Gram
from rescind.records import Erase, Event, Records, Unshare, Withdraw
from rescind.sharing import draw_groups, draw_regret, draw_share
from rescind.state import ServerState
from rescind.update import Sum
from rescind.world import World

MANY = 150
"""Requests of each kind, one after another."""
BOUNDS = {"a person": 0.015, "a record": 0.040, "the whole request": 8.0}


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
    """ML-1M, where people lend as in FedShare, counted once."""
    data = load("ml-1m")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, Timed(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(1)


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
    assert sum_digest(after.now.state.own) == sum_digest(rebuilt(after)), "not exact"
    return len(gone.client.unique()), len(gone), seconds


def main() -> None:
    """Measure, hold against the bounds, and print."""
    torch.set_num_threads(1)
    fed = lending()
    many, gone, request = whole_request(fed)
    leave = [Withdraw(client) for client in range(0, 40 * MANY, 40)]
    after, person, copy = after_each(fed, leave)
    after, record, again = after_each(after, single_records(after))
    assert sum_digest(after.now.state.own) == sum_digest(rebuilt(after)), "not exact"
    in_a_row = f"{MANY} in a row, median, server"
    figures = [
        ("a person", person, f"{in_a_row}; copying the inverse takes {copy:.4f}"),
        ("a record", record, f"{in_a_row}; copying the inverse takes {again:.4f}"),
        ("the whole request", request, f"{many} people, {gone:,} records, devices included"),
    ]
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: {"cpu_s": v, "most": BOUNDS[name]} for name, v, _ in figures}))
        return
    for name, value, said in figures:
        verdict = "within" if value <= BOUNDS[name] else "ABOVE"
        print(f"forget {name:18} {value:8.4f} CPU s  {verdict} {BOUNDS[name]:g}  ({said})")


if __name__ == "__main__":
    main()
