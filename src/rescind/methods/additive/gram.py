"""Gram: an item-item model from a sum over users, solved in closed form. Forgets exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.doing import step
from rescind.core.federation import Federation
from rescind.core.memory import free_memory
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.world import World
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _exchange as exchange
from rescind.methods.additive._additive import Additive
from rescind.methods.additive._exchange import (
    BLOCK,
    LEAVE,
    OWNERS,
    Lent,
    flagged,
    owners_in,
)
from rescind.methods.additive._pairs import AT_ONCE, Parts, add_pairs, items_of, sum_dtype
from rescind.methods.additive._release import (
    NOISE,
    Published,
    Release,
    above_noise,
    correlated,
    drawn,
    noise_ridge,
    noisy,
    sensitivity,
    spread,
)
from rescind.methods.additive._solve import WEIGHTS, changed, cleared, inverse_of
from rescind.methods.additive._solving import TUNED, Solving, half
from rescind.models.item_item import ItemWeights
from rescind.privacy.schedules import noise_of

PAIR_BYTES = 30
"""Memory for each pair (i, j) of items at the most, measured: sum, inverse, and a solve."""
DENSE_ITEMS = 10_000
"""Where nobody chose, larger catalogues keep neighbours, not all pairs (`AutoGram`, `rs.Gram`).
10,000 items are solved in 30 CPU s (`SOLVE_SECONDS`) and take 3 GB (`PAIR_BYTES`). A fixed number:
the result must not depend on the machine."""


@dataclass(frozen=True, kw_only=True)
class Gram(Solving, Additive):
    """A weighted Gram matrix of items, summed over users; forgetting subtracts (docs/additive.md).

    G = sum of w_u x_u x_u^T over users and blocks, w_u = round(4096 / sqrt(n_u)), in integers; C =
    (G / 4096 + ridge I)^-1; B = I - C / diag(C); the score is x B. One round with all clients is
    enough.

    A user has two parts: lent items, counted by the server, and kept items, sent by the device.
    There are no pairs across, so lent items are forgotten with no device online.
    """

    paper: ClassVar[str] = "ours; EASE (Steck, WWW 2019) on sums that can be taken back"
    seedless: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("tuned",)

    model: ItemWeights = ItemWeights()
    forgetting: float = 1.0
    """Delta: factor on older blocks, per block. Below 1 one matrix is kept per block."""
    max_items: int = 20_000
    """Largest catalogue allowed (16 bytes per pair). Use LocalGram for larger ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, 1]", "forgetting")
        self.check_solving()
        self.check_dial()
        if self.noise_floor and (not self.noise or self.ridge_per_item):
            raise ConfigError("noise_floor needs noise above 0 and ridge_per_item = 0.")

    @classmethod
    def tuned(cls, **fields: Any) -> Gram:
        """Return Gram as tuned on ML-1M validation (docs/additive.md). Each change solves again."""
        return cls(**{**TUNED, **fields})

    def server_init(self, world: World, clock: Clock) -> ServerState:
        device, clients = world.members.device, world.sizes.clients
        flags = {
            "counted": torch.full((clients,), -1, dtype=torch.int16, device=device),
            "owes": torch.zeros(clients, dtype=torch.bool, device=device),
            "lost": torch.zeros(clients, dtype=torch.bool, device=device),
            "rounds": torch.full((1,), -1, dtype=torch.int64, device=device),
            "released": torch.zeros(2, dtype=torch.int64, device=device),  # releases, users since
        }
        own, public = self.server_empty(world)
        return ServerState(public, Lent.none(device).into({**own, **flags}))

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        """Return (own, public) for G = 0. C is solved once a client is counted."""
        items, device = world.sizes.items, world.members.device
        self.must_fit(items, device.type)
        own = {
            self.sum_key(world.block): self.server_zero(world),
            "inverse": torch.zeros(0, dtype=torch.float64, device=device),
            "changes": torch.zeros(1, dtype=torch.int64, device=device),
        }
        if self.min_count:
            own[OWNERS] = torch.zeros(items, dtype=torch.int64, device=device)
        return own, self.server_public(own, world)

    def server_zero(self, world: World) -> Tensor:  # [I (I + 1) / 2]
        kind = sum_dtype(world.sizes.clients, world.block + 1)
        return torch.zeros(half(world.sizes.items), dtype=kind, device=world.members.device)

    def server_public(self, own: Params, world: World) -> Params:
        """Return what is broadcast: the block, and the weights, computed when first read."""
        block = torch.tensor([world.block], device=world.members.device)
        rare = own[OWNERS] < self.min_count if self.min_count else None
        noised = (lambda: self.server_noised(own, world)) if self.noise else None
        release = Release(self.release, self.release_size, rare, noised, self.temper)
        return Published(own["inverse"], world.sizes.items, {BLOCK: block}, release)

    def server_noised(self, own: Params, world: World) -> Tensor:
        items, grams = world.sizes.items, self.server_grams(own)
        moved, noise = self.server_reach(world), self.noise
        total = torch.stack([total.double() * factor for total, factor in grams]).sum(0)
        if self.releases:
            draws = drawn(own)
            noise = noise_of(noise, self.releases)[len(draws) - 1]
            released = (total + correlated(draws)).round()
        else:
            released = noisy(total, noise, moved)
        more = noise_ridge(noise, moved, items)
        if self.noise_floor:
            return above_noise(released, self.noise_floor * more, self.ridge)
        while True:
            try:
                ridge = replace(self.ridges, same=self.ridge + more)
                return inverse_of([(released, 1.0)], items, ridge)
            except DataError:  # rare; depends on released values only
                more *= 1.5

    def server_draw(self, pairs: int, world: World) -> Tensor:
        """Draw z_s of a schedule for this many pairs. [pairs] float64"""
        none = torch.zeros(pairs, dtype=torch.float64, device=world.members.device)
        return spread(none, noise_of(self.noise, self.releases)[0], self.server_reach(world))

    def server_reach(self, world: World) -> float:
        parts = 1 if self.cross else 2
        return sensitivity(self.bound, world.sizes.items, parts, world.block + 1)

    def server_published(self, state: ServerState, world: World, people: int) -> ServerState:
        """Make a new release, or keep the old one: too few users have changed, or none is left."""
        before = state.own["released"]
        releases, since = (int(n) for n in before)
        due = not releases or since + people >= self.release_every
        due &= not self.releases or releases < self.releases
        own, old = state.own, state.public
        if due and self.releases:  # drawn now, not when the weights are read: it is kept
            draw = self.server_draw(half(world.sizes.items), world)
            own = {**own, f"{NOISE}{releases:04d}": draw}
        public = self.server_public(own, world) if due else self.server_reuse(old, world)
        counted = [releases + 1, 0] if due else [releases, since + people]
        return replace(state, own={**own, "released": before.new_tensor(counted)}, public=public)

    def server_reuse(self, public: Params, world: World) -> Params:
        """Return the last release with the current block, and zeros for new items."""
        old, items = public[WEIGHTS], world.sizes.items
        if len(old) < items:
            new = items - len(old)
            old = torch.nn.functional.pad(old, (0, new, 0, new))
        return {BLOCK: torch.tensor([world.block], device=world.members.device), WEIGHTS: old}

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Select clients not counted in this block, and those that owe a difference. [k] sorted"""
        flags = exchange.grown_flags(state.own, world)
        willing = world.available if self.cross else world.announced.keeps
        asked = (willing & (flags["counted"] < world.block)) | (flags["owes"] & world.members)
        ids = asked.nonzero().squeeze(1)
        most = AT_ONCE - 1 if self.clients_per_round is None else self.clients_per_round
        if most >= len(ids):
            return ids
        order = torch.argsort(clock.bits("sample", ids), stable=True)
        return ids[order[: min(most, AT_ONCE - 1)]].sort().values

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        after = self.server_absorb(state, sums, world)
        latest = torch.full_like(after.own["rounds"], world.block)
        return after.next(after.public, {**after.own, "rounds": latest})

    def server_absorb(
        self, state: ServerState, sums: Sums, world: World, lenders: Tensor | None = None
    ) -> ServerState:
        flags = exchange.grown_flags(state.own, world)
        for role, total in sums.items():
            # Leaving clients are not counted; hosted clients are asked in every round.
            if LEAVE not in role and not role.startswith("host"):
                flags["counted"] = flagged(flags["counted"], total.who, world.block)
                flags["owes"] = flagged(flags["owes"], total.who, False)
        parts, totals = self.server_received(sums, world)
        own = {**state.own, **flags}
        people = [total.who for total in sums.values()]
        if not self.cross:
            lent, moved = Lent.of(state.own).follow(world, lenders, self.bound)
            people.append(moved.client)
            own = lent.into(own)
            parts = parts + moved
        if not len(parts) and not any(bool(total.any()) for total in totals.values()):
            return replace(state, own=own)
        with step("adding what users have to the sum, and solving"):
            own |= self.server_moved(own, parts, totals, world)
            count = len(torch.unique(torch.cat(people))) if people else 0
            return self.server_published(replace(state, own=own), world, count)

    def server_received(self, sums: Sums, world: World) -> tuple[Parts, dict[str, Tensor]]:
        return exchange.from_totals(sums, world.members.device)

    def server_moved(
        self, own: Params, parts: Parts, totals: Params, world: World
    ) -> dict[str, Tensor]:
        """Add the differences to G in integers, and update its inverse or solve again."""
        items, kind = world.sizes.items, sum_dtype(world.sizes.clients, world.block + 1)
        blocks = torch.unique(parts.block).tolist()
        names = dict.fromkeys([*map(self.sum_key, blocks), *totals])
        now = {name: own[name].to(kind, copy=True) for name in names}
        for block in blocks:
            mine = parts.only(parts.block == block)
            add_pairs(now[self.sum_key(block)], mine.lot, mine.weight)
        for name, total in totals.items():
            now[name].add_(total)
        if self.min_count:
            now[OWNERS] = now.get(OWNERS, own[OWNERS]) + owners_in(parts, items)
        changes = own["changes"] + len(parts)
        solve = (
            not own["inverse"].numel()
            or any(bool(total.any()) for total in totals.values())
            or self.ridge_per_item > 0
            or len(parts) > self.solve_above * items
            or int(changes) > self.resolve_every
        )
        if solve:
            inverse = self.server_solved({**own, **now}, world)
            return {**now, "inverse": inverse, "changes": torch.zeros_like(changes)}
        scale = self.forgetting ** (world.block - parts.block).double()
        inverse = changed(own["inverse"], parts, scale)
        grams = [v for n, v in {**own, **now}.items() if n.startswith("gram/")]
        return {**now, "inverse": cleared(inverse, parts, grams, self.ridge), "changes": changes}

    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        items, blocks = world.sizes.items, torch.unique(parts.block).tolist()
        # Blocks with no counted client have a matrix, too.
        every = range(world.block + 1) if self.forgetting < 1 else (world.block,)
        total = {self.sum_key(block): self.server_zero(world) for block in {*blocks, *every}}
        for block in blocks:
            mine = parts.only(parts.block == block)
            add_pairs(total[self.sum_key(block)], mine.lot, mine.weight)
        if self.min_count:
            total[OWNERS] = owners_in(parts, items)
        return total

    def server_solved(self, own: Params, world: World) -> Tensor:
        return inverse_of(self.server_grams(own), world.sizes.items, self.ridges)

    def server_grams(self, own: Params) -> list[tuple[Tensor, float]]:
        """Return (sum, decay factor) of every block, oldest first."""
        blocks = sorted(name for name in own if name.startswith("gram/"))
        last = int(blocks[-1][-4:])
        return [(own[name], self.forgetting ** (last - int(name[-4:]))) for name in blocks]

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Start a block: keep the sum, with zeros for new items."""
        if state.round:  # earlier loans belong to the block that ends
            sizes = replace(world.sizes, items=self.server_items(state.own))
            ended = replace(world, block=world.block - 1, sizes=sizes)
            state = self.server_absorb(state, {}, ended)
        own = self.server_grown(state.own, world)
        same = self.quiet or not int(own["released"][0])
        public = self.server_public(own, world) if same else self.server_reuse(state.public, world)
        return replace(state, own=own, public=public)

    def server_items(self, own: Params) -> int:
        return max(items_of(total) for name, total in own.items() if name.startswith("gram/"))

    def server_grown(self, own: Params, world: World) -> dict[str, Tensor]:
        """Extend the sum by new items, and by a new block if blocks decay."""
        items, old = world.sizes.items, own["inverse"]
        self.must_fit(items, old.device.type)
        grown = dict(own)
        names = {name for name in own if name.startswith("gram/")}
        for name in {*names, self.sum_key(world.block)}:
            grown[name] = self.server_zero(world)
            if name in names:
                grown[name][: len(own[name])] = own[name]
        if old.numel() and self.forgetting < 1:
            grown["inverse"] = self.server_solved(grown, world)
            grown["changes"] = torch.zeros_like(own["changes"])
        elif len(old):  # no pairs with new items yet: C is 1 / ridge there
            new = torch.arange(items_of(old), items, device=old.device)
            grown["inverse"] = torch.cat([old, old.new_zeros(half(items) - len(old))])
            grown["inverse"][half(new + 1) - 1] = 1 / self.ridge
        for name in (name for name in own if name.startswith(NOISE)):
            more = self.server_draw(half(items) - len(own[name]), world)
            grown[name] = torch.cat([own[name], more])
        if self.min_count:
            counts = own[OWNERS]
            grown[OWNERS] = torch.cat([counts, counts.new_zeros(items - len(counts))])
        return grown

    def must_fit(self, items: int, device: str = "cpu") -> None:
        """Raise before memory is taken, if every pair of items needs more than there is."""
        need, free = PAIR_BYTES * items * items, free_memory() if device == "cpu" else None
        limit = f"{free / 1e9:.1f} GB are free" if free is not None and need > free else ""
        if items > self.max_items:
            limit = f"max_items is {self.max_items:,}"
        if limit:
            raise ConfigError(
                f"{type(self).__name__} stores every pair: {items:,} items take about "
                f"{need / 1e9:.1f} GB, and {limit}. Raise it, or use rs.methods.LocalGram."
            )

    def sum_key(self, block: int) -> str:
        """Return the key of a block's sum: one matrix, or one per block if blocks decay."""
        return f"gram/{block if self.forgetting < 1 else 0:04d}"

    def client_weight(self, cohort: Cohort) -> Tensor:
        """Return ones: parts have their own integer weights. [C]"""
        return torch.ones(len(cohort), device=cohort.ids.device)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Return current minus counted items of each device: as pairs, or as items if alone."""
        parts, private = exchange.client_parts(public, private, cohort, self.bound)
        return exchange.client_rows(parts, cohort, self.sum_key, self.min_count > 0), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        parts, after = exchange.client_parts(public, private, cohort, self.bound)
        if exchange.alone(cohort.role):
            return exchange.client_items(parts, cohort).fold(cohort.weight), after
        return exchange.client_total(parts, cohort, self.sum_key, self.min_count > 0), after

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        return exchange.client_block_end(public, private, cohort, self.notes)

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        return self.model.of_lot({WEIGHTS: public[WEIGHTS]}, cohort.own)


def gram_of(fed: Federation) -> Gram:
    """Return the method of a federation that learns with pairs without order, or raise."""
    if not isinstance(fed.method, Gram) or fed.method.ordered:
        raise ConfigError(f"this needs a run of Gram; got one of {type(fed.method).__name__}.")
    return fed.method
