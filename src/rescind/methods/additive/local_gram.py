"""LocalGram: Gram for large catalogues, with sparse sums and nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Private, ServerState
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._exchange import BLOCK, client_items, client_parts, from_parts
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive.gram import Gram
from rescind.models.item_item import LocalWeights, must_fit


@dataclass(frozen=True, kw_only=True)
class LocalGram(Gram):
    """Gram with a sparse sum: each item uses its nearest neighbours only (docs/additive.md).

    B_Nj = (G_NN / 4096 + ridge)^-1 G_Nj / 4096, N(j) the items with the highest cosine in G. Lists
    and weights are recomputed for all items a change can affect, so they are bit-identical to a
    history without the forgotten records.

    Devices send their items and a weight, and the server makes the pairs: it sees single histories
    (`individual`); a sum of sparse pairs would not hide them either (additive.md section 4).
    """

    paper: ClassVar[str] = "ours; local ridge on sums that can be taken back"
    individual: ClassVar[bool] = True

    model: LocalWeights = LocalWeights()  # type: ignore[assignment]
    ridge: float = 1.0
    ridge_per_item: float = 7.0
    """Factor of sqrt(G_ii / 4096): better than one ridge for all on Gowalla validation."""
    ridge_power: float = 0.5
    source: Literal["everyone", "shared"] = "everyone"
    """Items counted in G: of all clients, or lent items only, without asking devices. The second is
    the control for federation if EASE's pairs do not fit into memory."""
    release_size: int = field(default=50, init=False)  # settings of a dense sum, not read here
    resolve_every: int = field(default=1000, init=False)
    solve_above: float = field(default=0.25, init=False)
    delta: float = field(default=1e-5, init=False)  # of noise, which it refuses
    max_items: int = 1_000_000
    """Largest catalogue allowed: lists take 8 bytes per neighbour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.forgetting != 1:
            raise ConfigError("LocalGram keeps one sum for all blocks, so forgetting must be 1.")
        if self.release != "dense" or self.min_count or self.servers > 1 or not self.quiet:
            raise ConfigError(
                "LocalGram publishes neighbours and needs single histories. Remove release, "
                "min_count, servers, noise, releases and release_every, or use Gram."
            )
        if self.source == "shared" and self.cross:
            raise ConfigError("with cross and source = 'shared' nothing would be counted.")
        must_lie(self.model, "[1, inf)", "many")

    @classmethod
    def tuned(cls, **fields: Any) -> LocalGram:
        """Return LocalGram with weights rescaled as tuned on Gowalla, seed 0 (docs/additive.md)."""
        return cls(**{"shown_power": 0.1, "sharpen": 1.1, **fields})

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        ids = super().server_sample(state, world, clock)
        return ids if self.asks_devices else ids[:0]

    @property
    def asks_devices(self) -> bool:
        return self.source == "everyone"

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        items = world.sizes.items
        must_fit(items, self.max_items, type(self).__name__)
        own = SparseGram.none(items).packed() | Near.none(items, self.model.many).packed()
        return own, self.server_public(own, world)

    def server_public(self, own: Params, world: World) -> Params:
        block = torch.tensor([world.block], device=world.members.device)
        return {"neighbour": own["near/item"], "weight": own["near/weight"], BLOCK: block}

    def server_received(self, sums: Sums, world: World) -> tuple[Parts, dict[str, Tensor]]:
        return from_parts(sums, world.members.device), {}

    def server_moved(
        self, own: Params, parts: Parts, totals: Params, world: World
    ) -> dict[str, Tensor]:
        gram = SparseGram.of(own).plus(parts)
        near = Near.of(own)
        rows = near.stale(gram, torch.unique(parts.lot.item))
        return gram.packed() | near.solved(gram, rows, self.ridges, self.temper).packed()

    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        return SparseGram.none(world.sizes.items).plus(parts).packed()

    def server_items(self, own: Params) -> int:
        return SparseGram.of(own).items

    def server_grown(self, own: Params, world: World) -> dict[str, Tensor]:
        items = world.sizes.items
        must_fit(items, self.max_items, type(self).__name__)
        gram, near = SparseGram.of(own).longer(items), Near.of(own).longer(items)
        return {**own, **gram.packed(), **near.packed()}

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        parts, private = client_parts(public, private, cohort, self.bound)
        return client_items(parts, cohort), private

    client_sum = Method.client_sum

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        return self.model.of_lot(public, cohort.own)
