"""Item-based nearest neighbours from one sum over devices; no gradient training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.methods.baselines.ease import PairCounting
from rescind.models.item_item import Neighbours


@dataclass(frozen=True, kw_only=True)
class ItemKNN(PairCounting):
    """Recommend items often owned together with the user's items (Deshpande and Karypis 2004).

    similarity_ij = G_ij / sqrt(G_ii G_jj), G_ij the number of clients that own both. One round with
    all clients completes the training. G is a sum, so forgetting subtracts from it. Devices send
    their pairs: no privacy is claimed.
    """

    paper: ClassVar[str] = "Deshpande and Karypis, TOIS 2004"

    model: Neighbours = Neighbours()

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        counts = self.server_counts(sums, world)
        return state.next(state.public if counts is None else nearest(counts, self.model.many))


def nearest(counts: Tensor, k: int, block: int = 1024) -> dict[str, Tensor]:
    """Return the k most similar items by cosine; ties go to the lower item id.

    counts: [I, I] integers -> neighbour, similarity: [I, k], -1 and 0 where there is none
    """
    items = len(counts)
    size = counts.diagonal().double().clamp(min=1).rsqrt()
    neighbour = torch.full((items, k), -1, dtype=torch.int64, device=counts.device)
    similarity = torch.zeros(items, k, device=counts.device)
    for start in range(0, items, block):
        rows = counts[start : start + block].double() * size[start : start + block, None] * size
        place = torch.arange(len(rows), device=counts.device)
        rows[place, start + place] = 0.0
        value, item = torch.sort(rows, dim=1, descending=True, stable=True)
        value, item = value[:, :k], item[:, :k]
        neighbour[start : start + block, : item.shape[1]] = torch.where(value > 0, item, -1)
        similarity[start : start + block, : item.shape[1]] = value.float()
    return {"neighbour": neighbour, "similarity": similarity}
