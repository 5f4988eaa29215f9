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
from dataclasses import replace
from statistics import median

import torch

from rescind.claims import rebuilt, sum_digest
from rescind.data import Dataset, load
from rescind.federation import Federation
from rescind.methods.gram import Gram
from rescind.models.gram_sides import CHANGE, LEAVE, grown_flags
from rescind.records import Erase, Event, Records, Unshare, Withdraw
from rescind.sharing import draw_groups, draw_regret, draw_share

MANY = 150
"""Requests of each kind, one after another."""
BOUNDS = {"a person": 0.015, "a record": 0.040, "the whole request": 8.0}


def lending() -> Federation:
    """ML-1M, where people lend as in FedShare, counted once."""
    data = load("ml-1m")
    assert isinstance(data, Dataset)
    fed = Federation.start(data, Gram(), seed=0)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(1)


def server_seconds(fed: Federation, event: Event) -> tuple[Federation, float]:
    """One request: as `Gram.forget` does it, with a watch on the server's part."""
    method = fed.method
    assert isinstance(method, Gram)
    after = fed.apply(event)
    asked, lenders = method._concerned(fed, after, event)
    leaving = isinstance(event, Withdraw)
    vault = fed.now.vault if leaving else after.now.vault
    sums, vault = method._asked(
        fed if leaving else after, vault, asked, LEAVE if leaving else CHANGE
    )
    state = after.now.state
    if leaving:
        flags = grown_flags(state.own, after.world)
        flags["counted"][lenders] = -1
        state = replace(state, own={**state.own, **flags})
        vault = after.now.vault
    begun = time.process_time()
    state = method.server_absorb(state, sums, after.world, lenders)
    seconds = time.process_time() - begun
    return replace(after, now=replace(after.now, state=state, vault=vault)), seconds


def people(fed: Federation) -> tuple[Federation, list[float]]:
    """Every fortieth person leaves."""
    taken = []
    for client in range(0, 40 * MANY, 40):
        fed, seconds = server_seconds(fed, Withdraw(client))
        taken.append(seconds)
    return fed, taken


def records(fed: Federation) -> tuple[Federation, list[float]]:
    """People erase one record each: half of them one they lent, half one they kept."""
    taken = []
    held = fed.now.vault.holdings
    for lent in (True, False):
        mine = held.records[(held.split == 0) & (held.lent == lent)]
        first = torch.cat([torch.ones(1, dtype=torch.bool), mine.client[1:] != mine.client[:-1]])
        chosen = mine[first][: MANY // 2]
        for client, item in zip(chosen.client.tolist(), chosen.item.tolist(), strict=True):
            fed, seconds = server_seconds(fed, Erase(Records.of([client], [item])))
            taken.append(seconds)
    return fed, taken


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
    many, records_gone, request = whole_request(fed)
    after, person = people(fed)
    after, record = records(after)
    assert sum_digest(after.now.state.own) == sum_digest(rebuilt(after)), "not exact"
    figures = {
        "a person": median(person),
        "a record": median(record),
        "the whole request": request,
    }
    said = {
        "a person": f"{MANY} in a row, median, server",
        "a record": f"{MANY} in a row, median, server",
        "the whole request": f"{many} people, {records_gone:,} records, devices included",
    }
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: {"cpu_s": v, "most": BOUNDS[name]} for name, v in figures.items()}))
        return
    for name, value in figures.items():
        verdict = "within" if value <= BOUNDS[name] else "ABOVE"
        print(f"forget {name:18} {value:8.4f} CPU s  {verdict} {BOUNDS[name]:g}  ({said[name]})")


if __name__ == "__main__":
    main()
