"""What an additive learner gives away to whoever sees a part of it, dial setting by dial setting.

Every view is attacked by peeling (`audits.peeling`): how many complete histories come out. The
column "nothing set" is the control; an attack that finds nothing there says nothing of the rest.
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
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.params import Params
from rescind.core.records import Withdraw
from rescind.data import Dataset
from rescind.experiments.peeling_attack import SLACK, Peeled, gram_from_weights, peel
from rescind.methods.additive._exchange import Lent, parts_of_loans
from rescind.methods.additive._pairs import from_bits, square
from rescind.methods.additive._release import Dial
from rescind.methods.additive.gram import Gram
from rescind.privacy.two_servers import client_shares

COHORTS = (10, 30, 100, 256)
"""People in a sum, as secure aggregation would open it: additive.md section 4."""
LEAVERS = 5
"""People who leave between two releases."""
NEIGHBOURS, FACTORS, EPSILON = 50, 128, 8.0
"""The settings of the cut forms and of the noise; additive.md keeps about as much accuracy."""
UNDEFENDED = "nothing set"
Watch = Callable[[str, int, int], Any]
Known = dict[tuple[Any, ...], Peeled]


@dataclass(frozen=True)
class Seen:
    """One view of one learner: a symmetric matrix in units of 1 / 4096, exact or read off."""

    view: str
    gram: Callable[[], Tensor]
    exact: bool
    """The server's own numbers, which no setting of a release changes."""
    truth: frozenset[frozenset[int]]
    """The histories that could be found in it."""


def dials(people: int, delta: float = 1e-5) -> dict[str, Gram]:
    """The settings that are compared, each alone, by what a table calls it."""
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
    dataset: Dataset, seed: int = 0, watch: Watch = lambda *_: None
) -> list[dict[str, Any]]:
    """A line for each setting and view: how many complete histories are found, of how many.

    Nobody lends: what is read out is what people kept to themselves.
    """
    lines: list[dict[str, Any]] = []
    known: Known = {}
    compared = dials(len(dataset.users))
    for done, (name, method) in enumerate(compared.items(), 1):
        fed = Federation.start(dataset, method, seed).run(1)
        lines += _lines(name, fed, known)
        watch(name, done, len(compared))
    return lines


def peeled_run(fed: Federation) -> list[dict[str, Any]]:
    """The lines of a run as it is set, beside those of the same people with nothing set."""
    assert isinstance(fed.method, Gram)
    off = {name: getattr(Dial(), name) for name in Dial.__dataclass_fields__}
    plain = replace(fed, executor=InProcess()).restart(replace(fed.method, **off)).run(1)
    known: Known = {}
    lines = _lines(UNDEFENDED, plain, known)
    if plain.method == fed.method:
        return lines
    return [*lines, *_lines("as it is set", fed, known)]


def _lines(name: str, fed: Federation, known: Known) -> list[dict[str, Any]]:
    """known: what was found in the server's own numbers, which few settings change"""
    method = fed.method
    assert isinstance(method, Gram)
    longest, out = method.longest_history, []
    for seen in views(fed):
        place = (seen.view, longest, method.servers) if seen.exact else (seen.view, name)
        if place not in known:
            known[place] = peel(seen.gram(), 0.0 if seen.exact else SLACK, longest)
        out.append(_line(name, seen, known[place]))
    return out


def _line(name: str, seen: Seen, found: Peeled) -> dict[str, Any]:
    truth = set(seen.truth)
    return {"dial": name, "view": seen.view, "found": found.right(truth),
            "claimed": len(found.histories), "people": len(truth)}  # fmt: skip


# -- who sees what --------------------------------------------------------------------------------


def views(fed: Federation) -> Iterator[Seen]:
    """What a server, or a device, of this learner gets to see."""
    method = fed.method
    assert isinstance(method, Gram)
    mine = histories(fed)
    there = torch.tensor(sorted(mine))
    order = there[torch.argsort(fed.clock.at(0).bits("peeled", there), stable=True)]
    everybody = _all(mine, there.tolist())
    yield Seen("the sum that the server keeps", lambda: whole(fed), True, everybody)
    for many in COHORTS:
        if many < len(order):
            ids = order[:many].sort().values
            truth = _all(mine, ids.tolist())
            incoming = partial(_incoming, fed, ids)
            yield Seen(f"what comes in from {many} people", incoming, True, truth)
    weights = fed.now.state.public["weights"]
    read = partial(gram_from_weights, ridge=method.ridge)
    yield Seen("the published weights", partial(read, weights), False, everybody)
    rounded = weights.half().float()
    yield Seen("the same in float16", partial(read, rounded), False, everybody)
    left = fed
    for client in order[:LEAVERS].tolist():
        left = method.unlearn(left, Withdraw(client))
    gone = _all(mine, order[:LEAVERS].tolist())
    between = f"{LEAVERS} people left between"
    yield Seen(f"two sums, {between}", lambda: whole(fed) - whole(left), True, gone)
    later = left.now.state.public["weights"]
    yield Seen(f"two releases, {between}", lambda: read(weights) - read(later), False, gone)


def histories(fed: Federation) -> dict[int, list[frozenset[int]]]:
    """What is counted of each person: what they kept, and what they lent."""
    held = fed.now.vault.holdings
    ids = torch.arange(held.clients)
    lot = held.of_clients("own" if fed.method.local_includes_shared else "unshared", ids)
    found = {client: [mine] for client, mine in _sets(lot.owner, lot.item).items()}
    if not fed.method.local_includes_shared:
        lent = parts_of_loans(Lent.of(fed.now.state.own))
        for part, mine in _sets(lent.lot.owner, lent.lot.item).items():
            found.setdefault(int(lent.client[part]), []).append(mine)
    for name, bits in fed.now.vault.private.items():  # of blocks that are over
        if name.startswith("sent/") and int(name[-4:]) < fed.world.block:
            noted = from_bits(bits)
            for client, mine in _sets(noted.owner, noted.item).items():
                found.setdefault(client, []).append(mine)
    return found


def _sets(owner: Tensor, item: Tensor) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {}
    for who, what in zip(owner.tolist(), item.tolist(), strict=True):
        found.setdefault(who, set()).add(what)
    return {who: frozenset(mine) for who, mine in found.items()}


def _all(
    mine: Mapping[int, Sequence[frozenset[int]]], clients: Sequence[int]
) -> frozenset[frozenset[int]]:
    return frozenset(history for client in clients for history in mine[client])


def whole(fed: Federation) -> Tensor:
    """The sum of all blocks. [I, I] symmetric, in units of 1 / 4096"""
    return _full(fed.now.state.own, fed.world.sizes.items)


def _full(sums: Params, items: int) -> Tensor:
    total = torch.stack([v.long() for n, v in sums.items() if n.startswith("gram/")]).sum(0)
    lower = square(total, items)
    return lower + lower.tril(-1).T


def _incoming(fed: Federation, ids: Tensor) -> Tensor:
    """What reaches one server while these people are counted: their sum, or its share of it."""
    method = fed.method
    assert isinstance(method, Gram)
    first = replace(fed, executor=InProcess()).restart().now
    cohort = InProcess().cohort(method, first.vault, ids)
    total, _ = method.client_sum(first.state.public, first.vault.read(ids), cohort, fed.clock)
    sums = {name: value.squeeze(1) for name, value in total.totals.items()}
    if method.servers == 2:
        sums = {n: _share(value.long()) for n, value in sums.items()}
    return _full(sums, fed.world.sizes.items)


def _share(values: Tensor) -> Tensor:
    """What the server gets that is sent the masked numbers; the other one gets a seed."""
    return torch.from_numpy(client_shares(values)[1].view(np.int64).copy())


# -- the table ------------------------------------------------------------------------------------


def grid(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    """(settings, rows): a row is (view, histories there, found by setting)."""
    names = list(dict.fromkeys(line["dial"] for line in lines))
    by_place = {(line["view"], line["dial"]): line for line in lines}
    rows = []
    for view in dict.fromkeys(line["view"] for line in lines):
        cells = [by_place.get((view, name)) for name in names]
        people = max(cell["people"] for cell in cells if cell)
        rows.append((view, people, [str(cell["found"]) if cell else "" for cell in cells]))
    return names, rows


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """The table of a page."""
    names, rows = grid(lines)
    out = [f"| complete histories read out of | there | {' | '.join(names)} |"]
    out.append("|---|" + "---|" * (len(names) + 1))
    out += [f"| {view} | {people} | {' | '.join(cells)} |" for view, people, cells in rows]
    return "\n".join(out)
