"""Item-pair attack: does the item table still hold pairs that only requesting users had?

A user pulls the rows of all their items towards one vector: of a pair that no other user has, only
this user brings the rows closer. The attack reads the item table alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, draw_ids, first_table
from rescind.core import jagged
from rescind.core.federation import Federation
from rescind.core.records import Records, Unshare

FEWEST, MOST = 10, 160
"""Owners per item. With fewer, its row stays at its initial value; with more, nearly every pair has
another owner. A limit of 40 gives the same power on ML-100K, but too few pairs on ML-1M."""
ITEMS = 2500  # at most, so that their pairs fit in memory
OTHERS = 20_000  # pairs without owners for comparison: standard error .004
CELLS = 2**24


@dataclass(frozen=True)
class Pairs:
    """Pairs of items to test."""

    one: Tensor
    two: Tensor
    """[n] a requesting user had both items, no remaining user has"""
    person: Tensor
    """[n] index of the user"""
    others: tuple[Tensor, Tensor]
    """([m], [m]) pairs that no user ever had"""
    items: Tensor
    """[U] number of items of each user in pairs"""


def together(case: Case, fed: Federation) -> PerPerson | None:
    """Compute by user how often such a pair is closer than one without owners; None without pairs.

    Weighted by the number of items: the n (n - 1) / 2 pairs of n items are not independent.
    """
    item = first_table(fed)
    if item is None:
        return None
    at = case.cached("pairs", case.before, lambda: pairs_of(case))
    if not len(at.one) or not len(at.others[0]):
        return None
    # The common mean of all items says nothing about a pair.
    unit = functional.normalize(item.double().cpu() - item.double().cpu().mean(0), dim=1)
    near = torch.linalg.vecdot(unit[at.one], unit[at.two])
    usual = torch.linalg.vecdot(unit[at.others[0]], unit[at.others[1]]).sort().values
    below, upto = (torch.searchsorted(usual, near, right=r) for r in (False, True))
    fraction = (below + upto).double() / 2 / len(usual)
    value = jagged.segment_mean(fraction, at.person, len(at.items))
    return PerPerson(value, at.items.double())


def pairs_of(case: Case) -> Pairs:
    sizes = case.before.world.sizes
    counts = jagged.counts(case.trained.item, sizes.items)
    rare = ((counts >= FEWEST) & (counts <= MOST)).nonzero().squeeze(1)
    rare = draw_ids(rare, ITEMS, case.clock, "pairs of items")
    # Unshared records stay on the device and are still trained on, so nothing is deleted.
    deleted = Records.none() if isinstance(case.event, Unshare) else case.forgotten
    remaining = case.trained[~case.trained.among(deleted)]
    every = case.trained + case.valid + case.test
    no_remaining_owner = ~_both(remaining, rare, sizes.clients)
    no_owner = ~_both(every, rare, sizes.clients)
    one, two = torch.triu_indices(len(rare), len(rare), 1)
    unowned = no_owner[one, two].nonzero().squeeze(1)
    unowned = draw_ids(unowned, OTHERS, case.clock, "pairs that nobody has")
    ids = torch.unique(deleted.client)
    has_item = _has(deleted, rare, sizes.clients)[ids]
    exclusive = (no_remaining_owner & (has_item.T @ has_item > 0))[one, two].nonzero().squeeze(1)
    one_of, two_of = one[exclusive], two[exclusive]
    people, pair_index = [], []
    for part in torch.split(torch.arange(len(ids)), max(1, CELLS // max(len(exclusive), 1))):
        has = has_item[part][:, one_of] * has_item[part][:, two_of]
        person, pair = has.nonzero(as_tuple=True)
        people.append(part[person])
        pair_index.append(pair)
    person, pair = (torch.cat(p) if p else torch.zeros(0).long() for p in (people, pair_index))
    known, person = torch.unique(person, return_inverse=True)
    mine = torch.zeros(len(known), len(rare), dtype=torch.bool)
    mine[person, one_of[pair]] = True
    mine[person, two_of[pair]] = True
    others = (rare[one[unowned]], rare[two[unowned]])
    return Pairs(rare[one_of[pair]], rare[two_of[pair]], person, others, mine.sum(1))


def _has(records: Records, items: Tensor, clients: int) -> Tensor:
    """Return 1 where a client has an item. items: sorted    -> [clients, len(items)] float"""
    mine = records[torch.isin(records.item, items)]
    out = torch.zeros(clients, len(items))
    out[mine.client, torch.searchsorted(items, mine.item)] = 1.0
    return out


def _both(records: Records, items: Tensor, clients: int) -> Tensor:
    """Return whether any client has both items. [n, n] bool"""
    has = _has(records, items, clients)
    return has.T @ has > 0
