"""The additive learner for large catalogues: neighbours only, and sparse sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._exchange import BLOCK, client_items, client_parts, from_parts
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive.gram import Gram
from rescind.models.item_item import LocalWeights, must_fit


@dataclass(frozen=True, kw_only=True)
class LocalGram(Gram):
    """Gram with a sparse sum: each item is explained by its nearest neighbours (docs/additive.md).

    B_Nj = (G_NN / 4096 + ridge)^-1 G_Nj / 4096, N(j) the items of the highest cosine in G. Lists
    and weights are functions of the whole numbers in G, made anew for the items a change can reach,
    so they are bit for bit those of a history without what was forgotten.

    A dense sum over devices does not exist at this size: devices send their items and a weight, and
    the server makes the pairs. It sees single histories (`individual`); a sum of sparse pairs would
    not hide them either (additive.md section 4), and it would be longer.
    """

    paper: ClassVar[str] = "ours; local ridge on sums that can be taken back"
    individual: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("tuned",)

    model: LocalWeights = LocalWeights()  # type: ignore[assignment]
    ridge: float = 1.0
    ridge_per_item: float = 7.0
    """With the root of G_ii / 4096: on validation of Gowalla better than any one ridge for all."""
    ridge_power: float = 0.5
    source: Literal["everyone", "shared"] = "everyone"
    """Whose items G counts: everybody's, or only those lent to the server, which then asks nobody:
    the control that a claim for federation must beat, where EASE's pairs do not fit."""
    max_items: int = 1_000_000
    """Refuse larger catalogues: lists alone take 8 bytes a neighbour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.forgetting != 1:
            raise ConfigError(
                f"LocalGram keeps one sum for all blocks, so forgetting must be 1; got "
                f"{self.forgetting}. Gram keeps one per block, for smaller catalogues."
            )
        if self.release != "dense" or self.min_count or self.servers > 1 or not self.quiet:
            raise ConfigError(
                "LocalGram publishes neighbours as it is (LocalWeights.many) and needs single "
                "histories; release, min_count, servers, noise and release_every are settings of "
                "Gram. Leave them out."
            )
        if self.source == "shared" and self.cross:
            raise ConfigError(
                "LocalGram.cross leaves all counting to devices, and source = 'shared' asks none "
                "of them, so nothing would be counted. Leave one of them out."
            )
        if self.model.many < 1:
            raise ConfigError(f"LocalWeights.many must be at least 1, got {self.model.many}.")

    @classmethod
    def tuned(cls, **fields: Any) -> LocalGram:
        """With weights bent as validation of Gowalla chose, seed 0 (docs/additive.md)."""
        return cls(**{"shown_power": 0.1, "sharpen": 1.1, **fields})

    # -- server side -----------------------------------------------------------------------------

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Whoever has not been counted in this block; nobody where loans are all that counts."""
        ids = super().server_sample(state, world, clock)
        return ids if self.asks_devices else ids[:0]

    @property
    def asks_devices(self) -> bool:
        """Not where what was lent is all that counts."""
        return self.source == "everyone"

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        """No pairs and no neighbours: (own, public)."""
        items = world.sizes.items
        must_fit(items, self.max_items, type(self).__name__)
        own = SparseGram.none(items).packed() | Near.none(items, self.model.many).packed()
        return own, self.server_public(own, world)

    def server_public(self, own: Params, world: World) -> Params:
        """The neighbours with their weights, and the block."""
        block = torch.tensor([world.block], device=world.members.device)
        return {"neighbour": own["near/item"], "weight": own["near/weight"], BLOCK: block}

    def server_received(
        self, sums: Mapping[str, Sum], world: World
    ) -> tuple[Parts, dict[str, Tensor]]:
        """The parts of single devices."""
        return from_parts(sums, world.members.device), {}

    def server_moved(
        self, own: Params, parts: Parts, totals: Params, world: World
    ) -> dict[str, Tensor]:
        """G with the parts added, and the lists that this can reach made anew."""
        gram = SparseGram.of(own).plus(parts)
        near = Near.of(own)
        rows = near.stale(gram, torch.unique(parts.lot.item))
        near = near.solved(gram, rows, self.ridges, self.temper)
        return gram.packed() | near.packed()

    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        """G of these parts alone, added up from nothing."""
        return SparseGram.none(world.sizes.items).plus(parts).packed()

    def server_items(self, own: Params) -> int:
        """How many items the sum is for."""
        return SparseGram.of(own).items

    def server_grown(self, own: Params, world: World) -> dict[str, Tensor]:
        """Room for new items."""
        items = world.sizes.items
        must_fit(items, self.max_items, type(self).__name__)
        gram, near = SparseGram.of(own).longer(items), Near.of(own).longer(items)
        return {**own, **gram.packed(), **near.packed()}

    # -- client side -----------------------------------------------------------------------------

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """What a device has now less what it has counted: items, and a weight for each set."""
        parts, private = client_parts(public, private, cohort, self.longest_history)
        return client_items(parts, cohort), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold; the single updates travel beside it."""
        update, private = self.client_train(public, private, cohort, clock)
        return update.fold(cohort.weight), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """x B with the device's own items. [C, I]"""
        return self.model.of_lot(public, cohort.own)
