"""Both sides of an additive learner: what devices send, and what the server counts of loans.

A device remembers one bit per item it has counted (`sent/block`) and sends differences: the same
device asked twice adds nothing. Where a block ended before it could send one, the bits that are
still to change stay behind (`late/block`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.state import REFERENCE, Private
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.methods.additive._pairs import (
    Parts,
    from_bits,
    half,
    half_each,
    pair_sums,
    pairs_in,
    to_bits,
)

BLOCK = f"{REFERENCE}block"
"""Which block it is, for devices: a note is kept for each."""
CHANGE, LEAVE = "change", "leave"
"""Roles of a device that answers an event alone: its sum has nobody else in it, so it sends items
and a weight, which say the same as its pairs in less."""
MINUS, PLUS = "minus/", "plus/"
OWNERS = "owners"
"""How many people have each item, where rare ones are not published. [I]"""
_CLIENT = 31  # records.py: a (client, item) pair is one number


def alone(role: str) -> bool:
    """Whether a sum of this role holds one device."""
    return bool({CHANGE, LEAVE} & set(role.split("/")))


# -- devices --------------------------------------------------------------------------------------


def client_parts(
    public: Params, private: Private, cohort: Cohort, longest: int = 0
) -> tuple[Parts, Private]:
    """What each device has now less what it has counted, and its notes afterwards."""
    now, leaving = int(public[BLOCK]), LEAVE in cohort.role.split("/")
    parts, values = Parts.none(cohort.ids.device), dict(private.values)
    who = torch.arange(len(cohort), device=cohort.ids.device)
    has = to_bits(cohort.train, cohort.items)
    notes = {name for name in private.values if name.startswith("sent/")}
    for name in sorted({*notes, f"sent/{now:04d}"}):
        block = int(name[-4:])
        late = values.get(f"late/{block:04d}")
        sent = values[name] if name in values else torch.zeros_like(has)
        due = has if block == now else sent if late is None else sent ^ late
        if leaving:
            due = torch.zeros_like(sent)
        moved = torch.ne(sent, due).any(1, keepdim=True)
        if not bool(moved.any()):
            continue
        at = torch.full_like(who, block)
        parts += Parts.of(from_bits(torch.where(moved, sent, 0)), -1, who, at, longest)
        parts += Parts.of(from_bits(torch.where(moved, due, 0)), 1, who, at, longest)
        values[name] = due
        if late is not None:
            values[f"late/{block:04d}"] = torch.zeros_like(late)
    return parts, replace(private, values=values)


def client_items(parts: Parts, cohort: Cohort) -> Update:
    """Each device's differences as items and weights, for a server that makes the pairs itself."""
    entries: dict[str, Rows | Tensor] = {}
    for block in torch.unique(parts.block).tolist():
        for sign, name in ((-1, MINUS), (1, PLUS)):
            mine = parts.only((parts.block == block) & (parts.weight.sign() == sign))
            owner = mine.client[mine.lot.owner]
            value = mine.weight.abs()[mine.lot.owner].unsqueeze(1)
            entries[f"{name}{block:04d}"] = Rows(owner, mine.lot.item, value, cohort.items)
    return Update(len(cohort), entries)


def client_rows(
    parts: Parts, cohort: Cohort, drawer: Callable[[int], str], counting: bool = False
) -> Update:
    """Each device's differences one by one: pairs by drawer, or items where it answers alone.

    counting: also by how many their items' owners become more
    """
    if alone(cohort.role):
        return client_items(parts, cohort)
    entries: dict[str, Rows | Tensor] = {}
    for name, mine in _by_drawer(parts, drawer).items():
        entries[name] = _merged(mine, cohort.items)
    if counting and len(parts):
        owner, each = parts.client[parts.lot.owner], parts.weight.sign()[parts.lot.owner]
        entries[OWNERS] = Rows(owner, parts.lot.item, each.int().unsqueeze(1), cohort.items)
    return Update(len(cohort), entries)


def client_folded(
    parts: Parts, cohort: Cohort, drawer: Callable[[int], str], counting: bool = False
) -> Sum:
    """The fold of `client_rows` for all at once; only devices that take back are merged singly."""
    totals, touched, up = {}, {}, 0
    for name, mine in _by_drawer(parts, drawer).items():
        once = (jagged.counts(mine.client, len(cohort)) == 1)[mine.client]
        first = mine.only(once)
        total, many = pair_sums(first.lot, first.weight, cohort.items)
        rows = _merged(mine.only(~once), cohort.items)
        total.index_add_(0, rows.index, rows.value.squeeze(1))
        many.index_add_(0, rows.index, torch.ones_like(rows.index, dtype=many.dtype))
        totals[name], touched[name] = total.unsqueeze(1), many
        sent = int(half_each(first.lot.count).sum()) + len(rows)
        up += sent * 8  # a weight and a row number of four bytes each
    if counting and len(parts):
        more = owners_in(parts, cohort.items).int()
        totals[OWNERS] = more.unsqueeze(1)
        touched[OWNERS] = jagged.counts(parts.lot.item, cohort.items).to(torch.int32)
        up += len(parts.lot) * 8
    return Sum(totals, float(len(cohort)), len(cohort), touched, up=up)


def client_turned(public: Params, private: Private, cohort: Cohort) -> Private:
    """The notes at the end of a block: what was counted, and what is still to be sent of it."""
    name = f"{int(public[BLOCK]):04d}"
    if f"sent/{name}" not in private:
        return private
    sent = private[f"sent/{name}"]
    counted = torch.ne(sent, 0).any(1, keepdim=True)
    late = torch.where(counted, sent ^ to_bits(cohort.train, cohort.items), torch.zeros_like(sent))
    return private.with_(**{f"late/{name}": late}) if bool(late.any()) else private


def client_erased(private: Params, records: Records, now: int) -> dict[str, Tensor]:
    """Notes in which erased items of earlier blocks are to be taken back, too.

    An erasure means all copies of a pair, also one that was counted in a block that is over.
    """
    values = dict(private)
    for name in [n for n in private if n.startswith("sent/") and int(n[-4:]) < now]:
        sent, late = private[name], private.get(f"late/{name[-4:]}")
        inside = records.item < sent.shape[1] * 8
        order = torch.argsort(records.client[inside], stable=True)
        pairs = torch.unique(records[inside][order].pairs())
        lot = Lot(pairs >> _CLIENT, pairs & (2**_CLIENT - 1), len(sent))
        erased = to_bits(lot, sent.shape[1] * 8)
        due = sent if late is None else sent ^ late
        if bool((due & erased).any()):
            values[f"late/{name[-4:]}"] = sent ^ (due & ~erased)
    return values


def _by_drawer(parts: Parts, drawer: Callable[[int], str]) -> dict[str, Parts]:
    """Parts that are added up together; where nobody has anything to send, nothing is sent."""
    blocks = torch.unique(parts.block).tolist()
    names = sorted({drawer(block) for block in blocks})
    found = {}
    for name in names:
        inside = torch.zeros_like(parts.block, dtype=torch.bool)
        for block in blocks:
            inside |= (parts.block == block) & (drawer(block) == name)
        found[name] = parts.only(inside)
    return found


def _merged(parts: Parts, items: int) -> Rows:
    """Every pair of every device once, with the sum of its parts."""
    part, place = pairs_in(parts.lot)
    key, where = torch.unique(parts.client[part] * half(items) + place, return_inverse=True)
    value = torch.zeros_like(key).index_add_(0, where, parts.weight[part])
    size = max(half(items), 1)
    return Rows(key // size, key % size, value.int().unsqueeze(1), half(items))


# -- the server -----------------------------------------------------------------------------------


def from_totals(sums: Mapping[str, Sum], device: torch.device) -> tuple[Parts, dict[str, Tensor]]:
    """What came in: parts of devices that answered alone, and sums of pairs by drawer."""
    parts = Parts.none(device)
    totals: dict[str, Tensor] = {}
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


def from_parts(sums: Mapping[str, Sum], device: torch.device) -> Parts:
    """What came in as items and weights of single devices."""
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
    """The loans that are counted: each pair with the block in which it was lent."""

    pair: Tensor
    """[n] sorted"""
    block: Tensor
    """[n]"""

    @classmethod
    def none(cls, device: torch.device | str) -> Lent:
        """Nothing."""
        zero = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(zero, zero)

    @classmethod
    def of(cls, own: Params) -> Lent:
        """As the server keeps it."""
        return cls(own["lent/pair"], own["lent/block"])

    def packed(self) -> dict[str, Tensor]:
        """For the server's state."""
        return {"lent/pair": self.pair, "lent/block": self.block}

    def follow(
        self, world: World, lenders: Tensor | None = None, longest: int = 0
    ) -> tuple[Lent, Parts]:
        """The loans as they are in the world, and the parts by which the sum must change.

        lenders: whose loans may have changed, if that is known; otherwise everybody's are compared
        """
        now = world.shared.pairs()
        same = torch.equal(now, self.pair)
        if not same and not bool((now[1:] > now[:-1]).all()):  # a pair at two times is one loan
            now = torch.unique(now)
            same = torch.equal(now, self.pair)
        if same:
            return self, Parts.none(now.device)
        if lenders is None:
            odd = torch.cat(
                [self.pair[~torch.isin(self.pair, now)], now[~torch.isin(now, self.pair)]]
            )
            lenders = torch.unique(odd >> _CLIENT)
        if not len(lenders):
            return self.follow(world, longest=longest)
        # Pairs are sorted by person, so all that may differ lies between the first and the last.
        edges = torch.stack([lenders.min(), lenders.max() + 1]) << _CLIENT
        begin, end = torch.searchsorted(self.pair, edges).tolist()
        first, last = torch.searchsorted(now, edges).tolist()
        old, old_block, new = self.pair[begin:end], self.block[begin:end], now[first:last]
        was, here = (torch.isin(p >> _CLIENT, lenders) for p in (old, new))
        outside = ((self.pair[:begin], now[:first]), (self.pair[end:], now[last:]))
        if not all(torch.equal(a, b) for a, b in (*outside, (old[~was], new[~here]))):
            return self.follow(world, longest=longest)  # others lent and were not counted yet
        at = torch.searchsorted(old, new).clamp_(max=max(len(old) - 1, 0))
        known = old[at] == new if len(old) else torch.zeros_like(new, dtype=torch.bool)
        new_block = torch.full_like(new, world.block)
        new_block[known] = old_block[at[known]]
        block = torch.cat([self.block[:begin], new_block, self.block[end:]])
        return Lent(now, block), _difference(
            old[was], old_block[was], new[here], new_block[here], longest
        )


def parts_of_loans(lent: Lent, longest: int = 0) -> Parts:
    """Everything that is counted of loans, as if it had just come."""
    none = lent.pair[:0]
    return _difference(none, none, lent.pair, lent.block, longest)


def owners_in(parts: Parts, items: int) -> Tensor:
    """By how many the owners of each item become more. [I] int64"""
    each = parts.weight.sign()[parts.lot.owner]
    return torch.zeros(items, dtype=torch.int64, device=each.device).index_add_(
        0, parts.lot.item, each
    )


def _difference(
    old: Tensor, old_block: Tensor, new: Tensor, new_block: Tensor, longest: int
) -> Parts:
    """Parts of (person, block) before and after; what did not change is left out."""
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
    """Who was counted (in which block last), who owes, and whose part is lost. [clients]"""
    first = {"counted": -1, "owes": False, "lost": False}
    flags = {}
    for name, value in first.items():
        old = own[name]
        flags[name] = old.new_full((max(world.sizes.clients, len(old)),), value)
        flags[name][: len(old)] = old
    return flags


@dataclass(frozen=True)
class Outstanding:
    """What could not be subtracted yet, for whoever writes a receipt."""

    owes: Tensor
    """[n] devices that are asked again when they are next online."""
    lost: Tensor
    """[n] devices that left without taking back what they had kept: it stays in the sum for good,
    unless everybody is counted anew."""

    def __bool__(self) -> bool:
        return bool(len(self.owes) or len(self.lost))


def outstanding(own: Params) -> Outstanding:
    """Whose contribution is still counted although it was to be forgotten."""
    return Outstanding(own["owes"].nonzero().squeeze(1), own["lost"].nonzero().squeeze(1))
