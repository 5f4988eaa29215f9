"""Small worlds for tests: made from the clock, the same on every machine, nothing downloaded."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN, VALID, Holdings
from rescind.core.method import Method
from rescind.core.records import Arrive, Records, Share
from rescind.data.simulated_lending import draw_share

Pair = tuple[int, int]


def hoarder(clients: int = 6) -> int:
    """The client that trains on every item but one (that one is its test item)."""
    return clients - 2


def silent(clients: int = 6) -> int:
    """The client with a test item and nothing to train on."""
    return clients - 1


def tiny_rows(clients: int, items: int, seed: int) -> list[tuple[int, int, int, int]]:
    """(client, item, time, split) of every record: one valid, one test, at least two to train."""
    clock = Clock(seed)
    rows = []
    for client in range(clients):
        order = torch.argsort(clock.bits("tiny order", torch.tensor(client), torch.arange(items)))
        liked = order.tolist()
        if client == hoarder(clients):
            splits = [TEST] + [TRAIN] * (items - 1)
        elif client == silent(clients):
            splits = [TEST]
        else:
            many = 2 + int(clock.integers("tiny count", torch.tensor(client), 0, items // 2 - 1))
            splits = [TEST, VALID] + [TRAIN] * many
        for place, (item, split) in enumerate(zip(liked, splits, strict=False)):
            rows.append((client, item, 1_000 + 10 * client + place, split))
    return rows


def tiny_holdings(clients: int = 6, items: int = 12, seed: int = 0) -> Holdings:
    """Clients with a few items each, one that owns nearly all, one with nothing to train on."""
    rows = tiny_rows(clients, items, seed)
    records = Records.of(*([row[column] for row in rows] for column in range(3)))
    return Holdings.of(records, torch.tensor([row[3] for row in rows]), clients, items)


def next_block(clients: int = 6, items: int = 12, seed: int = 1) -> Arrive:
    """A block to follow: other items of the same clients, or of more clients and more items."""
    rows = tiny_rows(clients, items, seed)
    records = Records.of(*([row[column] for row in rows] for column in range(3)))
    return Arrive(records, torch.tensor([row[3] for row in rows]), clients, items)


def lendable(holdings: Holdings, *clients: int) -> Records:
    """The training records of some clients (or all): what is held out cannot be lent."""
    mine = holdings.split == TRAIN
    if clients:
        mine &= torch.isin(holdings.records.client, torch.tensor(clients))
    return holdings.records[mine]


def begin(method: Method, *lenders: int, executor: InProcess | None = None) -> Federation:
    """Nine clients with fourteen items, of whom some lend all that they train on."""
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2, executor=executor)
    if lenders:
        fed = fed.apply(Share(lendable(fed.now.vault.holdings, *lenders)))
    return fed


def begin_in_groups(method: Method, executor: InProcess | None = None) -> Federation:
    """Nine clients: 0-2 lend everything, 3-5 half, the rest nothing."""
    fed = begin(method, executor=executor)
    groups = torch.tensor([2, 2, 2, 1, 1, 1, 0, 0, 0])
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def scores(fed: Federation, *ids: int) -> Tensor:
    """The scores of some clients, or of all."""
    who = torch.tensor(ids) if ids else torch.arange(fed.world.sizes.clients)
    cohort = InProcess().cohort(fed.method, fed.now.vault, who)
    return fed.method.client_scores(fed.now.state.public, fed.now.vault.read(who), cohort)


def pairs(records: Records) -> set[Pair]:
    """The (client, item) pairs as a plain set."""
    return set(zip(records.client.tolist(), records.item.tolist(), strict=True))


def held(holdings: Holdings, name: str, block: int | None = None) -> set[Pair]:
    """A lot as plain pairs."""
    lot = holdings.of_clients(name, torch.arange(holdings.clients), block)
    return set(zip(lot.owner.tolist(), lot.item.tolist(), strict=True))


def randoms(*shape: int, seed: int = 0, purpose: str = "test") -> Tensor:
    """Standard normal float64 numbers of this shape."""
    many = torch.arange(torch.Size(shape).numel())
    return Clock(seed).normal(purpose, many).view(shape)
