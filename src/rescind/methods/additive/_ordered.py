"""Ordered pairs of a user's items: which came first, and how far apart, in whole numbers.

A square matrix is stored shell by shell, so that new items only append: (i, j) is at j^2 + i if
i < j, and at i^2 + i + j otherwise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rescind.core import fast, jagged
from rescind.core.cohort import Cohort, Lot
from rescind.core.update import Rows, Sum, Update
from rescind.methods.additive import _pairs as pairs
from rescind.methods.additive._exchange import by_sum
from rescind.methods.additive._notes import ranks
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._solving import ROWS, UNIT, Ridge, Temper, half, must_have_inverse


class Counting(ABC):
    """What each pair of a user's items counts: two whole numbers, in a table of pairs."""

    power: float

    def weight(self, count: Tensor) -> Tensor:
        """Return round(4096 / n^power). It depends on the user's own items only. [n] int64"""
        return torch.round(UNIT / count.clamp(min=1).double() ** self.power).long()

    @abstractmethod
    def cells(self, items: int) -> int:
        """Return the number of stored pairs of a catalogue."""

    @abstractmethod
    def items(self, total: Tensor) -> int:
        """Return the number of items of a table."""

    @abstractmethod
    def pairs(self, lot: Lot) -> tuple[Tensor, Tensor, Tensor]:
        """Return every pair that counts: (owner, place in the table, value [n, 2])."""

    @abstractmethod
    def compiled(self, total: Tensor, lot: Lot, sign: Tensor, owners: Tensor) -> None:
        """Do what `add` does in a compiled loop. owners: may be empty"""

    def add(self, total: Tensor, lot: Lot, sign: Tensor, owners: Tensor | None = None) -> None:
        """Add people's pairs to a table in place, or subtract them, in whole numbers.

        total: [cells, 2]    sign: [owners of the lot] 1 or -1
        owners: [cells], counts the people of each pair, if given
        """
        if lot.item.device.type == "cpu":
            none = torch.zeros(0, dtype=torch.int64)
            return self.compiled(total, lot, sign, none if owners is None else owners)
        owner, place, value = self.pairs(lot)
        total.index_add_(0, place, (value * sign[owner].unsqueeze(1)).to(total.dtype))
        if owners is not None:
            owners.index_add_(0, place, torch.ones_like(place))
        return None


@dataclass(frozen=True)
class Nearness(Counting):
    """What a pair of a user's items counts, by the number n of items and their distance in time.

    Two numbers per ordered pair (i, j), with a short and a long reach: w exp(-places / reach) if i
    came before j, w / 2 if both came at one time, and w if i is j; w = round(4096 / n^power).
    Rounded down to whole numbers.
    """

    reach: tuple[float, float]
    power: float

    def table(self) -> Tensor:
        """Return 4096 exp(-places / reach) for 0, 1/2, 1, ... places, until it is 0. [k, 2]"""
        return _table(self.reach)

    def cells(self, items: int) -> int:
        return items**2

    def items(self, total: Tensor) -> int:
        return items_of(total)

    def pairs(self, lot: Lot) -> tuple[Tensor, Tensor, Tensor]:
        return ordered_pairs(lot, self)

    def compiled(self, total: Tensor, lot: Lot, sign: Tensor, owners: Tensor) -> None:
        from rescind.methods.additive._kernels import add_each_ordered_pair

        time = torch.zeros_like(lot.item) if lot.time is None else lot.time
        columns = (_starts(lot), lot.item, time, self.weight(lot.count), sign, self.table())
        add_each_ordered_pair(*(each.numpy() for each in (total, owners, *columns)))


STARS = 64
"""Differences of ratings, in half stars, from here on count alike."""


@dataclass(frozen=True)
class PairKernel(Counting):
    """What a pair of a user's items counts, by their distance in time and in rating.

    far: w r, near: w r exp(-places / reach), with w = 4096 / n^power for n items and r = unlike +
    (1 - unlike) exp(-|difference of ratings|). Items of one time are 0 places apart. Rounded once,
    to whole numbers. A half is stored as in `_pairs`: (i, j), i >= j, is at i (i + 1) / 2 + j.
    """

    reach: float
    unlike: float
    power: float

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return 4096 times the factor of 0, 1/2, 1, ... places, and of half stars. [k], [64]"""
        return _near_tables(self.reach, self.unlike)

    def cells(self, items: int) -> int:
        return half(items)

    def items(self, total: Tensor) -> int:
        return pairs.items_of(total)

    def pairs(self, lot: Lot) -> tuple[Tensor, Tensor, Tensor]:
        near, rated = (table.to(lot.item.device) for table in self.tables())
        reach = lot.place + 1
        one = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), reach)
        two = lot.first[lot.owner[one]] + torch.arange(len(one), device=one.device)
        two = two - jagged.starts(reach)[one]
        rank, owner = ranks(lot), lot.owner[one]
        apart = (rank[one] - rank[two]).abs().clamp(max=len(near) - 1)
        far = self.weight(lot.count)[owner]
        if lot.rating is not None:
            stars = (lot.rating[one] - lot.rating[two]).abs().clamp(max=STARS - 1)
            far = far * rated[stars]
        else:
            far = far * UNIT
        each = torch.stack([far * UNIT, far * near[apart]], 1)
        value = torch.div(each + UNIT * UNIT // 2, UNIT * UNIT, rounding_mode="floor")
        return owner, half(lot.item[one]) + lot.item[two], value

    def compiled(self, total: Tensor, lot: Lot, sign: Tensor, owners: Tensor) -> None:
        from rescind.methods.additive._kernels import add_each_near_pair

        rating = torch.zeros_like(lot.item) if lot.rating is None else lot.rating
        columns = (_starts(lot), lot.item, ranks(lot), rating, self.weight(lot.count), sign)
        add_each_near_pair(*(each.numpy() for each in (total, owners, *columns, *self.tables())))


def _starts(lot: Lot) -> Tensor:
    return torch.cat([lot.first, lot.first.new_tensor([len(lot)])])


@lru_cache(maxsize=8)
def _near_tables(reach: float, unlike: float) -> tuple[Tensor, Tensor]:
    places = torch.arange(math.ceil(2 * reach * math.log(2 * UNIT)) + 2).double() / 2
    stars = torch.arange(STARS).double() / 2
    near, rated = torch.exp(-places / reach), unlike + (1 - unlike) * torch.exp(-stars)
    near[-1] = 0.0  # farther apart
    return torch.round(UNIT * near).long(), torch.round(UNIT * rated).long()


@lru_cache(maxsize=8)
def _table(reach: tuple[float, float]) -> Tensor:
    last = math.ceil(2 * max(reach) * math.log(2 * UNIT))
    places = torch.arange(last + 1).double().unsqueeze(1) / 2
    return torch.round(UNIT * torch.exp(-places / torch.tensor(reach).double())).long()


def shell(row: Tensor, column: Tensor) -> Tensor:
    """Return where a pair is stored."""
    return torch.where(row < column, column * column + row, row * row + row + column)


def items_of(total: Tensor) -> int:
    return math.isqrt(len(total))


def square(total: Tensor, items: int) -> Tensor:
    """Unpack one stored square. [I^2] -> [I, I] float64"""
    full = torch.empty(items, items, dtype=torch.float64, device=total.device)
    every = torch.arange(items, device=total.device)
    for begin in range(0, items, ROWS):
        row = every[begin : begin + ROWS]
        full[begin : begin + ROWS] = total[shell(row[:, None], every[None])].double()
    return full


def ordered_pairs(lot: Lot, near: Nearness) -> tuple[Tensor, Tensor, Tensor]:
    """Return every ordered pair that counts: (owner, place in the square, value [n, 2])."""
    rank, table = ranks(lot), near.table().to(lot.item.device)
    reach = lot.count[lot.owner]
    one = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), reach)
    step = torch.arange(len(one), device=one.device) - jagged.starts(reach)[one]
    two = lot.first[lot.owner[one]] + step
    weight, apart = near.weight(lot.count)[lot.owner[one]], rank[two] - rank[one]
    apart, weight = apart.unsqueeze(1), weight.unsqueeze(1)
    later = weight * table[apart.squeeze(1).clamp(0, len(table) - 1)] // UNIT
    value = torch.where(apart > 0, later, torch.where(apart == 0, weight // 2, 0))
    value = torch.where((one == two).unsqueeze(1), weight, value)
    some = (value > 0).any(1)
    one, two = one[some], two[some]
    return lot.owner[one], shell(lot.item[one], lot.item[two]), value[some]


def ordered_sums(lot: Lot, sign: Tensor, items: int, near: Counting) -> tuple[Tensor, Tensor]:
    """Return the sum of all pairs, and the owners of each. [cells, 2], [cells] int64"""
    size, device = near.cells(items), lot.item.device
    total = torch.zeros(size, 2, dtype=torch.int64, device=device)
    owners = torch.zeros(size, dtype=torch.int64, device=device)
    near.add(total, lot, sign, owners)
    return total, owners


def add_sequences(
    total: Tensor, lot: Lot, sign: Tensor, near: Nearness, owners: Tensor | None = None
) -> None:
    near.add(total, lot, sign, owners)


def directed(
    grams: Sequence[tuple[Tensor, float]], column: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return the matrix of one reach, summed over blocks and divided by 4096. [I, I]"""
    items, device = items_of(grams[0][0]), grams[0][0].device
    full = torch.zeros(items, items, dtype=dtype, device=device)
    for total, factor in grams:
        if device.type == "cpu" and fast.compiled():
            from rescind.methods.additive._kernels import unpack_square

            unpack_square(total.numpy(), column, factor / UNIT, full.numpy())
        else:
            full.add_(square(total[:, column], items).to(dtype), alpha=factor / UNIT)
    return full


def next_weights(pairs: Tensor, ridge: Ridge, temper: Temper, back: float = 0.0) -> Tensor:
    """Solve for the weights of what follows, from the directed pairs of one reach. [I, I] float32

    A = P + P^T + diag + ridge says which items are near, M = P + back P^T what follows what;
    B = A^-1 M, then tempered. In float32: half the time, and less than the fifth digit of B.

    pairs: [I, I] float32; its memory is used
    """
    each = pairs.diagonal().double()
    pairs.fill_diagonal_(0.0)
    turned = pairs.T.contiguous()  # across the rows once, not three times
    near = (pairs + turned).T  # the same matrix, column by column as LAPACK works
    near.diagonal().copy_(each + ridge.of(each))
    factor, failed = torch.linalg.cholesky_ex(near, out=(near, torch.empty(0, dtype=torch.int32)))
    must_have_inverse(int(failed))
    follows = turned.add_(pairs, alpha=back) if back else turned  # M^T
    weights = torch.cholesky_solve(follows.T, factor).contiguous()
    rare = 1 / (each + ridge.same)
    return temper.rescale(weights, rare.unsqueeze(1), rare)


def client_rows(
    parts: Parts, cohort: Cohort, sum_key: Callable[[int], str], near: Counting
) -> Update:
    groups = by_sum(parts, sum_key).items()
    return Update(len(cohort), {name: _merged(mine, cohort.items, near) for name, mine in groups})


def client_total(
    parts: Parts, cohort: Cohort, sum_key: Callable[[int], str], near: Counting
) -> Sum:
    """Compute the sum of `client_rows` at once; only devices with several parts are merged."""
    totals, touched, up = {}, {}, 0
    for name, mine in by_sum(parts, sum_key).items():
        once = (jagged.counts(mine.client, len(cohort)) == 1)[mine.client]
        first = mine.only(once)
        total, owners = ordered_sums(first.lot, first.weight.sign(), cohort.items, near)
        for some in mine.only(~once).in_turns():
            rows = _merged(some, cohort.items, near)
            total.index_add_(0, rows.index, rows.value.long())
            owners.index_add_(0, rows.index, torch.ones_like(rows.index))
        totals[name], touched[name] = total.int(), owners.int()
        up += int(owners.sum()) * 12  # two weights and a row number, 4 bytes each
    return Sum(totals, float(len(cohort)), len(cohort), touched, up=up)


def _merged(parts: Parts, items: int, near: Counting) -> Rows:
    """Return every pair of every device once, with the sum of its parts."""
    part, place, value = near.pairs(parts.lot)
    size = max(near.cells(items), 1)
    key, where = torch.unique(parts.client[part] * size + place, return_inverse=True)
    signed = value * parts.weight.sign()[part].unsqueeze(1)
    total = signed.new_zeros(len(key), 2).index_add_(0, where, signed)
    return Rows(key // size, key % size, total.int(), near.cells(items))
