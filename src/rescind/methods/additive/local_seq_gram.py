"""LocalSeqGram: SeqGram for large catalogues, with sparse sums and neighbours.

Only pairs that somebody has are kept. A pair keeps its place in the square (`_ordered.shell`), so
new items change no place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Private
from rescind.core.update import Rows, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._exchange import BLOCK, MINUS, PLUS, client_parts
from rescind.methods.additive._notes import Listed, Notes, ranks
from rescind.methods.additive._ordered import Nearness, ordered_pairs
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._release import Published, Solved
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive._solving import UNIT, Ridge, Temper
from rescind.methods.additive.seq_gram import LEAST, SEQUENCES, SeqGram
from rescind.models.item_item import must_fit

AT_ONCE = 2**22
"""Pairs listed at a time: 100 MB; changes speed and memory only."""


@dataclass(frozen=True, kw_only=True)
class LocalSeqGram(SeqGram):
    """SeqGram of two time scales with sparse sums: an item is followed by its neighbours only.

    The inverse is replaced by `steps` steps of Jacobi, and every row of B is cut to its `many`
    largest weights. Both are functions of the whole numbers in the sums.

    The pairs of a large catalogue cannot be added in secret: devices send their last items in
    order, and the server makes the pairs. It sees single histories (`individual`), as with
    LocalGram.
    """

    paper: ClassVar[str] = "ours; what follows, on sparse sums that can be taken back"
    individual: ClassVar[bool] = True

    ridge: float = 60.0
    far_ridge: float = 25.0
    ridge_per_item: float = 0.0
    shown_power: float = 0.2
    sharpen: float = 0.6
    near: float = 4.0
    far: float = 20.0
    back: float = 0.6
    """Chosen on validation of Video Games, like the other values."""
    recent: float = 4.0
    floor: float = 0.0
    far_share: float = 0.03
    steps: int = 0
    """Steps of Jacobi. 0 is the best of 0, 1, 2 on validation of Video Games: few pairs are known,
    so the steps do not converge."""
    many: int = 200
    """Items that may follow an item."""
    longest: int = 50
    """Last items of a history that are counted."""
    max_items: int = 1_000_000
    """Largest catalogue allowed: lists take 8 bytes per neighbour and scale."""
    again: float = field(default=0.0, init=False)  # needs the notes of streams
    earlier: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 10]", "steps")
        must_lie(self, "[1, inf)", "many")
        must_lie(self, "[1, 10000]", "longest")
        must_lie(self, "(0, inf)", "far_share")
        if self.forgetting != 1:
            raise ConfigError("LocalSeqGram keeps one sum for all blocks, so forgetting must be 1.")

    @classmethod
    def sequences(cls, **fields: Any) -> LocalSeqGram:
        """Return LocalSeqGram with the settings of SeqGram for the next item on ML-1M."""
        return cls(**{**SEQUENCES, **fields})

    @property
    def notes(self) -> Notes:
        return Listed(self.longest)

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        must_fit(world.sizes.items, self.max_items, type(self).__name__)
        own = SparsePairs.none().packed() | {"items": torch.tensor([world.sizes.items])}
        return own, self.server_public(own, world)

    def server_public(self, own: Params, world: World) -> Params:
        """Return the block, and the lists, computed when first read: weights of [2, 2, I, many].

        For each time scale the items (as float32, exact up to 16 million), then their weights.
        """
        pairs, items = SparsePairs.of(own), world.sizes.items
        release = Solved(weights=lambda: self.server_lists(pairs, items))
        return Published(torch.ones(1), items, {BLOCK: torch.tensor([world.block])}, release)

    def server_lists(self, pairs: SparsePairs, items: int) -> Tensor:
        """Compute what follows each item, for both time scales. [2, 2, I, many] float32"""
        out = []
        for column, scale in enumerate(self.scales):
            item, weight = neighbours_of_next(
                pairs.matrix(column, items),
                scale.ridge, scale.temper, self.back, self.steps, self.many,
            )  # fmt: skip
            out.append(torch.stack([item.float(), weight * (self.far_share if column else 1.0)]))
        return torch.stack(out)

    def server_received(self, sums: Sums, world: World) -> tuple[Parts, dict[str, Tensor]]:
        parts = Parts.none()
        for total in sums.values():
            for ids, update in total.parts:
                for name, rows in update.entries.items():
                    if isinstance(rows, Rows):
                        parts += _received(name, ids, rows)
        return parts, {}

    def server_moved(
        self, own: Params, parts: Parts, totals: Params, world: World
    ) -> dict[str, Tensor]:
        pairs = SparsePairs.of(own).plus(parts.lot, parts.weight.sign(), self.nearness)
        return pairs.packed()

    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        return SparsePairs.none().plus(parts.lot, parts.weight.sign(), self.nearness).packed()

    def server_items(self, own: Params) -> int:
        return int(own["items"])

    def server_grown(self, own: Params, world: World) -> dict[str, Tensor]:
        must_fit(world.sizes.items, self.max_items, type(self).__name__)
        return {**own, "items": torch.tensor([world.sizes.items])}

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        parts, private = client_parts(public, private, cohort, notes=self.notes)
        entries: dict[str, Rows | Tensor] = {}
        for block in torch.unique(parts.block).tolist():
            for sign, name in ((-1, MINUS), (1, PLUS)):
                mine = parts.only((parts.block == block) & (parts.weight.sign() == sign))
                owner, place = mine.client[mine.lot.owner], ranks(mine.lot).unsqueeze(1) + 1
                entries[f"{name}{block:04d}"] = Rows(owner, mine.lot.item, place, cohort.items)
        return Update(len(cohort), entries), private

    client_sum = Method.client_sum

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        lot = cohort.own
        scores = torch.zeros(len(cohort), cohort.items)
        scales = zip(public[WEIGHTS], (self.recent, self.far_recent), strict=True)
        for (item, weight), places in scales:
            each = self.client_recency(lot, places)
            some = each > LEAST
            recent = Lot(lot.owner[some], lot.item[some], lot.clients)
            scores += scores_of(item.long(), weight, recent, each[some])
        return scores


def _received(name: str, ids: Tensor, rows: Rows) -> Parts:
    """Return the sequences of one message, as parts with times."""
    count = jagged.counts(rows.owner, len(ids))
    full = count > 0
    owner = (torch.cumsum(full, 0) - 1)[rows.owner]
    lot = Lot(owner, rows.index, int(full.sum()), rows.value[:, 0].long())
    sign = torch.full_like(ids[full], -1 if name.startswith(MINUS) else 1)
    return Parts(lot, sign, ids[full], torch.full_like(sign, int(name[-4:])))


@dataclass(frozen=True)
class SparsePairs:
    """Sums of ordered pairs in whole numbers, without pairs that nobody has."""

    place: Tensor
    """[n] int64, sorted."""
    value: Tensor
    """[n, 2] int64: near and far."""

    @classmethod
    def none(cls) -> SparsePairs:
        zero = torch.zeros(0, dtype=torch.int64)
        return cls(zero, zero.view(0, 2))

    @classmethod
    def of(cls, own: Params) -> SparsePairs:
        return cls(own["gram/place"], own["gram/value"])

    def packed(self) -> dict[str, Tensor]:
        return {"gram/place": self.place, "gram/value": self.value}

    def plus(self, lot: Lot, sign: Tensor, near: Nearness) -> SparsePairs:
        """Add people's sequences, or subtract them. sign: [owners] 1 or -1"""
        places, values = [self.place], [self.value]
        for part, signs in _pieces(lot, sign):
            owner, place, value = ordered_pairs(part, near)
            place, value = _merged([place], [value * signs[owner].unsqueeze(1)])
            places.append(place)
            values.append(value)
        place, value = _merged(places, values)
        some = (value != 0).any(1)
        return SparsePairs(place[some], value[some])

    def matrix(self, column: int, items: int) -> Any:
        """Return the pairs of one reach divided by 4096, as a sparse matrix. [I, I]"""
        from scipy.sparse import csr_array

        shell = torch.sqrt(self.place.double()).long()  # exact below 2^52: 67 million items
        rest = self.place - shell * shell
        row, other = torch.where(rest < shell, rest, shell), torch.where(rest < shell, 0, rest)
        column_of = torch.where(rest < shell, shell, other - shell)
        value = self.value[:, column].double() / UNIT
        cells = (value.numpy(), (row.numpy(), column_of.numpy()))
        return csr_array(cells, shape=(items, items))


def neighbours_of_next(
    pairs: Any, ridge: Ridge, temper: Temper, back: float, steps: int, many: int
) -> tuple[Tensor, Tensor]:
    """Return the items that follow each item, and their weights. [I, many], -1 if there is none

    With A and M as in `_ordered.next_weights`, D the diagonal of A and O the rest: B = D^-1 M, then
    `steps` times B = D^-1 (M - O B) (Jacobi), each time cut to the largest weights of every row.
    Ties: lower item first.

    pairs: [I, I] sparse
    """
    from scipy.sparse import diags_array

    each = torch.from_numpy(pairs.diagonal())
    off = (pairs - diags_array(each.numpy())).tocsr()
    off.eliminate_zeros()
    near, wanted = (off + off.T).tocsr(), (off + back * off.T).tocsr()
    scale = diags_array((1 / (each + ridge.of(each))).numpy())
    found = _largest(scale @ wanted, many)
    for _ in range(steps):
        found = _largest(scale @ (wanted - near @ _rows(*found)), many)
    item, weight = found
    rare = 1 / (each + ridge.same)
    return item, temper.rescale(weight.float(), rare.unsqueeze(1), rare[item.clamp(min=0)])


def _largest(weights: Any, many: int) -> tuple[Tensor, Tensor]:
    """Return the items with the largest weights of each row, and these. [I, many] each"""
    weights = weights.tocsr()
    weights.sort_indices()
    value, column = torch.from_numpy(weights.data), torch.from_numpy(weights.indices).long()
    first = torch.from_numpy(weights.indptr).long()
    row = torch.repeat_interleave(torch.arange(len(first) - 1), torch.diff(first))
    order = torch.argsort(value.abs(), descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(len(row)) - first[row[order]]
    kept = place < many
    row, place, order = row[order][kept], place[kept], order[kept]
    item = torch.full((len(first) - 1, many), -1, dtype=torch.int64)
    weight = torch.zeros(len(first) - 1, many, dtype=torch.float64)
    item[row, place], weight[row, place] = column[order], value[order]
    return item, weight


def _rows(item: Tensor, weight: Tensor) -> Any:
    from scipy.sparse import csr_array

    there = item >= 0
    first = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    cells = (weight[there].numpy(), item[there].numpy(), first.numpy())
    return csr_array(cells, shape=(len(item), len(item)))


def scores_of(item: Tensor, weight: Tensor, lot: Lot, each: Tensor) -> Tensor:
    """Add the weighted lists of each owner's items. [owners, I]

    item, weight: [I, many]    each: [n] what every own item counts
    """
    out = torch.zeros(lot.clients * len(item), device=weight.device)
    to, value = item[lot.item], weight[lot.item] * each.to(weight).unsqueeze(1)
    there = to >= 0
    cell = (lot.owner.unsqueeze(1) * len(item) + to)[there]
    return out.index_add_(0, cell, value[there]).view(lot.clients, len(item))


def _merged(places: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return every place once, sorted, with the sum of its values."""
    place, where = torch.unique(torch.cat(places), return_inverse=True)
    value = torch.cat(values)
    return place, value.new_zeros(len(place), 2).index_add_(0, where, value)


def _pieces(lot: Lot, sign: Tensor) -> list[tuple[Lot, Tensor]]:
    """Divide a lot between owners, so that each piece has at most `AT_ONCE` pairs if it can."""
    piece = torch.cumsum(lot.count**2, 0) // AT_ONCE
    out = []
    for number in torch.unique(piece).tolist():
        inside = piece == number
        entry = inside[lot.owner]
        owner = (torch.cumsum(inside, 0) - 1)[lot.owner[entry]]
        out.append((lot.only(entry, owner, int(inside.sum())), sign[inside]))
    return out
