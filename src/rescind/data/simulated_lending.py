"""Simulate users who lend records and withdraw them.

This is client code: it reads the holdings and returns events.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Records, Share
from rescind.errors import ConfigError

NOTHING, PART, ALL = 0, 1, 2
GROUPS = {"all": ALL, "part": PART, "nothing": NOTHING}
"""What users lend, by name."""


def simulate_lending(
    fed: Federation, ratio: tuple[int, int, int] = (1, 2, 7), part: float = 0.3
) -> Federation:
    """Let users lend records: all, a fraction `part`, or nothing, in this ratio (FedShare V-A)."""
    groups = draw_groups(fed.world.sizes.clients, fed.clock, ratio)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part))


def draw_groups(clients: int, clock: Clock, ratio: tuple[int, int, int] = (1, 2, 7)) -> Tensor:
    """Draw which users share all, part or nothing. [clients] int8: 2, 1, 0

    ratio: all : part : nothing, FedShare V-A. Exact up to rounding: users are ordered by a hash
    of their id; the first share everything, the next a part.
    """
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) == 0:
        raise ConfigError(f"a ratio is all : part : nothing, such as (1, 2, 7); got {ratio}.")
    ids = torch.arange(clients)
    order = torch.argsort(clock.at(0).bits("sharing group", ids), stable=True)
    full = round(clients * ratio[0] / sum(ratio))
    part = round(clients * (ratio[0] + ratio[1]) / sum(ratio)) - full
    groups = torch.full((clients,), NOTHING, dtype=torch.int8)
    groups[order[:full]] = ALL
    groups[order[full : full + part]] = PART
    return groups


def draw_share(holdings: Holdings, groups: Tensor, clock: Clock, part: float = 0.3) -> Share:
    """Draw the event in which all users lend what their group lends.

    Partial sharers lend a random fraction `part` of their training records (rounded); all copies
    of a pair go together. Valid and test records are not lent.
    """
    if not 0 <= part <= 1:
        raise ConfigError(f"part must be a fraction between 0 and 1; got {part}.")
    ids = torch.arange(holdings.clients, device=holdings.members.device)
    lot = holdings.of_clients("own", ids)
    bits = clock.at(0).bits("shared records", lot.owner, lot.item)
    order = jagged.shuffle(bits, lot.owner)
    group = groups.to(ids.device)
    wanted = torch.round(lot.count * part).long()
    wanted = torch.where(group == ALL, lot.count, torch.where(group == PART, wanted, 0))
    owner = lot.owner[order]
    chosen = jagged.places(owner, lot.clients) < wanted[owner]
    pairs = Records.of(owner[chosen], lot.item[order][chosen])
    mine = (holdings.split == TRAIN) & (holdings.block == holdings.now)
    mine &= holdings.records.among(pairs)
    return Share(holdings.records[mine])


def draw_regret(shared: Records, clock: Clock, ratio: float = 0.3) -> Records:
    """Draw a fraction `ratio` of the sharers, and return all records they lent."""
    if not 0 <= ratio <= 1:
        raise ConfigError(f"ratio must be a fraction between 0 and 1; got {ratio}.")
    sharers = torch.unique(shared.client)
    order = torch.argsort(clock.at(0).bits("regret", sharers), stable=True)
    leaving = sharers[order[: round(len(sharers) * ratio)]]
    return shared[torch.isin(shared.client, leaving)]


def groups_of(holdings: Holdings) -> Tensor:
    """Return what each user lends of their training records: all, part, nothing. [clients] int8

    Read from the records, so a partial sharer whose fraction rounds to zero lends nothing.
    """
    own, kept = holdings.lot("own")[1].cpu(), holdings.lot("unshared")[1].cpu()
    groups = torch.full_like(own, PART, dtype=torch.int8)
    groups[kept == own] = NOTHING
    groups[(kept == 0) & (own > 0)] = ALL
    return groups
