"""Messages of an additive learner: differences from devices, and loans counted by the server.

A device notes which items it has counted (`sent/block`) and sends differences, so a device asked
twice adds nothing. `late/block`: the bits that must still change after the block ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.signatures import Sums
from rescind.core.state import REFERENCE, Private
from rescind.core.table import PIECE
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.methods.additive._notes import BITS, Notes
from rescind.methods.additive._pairs import Parts, pair_sums, pairs_in
from rescind.methods.additive._solving import half

BLOCK = f"{REFERENCE}block"
"""The current block, broadcast to devices."""
CHANGE, LEAVE = "change", "leave"
"""Roles of a device that answers an event alone: it sends items and a weight instead of the larger
list of pairs."""
MINUS, PLUS = "minus/", "plus/"
OWNERS = "owners"
"""Key of the number of users per item, used to hide rare items. [I]"""
_CLIENT = 31  # records.py: bits of the item in a (client, item) pair


def alone(role: str) -> bool:
    """Return whether a sum of this role comes from one device."""
    return bool({CHANGE, LEAVE} & set(role.split("/")))


def client_parts(
    public: Params, private: Private, cohort: Cohort, longest: int = 0, notes: Notes = BITS
) -> tuple[Parts, Private]:
    """Return current minus counted items of each device, and its private values afterwards."""
    now, leaving = int(public[BLOCK]), LEAVE in cohort.role.split("/")
    parts, values = Parts.none(cohort.ids.device), dict(private.values)
    place = torch.arange(len(cohort), device=cohort.ids.device)
    has = notes.of(cohort.train, cohort.items)
    noted = {name for name in private.values if name.startswith("sent/")}
    for name in sorted({*noted, f"sent/{now:04d}"}):
        block = int(name[-4:])
        late = values.get(f"late/{block:04d}")
        sent = values[name] if name in values else torch.zeros_like(has)
        due = has if block == now else sent if late is None else sent ^ late
        if leaving:
            due = torch.zeros_like(sent)
        moved = torch.ne(sent, due).any(1, keepdim=True)
        if not bool(moved.any()):
            continue
        at = torch.full_like(place, block)
        parts += Parts.of(notes.read(torch.where(moved, sent, 0)), -1, place, at, longest)
        parts += Parts.of(notes.read(torch.where(moved, due, 0)), 1, place, at, longest)
        values[name] = due
        if late is not None:
            values[f"late/{block:04d}"] = torch.zeros_like(late)
    return parts, replace(private, values=values)


def client_items(parts: Parts, cohort: Cohort) -> Update:
    """Encode each device's differences as items and weights; the server makes the pairs."""
    entries: dict[str, Rows | Tensor] = {}
    for block in torch.unique(parts.block).tolist():
        for sign, name in ((-1, MINUS), (1, PLUS)):
            mine = parts.only((parts.block == block) & (parts.weight.sign() == sign))
            owner = mine.client[mine.lot.owner]
            value = mine.weight.abs()[mine.lot.owner].unsqueeze(1)
            entries[f"{name}{block:04d}"] = Rows(owner, mine.lot.item, value, cohort.items)
    return Update(len(cohort), entries)


def client_rows(
    parts: Parts, cohort: Cohort, sum_key: Callable[[int], str], counting: bool = False
) -> Update:
    """Encode each device's differences: pairs by sum key, or items if it answers alone."""
    if alone(cohort.role):
        return client_items(parts, cohort)
    groups = by_sum(parts, sum_key)
    entries: dict[str, Rows | Tensor] = {n: _merged(p, cohort.items) for n, p in groups.items()}
    if counting and len(parts):
        owner, each = parts.client[parts.lot.owner], parts.weight.sign()[parts.lot.owner]
        entries[OWNERS] = Rows(owner, parts.lot.item, each.int().unsqueeze(1), cohort.items)
    return Update(len(cohort), entries)


def client_total(
    parts: Parts, cohort: Cohort, sum_key: Callable[[int], str], counting: bool = False
) -> Sum:
    """Compute the sum of `client_rows`; only devices with several parts are merged."""
    totals, touched, up = {}, {}, 0
    for name, mine in by_sum(parts, sum_key).items():
        once = (jagged.counts(mine.client, len(cohort)) == 1)[mine.client]
        first = mine.only(once)
        total, owners = pair_sums(first.lot, first.weight, cohort.items)
        sent = int(half(first.lot.count).sum())
        for some in mine.only(~once).in_turns():
            rows = _merged(some, cohort.items)
            total.index_add_(0, rows.index, rows.value.squeeze(1))
            owners.index_add_(0, rows.index, torch.ones_like(rows.index, dtype=owners.dtype))
            sent += len(rows)
        totals[name], touched[name] = total.unsqueeze(1), owners
        up += sent * 8  # a weight and a row number, 4 bytes each
    if counting and len(parts):
        totals[OWNERS] = owners_in(parts, cohort.items).int().unsqueeze(1)
        touched[OWNERS] = jagged.counts(parts.lot.item, cohort.items).to(torch.int32)
        up += len(parts.lot) * 8
    return Sum(totals, float(len(cohort)), len(cohort), touched, up=up)


def client_block_end(
    public: Params, private: Private, cohort: Cohort, notes: Notes = BITS
) -> Private:
    """Store which counted items of the ending block must still be sent."""
    name = f"{int(public[BLOCK]):04d}"
    if f"sent/{name}" not in private:
        return private
    sent = private[f"sent/{name}"]
    counted = torch.ne(sent, 0).any(1, keepdim=True)
    late = torch.where(counted, sent ^ notes.of(cohort.train, cohort.items), 0)
    return private.with_(**{f"late/{name}": late}) if bool(late.any()) else private


def client_erased(private: Params, records: Records, now: int, notes: Notes = BITS) -> Params:
    """Mark erased items of earlier blocks, too, for subtraction: all copies of a pair."""
    earlier = [n for n in private if n.startswith("sent/") and int(n[-4:]) < now]
    if not earlier:
        return private
    values = dict(private)
    for name in earlier:
        sent, late = private[name], private.get(f"late/{name[-4:]}")
        pairs = torch.unique(records.pairs())
        lot = Lot(pairs >> _CLIENT, pairs & (2**_CLIENT - 1), len(sent))
        due = sent if late is None else sent ^ late
        left = notes.without(due, lot)
        if not torch.equal(left, due):
            values[f"late/{name[-4:]}"] = sent ^ left
    return values


def by_sum(parts: Parts, sum_key: Callable[[int], str]) -> dict[str, Parts]:
    """Group parts by the key of their sum; empty groups are left out."""
    found: dict[str, list[int]] = {}
    for block in torch.unique(parts.block).tolist():
        found.setdefault(sum_key(block), []).append(block)
    tensor = parts.block.new_tensor
    return {n: parts.only(torch.isin(parts.block, tensor(b))) for n, b in sorted(found.items())}


def _merged(parts: Parts, items: int) -> Rows:
    """Return every pair of every device once, with the sum of its parts."""
    part, place = pairs_in(parts.lot)
    key, where = torch.unique(parts.client[part] * half(items) + place, return_inverse=True)
    value = torch.zeros_like(key).index_add_(0, where, parts.weight[part])
    size = max(half(items), 1)
    return Rows(key // size, key % size, value.int().unsqueeze(1), half(items))


def from_totals(sums: Sums, device: torch.device) -> tuple[Parts, dict[str, Tensor]]:
    """Return parts of devices that answered alone, and sums of pairs by key."""
    parts, totals = Parts.none(device), dict[str, Tensor]()
    for role, total in sums.items():
        for name, value in total.totals.items():
            if not alone(role):
                summed = value.squeeze(1)
                totals[name] = totals[name].long() + summed if name in totals else summed
                continue
            item = value.squeeze(1).nonzero().squeeze(1)
            if len(item):
                block = torch.tensor([int(name[-4:])], device=device)
                zero = torch.zeros_like(item)
                sign = -1 if name.startswith(MINUS) else 1
                parts += Parts(Lot(zero, item, 1), sign * value[item[:1], 0], zero[:1], block)
    return parts, totals


def from_parts(sums: Sums, device: torch.device) -> Parts:
    """Return the parts that single devices sent as items and weights."""
    parts = Parts.none(device)
    for total in sums.values():
        for ids, update in total.parts:
            for name, rows in update.entries.items():
                if not isinstance(rows, Rows):
                    continue
                count = jagged.counts(rows.owner, len(ids))
                full = count > 0
                lot = Lot((torch.cumsum(full, 0) - 1)[rows.owner], rows.index, int(full.sum()))
                sign = -1 if name.startswith(MINUS) else 1
                weight = sign * rows.value[jagged.starts(count)[full], 0]
                block = torch.full_like(weight, int(name[-4:]))
                parts += Parts(lot, weight, ids[full], block)
    return parts


@dataclass(frozen=True)
class Lent:
    """The counted loans: each pair with the block in which it was lent.

    They lie in pieces of some thousand clients, so that a change copies one piece, not all loans.
    """

    pieces: tuple[Tensor, ...]
    """[2, n] each: pairs, sorted, and their blocks."""

    @classmethod
    def none(cls, device: torch.device) -> Lent:
        return cls((torch.zeros((2, 0), dtype=torch.int64, device=device),))

    @classmethod
    def of(cls, own: Params) -> Lent:
        return cls(tuple(own[name] for name in sorted(own) if name.startswith(LOANS)))

    def into(self, own: Params) -> dict[str, Tensor]:
        others = {name: value for name, value in own.items() if not name.startswith(LOANS)}
        return others | {f"{LOANS}{n:06d}": piece for n, piece in enumerate(self.pieces)}

    @property
    def pair(self) -> Tensor:
        """All pairs. [n] sorted"""
        return torch.cat([piece[0] for piece in self.pieces])

    def follow(
        self, world: World, lenders: Tensor | None = None, longest: int = 0
    ) -> tuple[Lent, Parts]:
        """Return the world's current loans, and the parts by which the sum must change.

        lenders: clients whose loans may have changed; None compares all
        """
        device = self.pieces[0].device
        if self._counts(world.shared):
            return self, Parts.none(device)
        before, changed = world.shared.changed_from
        if before is not None and len(changed) and self._counts(before):
            return self._moved(world, changed.to(device), longest)
        now, old = world.shared.pairs(), self.pair
        if not bool((now[1:] > now[:-1]).all()):  # a pair lent twice is one loan
            now = torch.unique(now)
        if torch.equal(now, old):
            return self._for(world.shared), Parts.none(device)
        if lenders is None or not _same_for_others(old, now, lenders):
            gone, came = old[~torch.isin(old, now)], now[~torch.isin(now, old)]
            lenders = torch.unique(torch.cat([gone, came]) >> _CLIENT)
        return self._moved(world, lenders, longest)

    def _moved(self, world: World, lenders: Tensor, longest: int) -> tuple[Lent, Parts]:
        """Return the loans after a change of some lenders, and the parts that changed."""
        lenders, pieces = torch.unique(lenders), list(self.pieces)
        mine = torch.unique(world.shared.of_clients(lenders).pairs())
        none = pieces[0][:, :0]
        old, new = [none], [none]
        pieces += [none] * (int(lenders.max()) // PIECE + 1 - len(pieces))
        for number in torch.unique(lenders // PIECE).tolist():
            edges = lenders.new_tensor([number * PIECE, (number + 1) * PIECE])
            first, last = torch.searchsorted(lenders, edges).tolist()
            begin, end = torch.searchsorted(mine, edges << _CLIENT).tolist()
            piece = pieces[number]
            theirs = torch.isin(piece[0] >> _CLIENT, lenders[first:last])
            now = _with_blocks(mine[begin:end], piece, world.block)
            old.append(piece[:, theirs])
            new.append(now)
            both = torch.cat([piece[:, ~theirs], now], dim=1)
            pieces[number] = both[:, torch.argsort(both[0])]
        parts = _difference(torch.cat(old, dim=1), torch.cat(new, dim=1), longest)
        return Lent(tuple(pieces))._for(world.shared), parts

    def _counts(self, shared: Records) -> bool:
        """Return whether it is known that these are the loans of some shared records."""
        known = _COUNTED.get(shared, ())
        same = len(known) == len(self.pieces)
        return same and all(k() is piece for k, piece in zip(known, self.pieces, strict=True))

    def _for(self, shared: Records) -> Lent:
        _COUNTED[shared] = tuple(weakref.ref(piece) for piece in self.pieces)
        return self


LOANS = "lent/"
"""Prefix of the server's values with the counted loans."""
_COUNTED: weakref.WeakKeyDictionary[Records, tuple[weakref.ref[Tensor], ...]]
_COUNTED = weakref.WeakKeyDictionary()


def _same_for_others(old: Tensor, new: Tensor, lenders: Tensor) -> bool:
    """Return whether two lists of pairs are equal but for the pairs of some lenders."""
    left = [pair[~torch.isin(pair >> _CLIENT, lenders)] for pair in (old, new)]
    return torch.equal(*left)


def _with_blocks(pair: Tensor, known: Tensor, block: int) -> Tensor:
    """Return pairs with their blocks: as known, else the current one. [2, n]"""
    blocks = torch.full_like(pair, block)
    if known.shape[1]:
        at = torch.searchsorted(known[0].contiguous(), pair).clamp_(max=known.shape[1] - 1)
        blocks = torch.where(known[0][at] == pair, known[1][at], blocks)
    return torch.stack([pair, blocks])


def parts_of_loans(lent: Lent, longest: int = 0) -> Parts:
    now = torch.cat(lent.pieces, dim=1)
    return _difference(now[:, :0], now, longest)


def owners_in(parts: Parts, items: int) -> Tensor:
    """Return the change in the number of owners per item. [I] int64"""
    each = parts.weight.sign()[parts.lot.owner]
    return each.new_zeros(items).index_add_(0, parts.lot.item, each)


def _difference(before: Tensor, after: Tensor, longest: int) -> Parts:
    """Return the parts of each changed (client, block): minus before, plus after. [2, n] each"""
    (old, old_block), (new, new_block) = before, after
    was, now = ((p >> _CLIENT << 16) + b for p, b in ((old, old_block), (new, new_block)))
    gone, came = ~torch.isin(old, new), ~torch.isin(new, old)
    moved = torch.unique(torch.cat([was[gone], now[came]]))
    parts = Parts.none(old.device)
    for sign, pair, group in ((-1, old, was), (1, new, now)):
        inside = torch.isin(group, moved).nonzero().squeeze(1)
        inside = inside[torch.argsort(group[inside], stable=True)]
        found, owner = torch.unique_consecutive(group[inside], return_inverse=True)
        lot = Lot(owner, pair[inside] & (2**_CLIENT - 1), len(found))
        parts += Parts.of(lot, sign, found >> 16, found & (2**16 - 1), longest)
    return parts


def grown_flags(own: Params, world: World) -> dict[str, Tensor]:
    """Return flags, extended to new clients; to change them use `flagged`. [clients]"""
    flags = {}
    for name, first in {"counted": -1, "owes": False, "lost": False}.items():
        old = own[name]
        more = max(world.sizes.clients - len(old), 0)
        flags[name] = torch.cat([old, old.new_full((more,), first)]) if more else old
    return flags


def flagged(flag: Tensor, ids: Tensor, value: int | bool) -> Tensor:
    """Return a flag with another value for some clients; the same object if it has it already."""
    return flag.index_fill(0, ids, value) if bool((flag[ids] != value).any()) else flag


@dataclass(frozen=True)
class Outstanding:
    """Clients with contributions that are not subtracted yet, for receipts."""

    owes: Tensor
    """[n] devices asked again when they are next online."""
    lost: Tensor
    """[n] devices that left offline: their kept items stay in the sum until a full recount."""

    def __bool__(self) -> bool:
        return bool(len(self.owes) or len(self.lost))


def outstanding(own: Params) -> Outstanding:
    return Outstanding(own["owes"].nonzero().squeeze(1), own["lost"].nonzero().squeeze(1))
