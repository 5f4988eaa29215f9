"""Base of learners whose sums hold two whole numbers per pair: parts are replaced whole."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive._exchange import BLOCK, client_parts
from rescind.methods.additive._ordered import Counting
from rescind.methods.additive._pairs import Parts, sum_dtype
from rescind.methods.additive._release import Published, Solved
from rescind.methods.additive.gram import Gram


@dataclass(frozen=True, kw_only=True)
class CountedGram(Gram):
    """A learner whose parts are not of rank one: what a pair counts is said by `counting`.

    Devices send all their pairs, lent or kept, and must be online to forget (`cross`). Each change
    is solved again.
    """

    ordered: ClassVar[bool] = True

    cross: bool = field(default=True, init=False)
    release_size: int = field(default=50, init=False)  # settings of Gram that are not read here
    resolve_every: int = field(default=1000, init=False)
    solve_above: float = field(default=0.25, init=False)
    delta: float = field(default=1e-5, init=False)

    @property
    @abstractmethod
    def counting(self) -> Counting:
        """Return what each pair of a user's items counts."""

    @abstractmethod
    def server_weights(self, own: Params, about: Params | None = None) -> Tensor:
        """Solve for the weights. own: the sums, by key    about: facts about items, if known"""

    def check_plain(self) -> None:
        """Raise if a privacy setting of Gram is on: none of them is read here."""
        plain = self.release == "dense" and not (self.min_count or self.bound)
        if not plain or self.servers > 1 or not self.quiet:
            raise ConfigError(
                f"{type(self).__name__} publishes all weights of one exact sum. Remove release, "
                f"min_count, longest_history, equal_people, servers, noise, releases and "
                f"release_every."
            )

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        self.must_fit(world.sizes.items, world.members.device.type)
        own = {self.sum_key(world.block): self.server_zero(world)}
        return own, self.server_public(own, world)

    def server_zero(self, world: World) -> Tensor:  # [cells, 2]
        kind = sum_dtype(world.sizes.clients, world.block + 1)
        size = self.counting.cells(world.sizes.items)
        return torch.zeros(size, 2, dtype=kind, device=world.members.device)

    def server_public(self, own: Params, world: World) -> Params:
        block = torch.tensor([world.block], device=world.members.device)
        sums = {name: total for name, total in own.items() if name.startswith("gram/")}
        release = Solved(weights=lambda: self.server_weights(sums, world.about))
        counted = torch.stack([total.any() for total in sums.values()]).nonzero()
        return Published(counted, world.sizes.items, {BLOCK: block}, release)  # empty: no weights

    def server_received(self, sums: Sums, world: World) -> tuple[Parts, dict[str, Tensor]]:
        """Return no parts: a device that answers alone sends pairs, too."""
        totals = dict[str, Tensor]()
        for total in sums.values():
            for name, value in total.totals.items():
                summed = value.long()
                totals[name] = totals[name] + summed if name in totals else summed
        return Parts.none(world.members.device), totals

    def server_moved(
        self, own: Params, parts: Parts, totals: Params, world: World
    ) -> dict[str, Tensor]:
        kind = sum_dtype(world.sizes.clients, world.block + 1)
        return {name: (own[name].long() + total).to(kind) for name, total in totals.items()}

    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        items, blocks = world.sizes.items, torch.unique(parts.block).tolist()
        every = range(world.block + 1) if self.forgetting < 1 else (world.block,)
        total = {self.sum_key(block): self.server_zero(world) for block in {*blocks, *every}}
        for block in blocks:
            mine = parts.only(parts.block == block)
            summed, _ = ordered.ordered_sums(mine.lot, mine.weight.sign(), items, self.counting)
            total[self.sum_key(block)] += summed.to(self.server_zero(world).dtype)
        return total

    def server_items(self, own: Params) -> int:
        return max(
            self.counting.items(total) for name, total in own.items() if name.startswith("gram/")
        )

    def server_grown(self, own: Params, world: World) -> dict[str, Tensor]:
        self.must_fit(world.sizes.items, world.members.device.type)
        names = {name for name in own if name.startswith("gram/")}
        grown = dict(own)
        for name in {*names, self.sum_key(world.block)}:
            grown[name] = self.server_zero(world)
            if name in names:
                grown[name][: len(own[name])] = own[name]
        return grown

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        parts, private = client_parts(public, private, cohort, notes=self.notes)
        return ordered.client_rows(parts, cohort, self.sum_key, self.counting), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        parts, private = client_parts(public, private, cohort, notes=self.notes)
        return ordered.client_total(parts, cohort, self.sum_key, self.counting), private
