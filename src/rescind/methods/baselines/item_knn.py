"""Item-based nearest neighbours from one sum over devices; no gradient training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.models.item_item import PAIRS, Neighbours, client_pairs, client_pairs_sum, must_fit


@dataclass(frozen=True, kw_only=True)
class ItemKNN(Method):
    """Recommend items often owned together with the user's items (Deshpande and Karypis 2004).

    similarity_ij = G_ij / sqrt(G_ii G_jj), G_ij the number of clients that own both. One round with
    all clients completes the training. G is a sum, so forgetting subtracts from it. Devices send
    their pairs: no privacy is claimed.
    """

    paper: ClassVar[str] = "Deshpande and Karypis, TOIS 2004"
    seedless: ClassVar[bool] = True
    control: ClassVar[bool] = True

    model: Neighbours = Neighbours()
    max_items: int = 20_000
    """Reject larger catalogues: the counts and their accumulator take 16 bytes a pair."""

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """Check the catalogue size; start without neighbours."""
        must_fit(world.sizes.items, self.max_items, "ItemKNN")
        return super().server_init(world, clock)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Find the most similar items of each item from the pair counts."""
        counted = [total.totals[PAIRS] for total in sums.values() if PAIRS in total.totals]
        if not counted:
            return state.next(state.public)
        items = world.sizes.items
        return state.next(nearest(sum(counted[1:], counted[0]).view(items, items), self.model.many))

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Send a 1 for every pair of items a client owns."""
        return client_pairs(cohort), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """Sum the counts of all clients at once."""
        return client_pairs_sum(cohort), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Return summed similarities to a client's own items. [C, I]"""
        return self.model.of_lot(public, cohort.own)


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
