"""What an item table remembers of people: items that only those who asked had together.

A person pulls the rows of all their items towards one vector. Where nobody else has two items, what
brings their rows together is that person alone; so the table is asked about pairs, and rows of
people, answers and the graph are left out. It sees loans and what never left a device alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, some
from rescind.core import jagged
from rescind.core.federation import Federation
from rescind.core.records import Records, Unshare

FEWEST, MOST = 10, 160
"""People who have an item. With fewer, its row lies where it first was; with more, two items are
hardly had by nobody else. Up to 40 the no-op stands out as far on ML-100K, but on ML-1M too few
pairs are left to say so."""
ITEMS = 2500  # of these at most, so that their pairs fit in memory
OTHERS = 20_000  # pairs that nobody has: what is usual, to a standard error of .004
CELLS = 2**24


@dataclass(frozen=True)
class Pairs:
    """Pairs of items that are asked about."""

    one: Tensor
    two: Tensor
    """[n] items that somebody who asked had both of, and nobody who stays has"""
    person: Tensor
    """[n] the place of who had them"""
    others: tuple[Tensor, Tensor]
    """([m], [m]) items that nobody ever had both of"""
    items: Tensor
    """[U] how many items of each person are in pairs"""


def together(case: Case, fed: Federation) -> PerPerson | None:
    """How often such a pair is closer than one that nobody has, by person; None without any.

    Weighted by a person's items: of n items there are n (n - 1) / 2 pairs, which hang together.
    """
    item = next(
        (v for n in fed.method.model.tables if (v := fed.now.state.public[n]).dim() == 2), None
    )
    if item is None:
        return None
    at = case.once("pairs", case.before, lambda: pairs_of(case))
    if not len(at.one) or not len(at.others[0]):
        return None
    # What all items have in common says nothing about two of them.
    unit = functional.normalize(item.double().cpu() - item.double().cpu().mean(0), dim=1)
    near = torch.linalg.vecdot(unit[at.one], unit[at.two])
    usual = torch.linalg.vecdot(unit[at.others[0]], unit[at.others[1]]).sort().values
    below, upto = (torch.searchsorted(usual, near, right=r) for r in (False, True))
    share = (below + upto).double() / 2 / len(usual)
    value = jagged.segment_mean(share, at.person, len(at.items))
    return PerPerson(value, at.items.double())


def pairs_of(case: Case) -> Pairs:
    """The pairs of a request, and those that nobody has."""
    sizes = case.before.world.sizes
    often = jagged.counts(case.trained.item, sizes.items)
    rare = ((often >= FEWEST) & (often <= MOST)).nonzero().squeeze(1)
    rare = some(rare, ITEMS, case.clock, "pairs of items")
    # Who unshares keeps the records and goes on training on them: nothing is gone.
    gone = Records.none() if isinstance(case.event, Unshare) else case.forgotten
    stays = case.trained[~case.trained.among(gone)]
    every = case.trained + case.valid + case.test
    nobody_stays = ~_both(stays, rare, sizes.clients)
    nobody_had = ~_both(every, rare, sizes.clients)
    one, two = torch.triu_indices(len(rare), len(rare), 1)
    free = nobody_had[one, two].nonzero().squeeze(1)
    free = some(free, OTHERS, case.clock, "pairs that nobody has")
    ids = torch.unique(gone.client)
    theirs = _has(gone, rare, sizes.clients)[ids]
    alone = (nobody_stays & (theirs.T @ theirs > 0))[one, two].nonzero().squeeze(1)
    one_of, two_of = one[alone], two[alone]
    who, which = [], []
    for part in torch.split(torch.arange(len(ids)), max(1, CELLS // max(len(alone), 1))):
        has = theirs[part][:, one_of] * theirs[part][:, two_of]
        person, pair = has.nonzero(as_tuple=True)
        who.append(part[person])
        which.append(pair)
    person, pair = (torch.cat(p) if p else torch.zeros(0).long() for p in (who, which))
    known, person = torch.unique(person, return_inverse=True)
    mine = torch.zeros(len(known), len(rare), dtype=torch.bool)
    mine[person, one_of[pair]] = True
    mine[person, two_of[pair]] = True
    others = (rare[one[free]], rare[two[free]])
    return Pairs(rare[one_of[pair]], rare[two_of[pair]], person, others, mine.sum(1))


def _has(records: Records, items: Tensor, clients: int) -> Tensor:
    """1 where a client has an item. items: sorted    -> [clients, len(items)] float"""
    mine = records[torch.isin(records.item, items)]
    out = torch.zeros(clients, len(items))
    out[mine.client, torch.searchsorted(items, mine.item)] = 1.0
    return out


def _both(records: Records, items: Tensor, clients: int) -> Tensor:
    """Whether anybody has both of two items. [n, n] bool"""
    has = _has(records, items, clients)
    return has.T @ has > 0
