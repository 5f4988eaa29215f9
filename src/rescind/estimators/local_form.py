"""`rs.Gram` for large catalogues: neighbours instead of all pairs, as LocalGram has them."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.params import Params
from rescind.estimators.frames import Ints
from rescind.estimators.ledger import Ledger
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive.local_gram import LocalGram
from rescind.models.item_item import by_source


def local_sum(ledger: Ledger, place: Ints, items: int) -> Tensor:
    """Return G without zero pairs as one column: starts of rows, items, values.

    place: of each slot in the order of ids
    """
    lot = ledger.lot(ledger.of.values(), place)
    ids = torch.arange(lot.clients)
    gram = SparseGram.none(items).plus(Parts.of(lot, 1, ids, torch.zeros_like(ids)))
    return torch.cat([gram.first, gram.other.long(), gram.value])


def local_weights(total: Tensor, items: int, method: LocalGram) -> Tensor:
    """Return neighbours and their weights. [2, I, many] float64"""
    pairs = (len(total) - items - 1) // 2
    first, other, value = torch.split(total, [items + 1, pairs, pairs])
    gram = SparseGram(first, other.int(), value)
    near = Near.none(items, method.model.many)
    near = near.solved(gram, torch.arange(items), method.ridges, method.temper)
    return torch.stack([near.item.double(), near.weight.double()])


def strongest(public: Params, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest weights of each item above 0: (item, neighbour, weight)."""
    weights = by_source(public).tocoo()
    row, column, value = (torch.from_numpy(part) for part in (*weights.coords, weights.data))
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    row, column, value = row[order].long(), column[order].long(), value[order]
    first = torch.searchsorted(row, torch.arange(weights.shape[0]))
    kept = (torch.arange(len(row)) - first[row] < k) & (value > 0)
    return row[kept], column[kept], value[kept]
