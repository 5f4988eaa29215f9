"""Lots: the distinct items of each client, such as those it trains on or is tested with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.table import Columns, Table
from rescind.errors import ConfigError

TRAIN, VALID, TEST = 0, 1, 2
SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}
LAST = 2
"""Number of cohorts whose items are cached, of each kind."""
_HIGHEST = 2**15 - 1
"""Of twice a rating: devices note it in two bytes, and must read what they counted."""


class Kind(NamedTuple):
    """A kind of lot."""

    name: str
    """"own" (training records), "unshared" (training records that are not shared), "known"
    (training and validation records: the history before the test item), "valid", "test", "had"
    (everything that is there: any split, any block; what serves people leaves these out)."""
    block: int
    """Of held-out items. Only the current block has training records."""
    ordered: bool = False
    """Items also have times (of the earliest record) and ratings (the best, if there are any; of
    16,384 or more they count alike)."""


class Lots:
    """The lots of some holdings: made when they are asked for, and carried on through changes."""

    def __init__(self, rows: Table, now: int, clients: int) -> None:
        self._rows, self._now, self._clients = rows, now, clients
        self._made: dict[Kind, Table] = {}
        self._owners: dict[Kind, Tensor] = {}
        self._last: dict[Kind, list[tuple[Tensor, Lot]]] = {}

    def kind(self, name: str, block: int | None = None, ordered: bool = False) -> Kind:
        """Return a kind of lot. block: of held-out items; None: the current one"""
        held_out = name in ("valid", "test")
        return Kind(name, block if held_out and block is not None else self._now, ordered)

    def all(self, kind: Kind) -> Table:
        """Return the items of all clients."""
        if kind not in self._made:
            rows = self._rows.columns
            if kind.name == "unshared" and not bool(rows["lent"].any()):
                self._made[kind] = self.all(kind._replace(name="own"))
            else:
                self._made[kind] = Table(_build(rows, kind, self._now))
        return self._made[kind]

    def of(self, kind: Kind, ids: Tensor) -> Lot:
        """Return the items of these clients."""
        cached = self._last.setdefault(kind, [])
        for cached_ids, lot in cached:
            if torch.equal(cached_ids, ids):
                return lot  # often the same clients: those who train, those who are measured
        owner, rows = self.all(kind).take(ids)
        lot = Lot(owner, rows["item"], len(ids), rows.get("time"), rows.get("rating"))
        cached[:] = [(ids, lot), *cached][:LAST]
        return lot

    def owners(self, kind: Kind) -> Tensor:
        """Return which clients have an item. [clients] bool"""
        if kind not in self._owners:
            owner = self.all(kind).columns["client"].long()
            none = torch.zeros(self._clients, dtype=torch.bool, device=owner.device)
            self._owners[kind] = none.index_fill_(0, owner, True)
        return self._owners[kind]

    def after(
        self, rows: Table, changed: Tensor, new: Columns, clients: int, loans_only: bool
    ) -> Lots:
        """Return the lots after a change of some clients.

        new: their rows    loans_only: they are the same as before, except for what is shared
        """
        lots = Lots(rows, self._now, clients)
        for kind, lot in self._made.items():
            theirs = None
            if not loans_only or kind.name == "unshared":
                theirs = _build(new, kind, self._now)
            lots._made[kind] = lot if theirs is None else lot.put(changed, theirs)
            if (owners := self._owners.get(kind)) is None:
                continue
            if theirs is not None or len(owners) < clients:
                owners = torch.cat([owners, owners.new_zeros(clients - len(owners))])
            if theirs is not None:
                owners[changed[changed < clients]] = False
                owners[theirs["client"].long()] = True
            lots._owners[kind] = owners
        return lots


def _build(rows: Columns, kind: Kind, now: int) -> dict[str, Tensor]:
    """Return the items of a lot, each once, sorted by client, then item.

    rows: of holdings    now: the current block
    """
    chosen = _chosen(rows, kind, now)
    pairs = (rows["client"][chosen] << 31) + rows["item"][chosen]
    lot = {}
    if kind.ordered:
        pairs, place = torch.unique(pairs, return_inverse=True)
        latest = torch.full_like(pairs, torch.iinfo(pairs.dtype).max)
        lot["time"] = latest.scatter_reduce_(0, place, rows["time"][chosen], "amin")
        if "rating" in rows:
            least = torch.full_like(pairs, torch.iinfo(pairs.dtype).min)
            rating = rows["rating"][chosen].long().clamp(-_HIGHEST, _HIGHEST)
            lot["rating"] = least.scatter_reduce_(0, place, rating, "amax")
    elif not bool((pairs[1:] > pairs[:-1]).all()):
        pairs = torch.unique(pairs)
    return {"client": (pairs >> 31).int(), "item": pairs & (2**31 - 1), **lot}


def _chosen(rows: Columns, kind: Kind, now: int) -> Tensor:
    """Return which records are in a lot. [n] bool"""
    split, came = rows["split"], rows["block"]
    match kind.name:
        case "own":
            return (came == now) & (split == TRAIN)
        case "unshared":
            return (came == now) & (split == TRAIN) & ~rows["lent"]
        case "known":
            return (came == now) & (split != TEST)
        case "had":
            return torch.ones_like(came, dtype=torch.bool)
        case "valid" | "test":
            return (came == kind.block) & (split == SPLITS[kind.name])
    raise ConfigError(f"there is no lot '{kind.name}'. See lots.Kind.")
