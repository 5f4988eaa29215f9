"""Measure how many complete histories leak from views of an additive learner, per privacy setting.

Every view is attacked by peeling (`experiments.peeling_attack`). The column "nothing set" is the
control: if the attack finds nothing there, the other columns mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.audits.defences import noise_for
from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.records import Withdraw
from rescind.data import Dataset
from rescind.experiments.peeling_attack import SLACK, Peeled, gram_from_weights, peel, peel_ordered
from rescind.methods.additive._exchange import Lent, parts_of_loans
from rescind.methods.additive._notes import from_bits
from rescind.methods.additive._ordered import Nearness, add_sequences
from rescind.methods.additive._pairs import mirrored, pair_sums, square, weight_of
from rescind.methods.additive._release import Dial
from rescind.methods.additive.gram import Gram, gram_of
from rescind.privacy.shares import client_shares

COHORTS = (10, 30, 100, 256)
"""Numbers of users in a sum opened by secure aggregation: additive.md section 4."""
LEAVERS = 5
"""Number of users who leave between two releases."""
NEIGHBOURS, FACTORS, EPSILON = 50, 128, 8.0
"""Settings of the truncated releases and of the noise; see additive.md for the accuracy."""
UNDEFENDED = "nothing set"
Progress = Callable[[str, int, int], Any]
Cache = dict[tuple[Any, ...], Peeled]


@dataclass(frozen=True)
class Seen:
    """One view of one learner: a symmetric matrix in units of 1 / 4096, exact or reconstructed."""

    view: str
    gram: Callable[[], Tensor]
    exact: bool
    """The numbers on the server, which release settings do not change."""
    truth: frozenset[frozenset[int]]
    """The histories in this view."""


def dials(people: int, delta: float = 1e-5) -> dict[str, Gram]:
    """Return the settings to compare, one changed at a time, by column name."""
    few = max(10, people // 60)  # additive.md: 100 of the 6,040 people of ML-1M
    noise = noise_for(EPSILON, delta, 2)
    return {
        UNDEFENDED: Gram(),
        f"min_count = {few}": Gram(min_count=few),
        f"{NEIGHBOURS} neighbours": Gram(release="neighbours", release_size=NEIGHBOURS),
        f"{FACTORS} factors": Gram(release="factors", release_size=FACTORS),
        f"release_every = {LEAVERS}": Gram(release_every=LEAVERS),
        f"noise, epsilon {EPSILON:g} in two releases": Gram(noise=noise, longest_history=1),
        "servers = 2": Gram(servers=2),
    }


def peeled_lines(
    dataset: Dataset, seed: int = 0, progress: Progress = lambda *_: None
) -> list[dict[str, Any]]:
    """Measure a line per setting and view: complete histories found, and how many there are.

    No user lends, so all histories found are private.
    """
    lines: list[dict[str, Any]] = []
    cache: Cache = {}
    compared = dials(len(dataset.users))
    for number, (name, method) in enumerate(compared.items(), 1):
        lines += _lines(name, Federation.start(dataset, method, seed).run(1), cache)
        progress(name, number, len(compared))
    return lines


def peeled_run(fed: Federation) -> list[dict[str, Any]]:
    """Measure the lines of a run with its settings, and of the same users with nothing set."""
    gram_of(fed)  # refuses other methods
    defaults = {name: getattr(Dial(), name) for name in Dial.__dataclass_fields__}
    plain = replace(fed, executor=InProcess()).restart(replace(fed.method, **defaults)).run(1)
    cache: Cache = {}
    lines = _lines(UNDEFENDED, plain, cache)
    return lines if plain.method == fed.method else lines + _lines("as it is set", fed, cache)


def _lines(name: str, fed: Federation, cache: Cache) -> list[dict[str, Any]]:
    """Measure the lines of one setting. cache: results on the server's numbers"""
    method = gram_of(fed)
    longest, out = method.longest_history, []
    for seen in views(fed):
        key = (seen.view, longest, method.servers) if seen.exact else (seen.view, name)
        if key not in cache:
            cache[key] = peel(seen.gram(), 0.0 if seen.exact else SLACK, longest)
        found, about = cache[key], {"dial": name, "view": seen.view}
        counts = {"found": found.right(set(seen.truth)), "claimed": len(found.histories)}
        out.append({**about, **counts, "people": len(seen.truth)})
    return out


def views(fed: Federation) -> Iterator[Seen]:
    """Yield what a server or a device of this learner can see."""
    method = gram_of(fed)
    by_client = histories(fed)
    clients = torch.tensor(sorted(by_client))
    order = clients[torch.argsort(fed.clock.at(0).bits("peeled", clients), stable=True)]

    def of(ids: Tensor) -> frozenset[frozenset[int]]:
        return frozenset(history for client in ids.tolist() for history in by_client[client])

    yield Seen("the sum that the server keeps", lambda: whole(fed), True, of(clients))
    for count in COHORTS:
        if count < len(order):
            ids = order[:count].sort().values
            incoming = partial(_incoming, fed, ids)
            yield Seen(f"what comes in from {count} people", incoming, True, of(ids))
    weights = fed.now.state.public["weights"]
    read = partial(gram_from_weights, ridge=method.ridge)
    yield Seen("the published weights", partial(read, weights), False, of(clients))
    rounded = weights.half().float()
    yield Seen("the same in float16", partial(read, rounded), False, of(clients))
    remaining = fed
    for client in order[:LEAVERS].tolist():
        remaining = method.unlearn(remaining, Withdraw(client))
    left, between = of(order[:LEAVERS]), f"{LEAVERS} people left between"
    yield Seen(f"two sums, {between}", lambda: whole(fed) - whole(remaining), True, left)
    later = remaining.now.state.public["weights"]
    yield Seen(f"two releases, {between}", lambda: read(weights) - read(later), False, left)


def histories(fed: Federation) -> dict[int, list[frozenset[int]]]:
    """Return the counted histories of each user: private and lent records."""
    held = fed.now.vault.holdings
    ids = torch.arange(held.clients)
    lot = held.of_clients("own" if fed.method.local_includes_shared else "unshared", ids)
    found = {client: [mine] for client, mine in _sets(lot.owner, lot.item).items()}
    if not fed.method.local_includes_shared:
        lent = parts_of_loans(Lent.of(fed.now.state.own))
        for part, mine in _sets(lent.lot.owner, lent.lot.item).items():
            found.setdefault(int(lent.client[part]), []).append(mine)
    for name, bits in fed.now.vault.private.items():  # of earlier blocks
        if name.startswith("sent/") and int(name[-4:]) < fed.world.block:
            noted = from_bits(bits)
            for client, mine in _sets(noted.owner, noted.item).items():
                found.setdefault(client, []).append(mine)
    return found


def _sets(owner: Tensor, item: Tensor) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {}
    for client, liked in zip(owner.tolist(), item.tolist(), strict=True):
        found.setdefault(client, set()).add(liked)
    return {client: frozenset(mine) for client, mine in found.items()}


def whole(fed: Federation) -> Tensor:
    """Return the sum of all blocks. [I, I] symmetric, in units of 1 / 4096"""
    return _full(fed.now.state.own, fed.world.sizes.items)


def _full(sums: Params, items: int) -> Tensor:
    total = torch.stack([v.long() for n, v in sums.items() if n.startswith("gram/")]).sum(0)
    lower = square(total, items)
    return lower + lower.tril(-1).T


def _incoming(fed: Federation, ids: Tensor) -> Tensor:
    """Return what one server receives for these users: their sum, or its secret share."""
    method = gram_of(fed)
    first = replace(fed, executor=InProcess()).restart().now
    cohort = InProcess().cohort(method, first.vault, ids)
    total, _ = method.client_sum(first.state.public, first.vault.read(ids), cohort, fed.clock)
    sums = {name: value.squeeze(1) for name, value in total.totals.items()}
    if method.servers == 2:  # the share of the server that gets masked numbers
        shares = {name: client_shares(value.long())[1] for name, value in sums.items()}
        sums = {n: torch.from_numpy(share.view(np.int64).copy()) for n, share in shares.items()}
    return _full(sums, fed.world.sizes.items)


def grid(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    """Return (settings, rows): a row is (view, number of histories, found by setting)."""
    names = list(dict.fromkeys(line["dial"] for line in lines))
    by_place = {(line["view"], line["dial"]): line for line in lines}
    rows = []
    for view in dict.fromkeys(line["view"] for line in lines):
        cells = [by_place.get((view, name)) for name in names]
        people = max(cell["people"] for cell in cells if cell)
        rows.append((view, people, [str(cell["found"]) if cell else "" for cell in cells]))
    return names, rows


PEOPLE = (1, 10, 100, None)
"""How many people a sum is of; None: everybody. One person is the control: all must be found."""


def ordered_leaks(
    holdings: Holdings, near: Nearness, progress: Callable[[int], Any] = lambda _: None
) -> list[dict[str, int]]:
    """Return a line for each number of people in the sum; `Gram` stands beside."""
    everybody = holdings.available.nonzero().squeeze(1)
    order = everybody[torch.argsort(Clock(0).bits("peeled", everybody), stable=True)]
    lines = []
    for people in PEOPLE:
        if people is None or people < len(order):
            lines.append(attacked(holdings, near, order[:people].sort().values))
            progress(len(order[:people]))
    return lines


def attacked(holdings: Holdings, near: Nearness, ids: Tensor) -> dict[str, int]:
    """Count the sequences that are read from the sums of these people, whole and in order."""
    lot = holdings.cohort(ids, ordered=True).own
    assert lot.time is not None
    total = torch.zeros(holdings.items**2, 2, dtype=torch.int64)
    add_sequences(total, lot, torch.ones(lot.clients).long(), near)
    truth = set()
    for person in range(lot.clients):
        mine = lot.owner == person
        truth.add(tuple(lot.item[mine][torch.argsort(lot.time[mine])].tolist()))
    read = peel_ordered(total, near)
    plain, _ = pair_sums(lot, weight_of(lot.count), holdings.items)
    sequences = {frozenset(mine) for mine in truth}
    return {
        "people": len(ids),
        "in order": len(truth & set(read)),
        "as a set": len(sequences & {frozenset(mine) for mine in read}),
        "as a set, from Gram": peel(mirrored(plain)).right(sequences),
    }
