"""Releases of an additive learner: their form, schedule and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.guards import Gaussian
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.methods.additive._pairs import EQUAL, halved, mirrored, weight_of
from rescind.methods.additive._solve import WEIGHTS, weights_of
from rescind.methods.additive._solving import UNIT, Temper, half
from rescind.privacy.schedules import root

NOISE = "noise/"
"""Names of what was drawn for each release of a schedule: the server's secret, like the sum."""
LONGEST = 1000
"""Releases of a schedule at most: each keeps 8 bytes per pair of items."""
FORMS = {
    "dense": "all weights",
    "neighbours": "the {size} largest weights of each item",
    "factors": "weights of rank {size}",
}
OVERSAMPLED, POWERS = 32, 6
"""Extra columns, and power iterations, of the randomised SVD (Halko, Martinsson, Tropp 2011): on
ML-100K and ML-1M within .2 % of the distance of the best matrix of that rank."""
EDGE = 2.2
"""The largest eigenvalue of symmetric noise of deviation s on n items is 2 s sqrt(n) for large n
(Wigner 1955); 10 % more covers small n."""


@dataclass(frozen=True, kw_only=True)
class Dial:
    """Privacy settings of an additive learner (docs/additive.md). All off by default."""

    release: Literal["dense", "neighbours", "factors"] = "dense"
    """Form of B sent to devices: complete, the largest entries of each column, or low rank. The
    peeling attack reads histories from a dense B as well as from G (`rescind leak`)."""
    release_size: int = 50
    """Number of neighbours per item, or of factors."""
    min_count: int = 0
    """Hide items with fewer owners, because rare items identify their owners. Above 0, devices
    also send a count of 1 per item. 0 hides none."""
    longest_history: int = 0
    """Histories with more items weigh floor(4096 sqrt(longest) / n) per pair instead of
    round(4096 / sqrt(n)), which bounds what one user can change. 0: no bound."""
    equal_people: bool = False
    """Every history weighs floor(4096 sqrt(2 / (n (n + 1)))) per pair, so that all have the same
    norm, 1, in the sum: the best use of noise. Replaces `longest_history`."""
    noise: float = 0.0
    """Gaussian noise on every release: standard deviation divided by `sensitivity`. Needs
    `equal_people` or `longest_history`. 0: no noise."""
    noise_floor: float = 0.0
    """Subtracted from every eigenvalue of a noisy sum (those below become 0), as a fraction of the
    largest that noise has: better than a ridge, and an eigenvalue decomposition for each release.
    0: the largest that noise has is added to the ridge instead."""
    releases: int = 0
    """Make this many releases at most, with noise correlated over them (`privacy.schedules`):
    `noise` is then that of the whole schedule. 0: any number, each with fresh noise."""
    delta: float = 1e-5
    """Delta of the stated epsilon; choose it well below 1 / users."""
    servers: int = 1
    """2: two processes add secret shares, and only the sum over all clients is opened
    (`privacy.two_servers`). 1: one server adds the plain values."""
    release_every: int = 1
    """Users that must change before a new release is made. Until then devices get the old one,
    which still contains records forgotten since; receipts state this."""

    def check_dial(self) -> None:
        name = type(self).__name__
        if self.release not in FORMS:
            raise ConfigError(f"{name}.release must be one of {', '.join(FORMS)}.")
        must_lie(self, "[1, inf)", "release_size", "release_every")
        must_lie(self, "[0, inf)", "min_count", "longest_history", "noise")
        must_lie(self, "[0, 1]", "noise_floor")
        must_lie(self, f"[0, {LONGEST}]", "releases")
        must_lie(self, "(0, 1)", "delta")
        must_lie(self, "[1, 2]", "servers")
        if self.equal_people and self.longest_history:
            raise ConfigError(f"{name}: set only one of equal_people and longest_history.")
        if self.noise and not self.bound:
            raise ConfigError(
                f"{name}.noise needs longest_history (from 1 to 100) or equal_people."
            )
        if self.releases and not self.noise:
            raise ConfigError(f"{name}.releases is a schedule of noise, and noise is 0.")
        if self.noise and self.min_count:
            raise ConfigError(f"{name}.min_count uses exact counts, which noise does not cover.")

    @property
    def bound(self) -> int:
        """Return how one user's part is bounded: `longest` of `weight_of`."""
        return EQUAL if self.equal_people else self.longest_history

    def release_form(self) -> str:
        form = FORMS[self.release].format(size=self.release_size)
        if self.min_count:
            form += f", of items that {self.min_count:,} people or more have"
        if self.longest_history:
            form += f", histories counting as {self.longest_history:,} items at most"
        if self.equal_people:
            form += ", every history of the same norm"
        noise = f"noise of {self.noise:g} times what one person can change" if self.noise else ""
        if self.releases:
            noise += f", correlated over {self.releases:,} releases"
        return f"{form}; {noise or 'no noise'}"

    @property
    def quiet(self) -> bool:
        """Return whether every change makes a release without noise."""
        return not (self.noise or self.releases) and self.release_every == 1


def sensitivity(longest: int, items: int, parts: int, blocks: int = 1) -> float:
    """Bound how far one user moves the released half of G / 4096, in Euclidean norm.

    A part of n items has the weight w_n at its n (n + 1) / 2 pairs i >= j: norm w_n sqrt(n (n + 1)
    / 2). This takes the exact maximum over all n <= items (for w_n see `weight_of`). A user's
    `parts` in a block (lent, kept) have no common pairs: their squares add. Over blocks norms add.
    So sums with and without any one user are at most this far apart, if devices follow the
    protocol.
    """
    each = torch.arange(1, items + 1)
    norms = weight_of(each, longest).double() / UNIT * half(each).double().sqrt()
    return blocks * math.sqrt(parts) * float(norms.max()) if items else 0.0


def noisy(total: Tensor, noise: float, moved: float) -> Tensor:
    """Add Gaussian noise of standard deviation noise * moved * 4096 to a half of G, and round.

    The noise comes from the operating system, never from a seed. Rounding is post-processing, so
    epsilon holds, and it removes the low digits of the floats.

    total: [I (I + 1) / 2] in units of 1 / 4096    moved: `sensitivity`
    """
    return spread(total, noise, moved).round()


def spread(total: Tensor, noise: float, moved: float) -> Tensor:
    """Add the same noise without rounding, in float64."""
    sums = Sum({"gram": total.double()}, 1.0, 1)
    return Gaussian(noise, moved * UNIT).total(sums).totals["gram"]


def drawn(own: Params) -> list[Tensor]:
    """Return z_0, z_1, ...: what was drawn for each release of a schedule."""
    return [own[name] for name in sorted(own) if name.startswith(NOISE)]


def correlated(draws: Sequence[Tensor]) -> Tensor:
    """Compute the noise of the last release of a schedule: the sum of c_(r - s) z_s over s <= r.

    z_s are float64 and never rounded. The parts of what R protects are not whole numbers, so with
    whole z_s the last digit of a release would tell sums apart.
    """
    total = torch.zeros_like(draws[-1])
    for z, c in zip(reversed(draws), root(len(draws)), strict=True):
        total.add_(z, alpha=c)
    return total


def noise_ridge(noise: float, moved: float, items: int) -> float:
    """Return the extra ridge that keeps a noisy sum positive definite."""
    return EDGE * noise * moved * math.sqrt(items)


def above_noise(released: Tensor, floor: float, ridge: float) -> Tensor:
    """Compute the lower half of (S + ridge)^-1, S the noisy sum less `floor` in every direction.

    Noise spreads over all directions alike (Wigner 1955); people agree on few.
    """
    value, vector = torch.linalg.eigh(mirrored(released) / UNIT)
    return halved((vector / ((value - floor).clamp(min=0) + ridge)) @ vector.T)


def neighbours(weights: Tensor, count: int) -> Tensor:
    """Keep the largest entries of each column. [I, I]"""
    value, row = weights.abs().topk(min(count, len(weights)), dim=0)
    return torch.zeros_like(weights).scatter_(0, row, weights.gather(0, row) * (value > 0))


def factors(weights: Tensor, rank: int) -> Tensor:
    """Approximate the nearest matrix of this rank, with a zero diagonal. [I, I]

    Randomised SVD (Halko, Martinsson, Tropp 2011, algorithm 4.4): a twentieth of the time of a full
    SVD at 3,706 items. The start columns are hashes, so the result depends on B only.
    """
    items, wide = len(weights), rank + OVERSAMPLED
    full = weights.double()
    if 2 * wide >= items:
        left, size, right = torch.linalg.svd(full, full_matrices=False)
        near = (left[:, :rank] * size[:rank]) @ right[:rank]
        return near.fill_diagonal_(0.0).to(weights.dtype)
    single = weights.float()
    place = torch.arange(items * wide, device=weights.device)
    start = Clock(0).normal("factors", place).view(items, wide).to(single)
    basis = torch.linalg.qr(single @ start).Q
    for _ in range(POWERS):
        basis = torch.linalg.qr(single.T @ basis).Q
        basis = torch.linalg.qr(single @ basis).Q
    basis = torch.linalg.qr(basis.double()).Q
    inside = basis.T @ full  # [wide, I]
    left, size, right = torch.linalg.svd(inside, full_matrices=False)
    near = ((basis @ left[:, :rank]) * size[:rank]) @ right[:rank]
    return near.fill_diagonal_(0.0).to(weights.dtype)


@dataclass(frozen=True)
class Release:
    """How weights are published. A function of the weights and G, so it forgets as they do."""

    form: str = "dense"
    """dense, neighbours or factors"""
    size: int = 50
    rare: Tensor | None = None
    """[I] bool: hidden items."""
    noised: Callable[[], Tensor] | None = None
    """Returns the lower half of C from a sum with noise; replaces the exact C."""
    temper: Temper = Temper()
    """Rescaling of the weights before they are cut."""

    def of(self, inverse: Tensor) -> Tensor:
        """Compute the published weights. inverse: its lower half -> [I, I] float32"""
        weights = weights_of(mirrored(self.noised() if self.noised else inverse), self.temper)
        if self.rare is not None:
            weights = weights.masked_fill(self.rare[:, None] | self.rare[None, :], 0.0)
        if self.form == "neighbours":
            return neighbours(weights, self.size)
        return factors(weights, self.size) if self.form == "factors" else weights


@dataclass(frozen=True)
class Solved(Release):
    """Weights that are computed from the sums when they are first read."""

    weights: Callable[[], Tensor] = field(kw_only=True)

    def of(self, inverse: Tensor) -> Tensor:
        return self.weights()


class Published(Mapping[str, Tensor]):
    """Public parameters with item weights that are computed when first read.

    Many changes may come before the next recommendation. The inverse itself cannot be read here.
    """

    def __init__(
        self, inverse: Tensor, items: int, others: Params, release: Release | None = None
    ) -> None:
        """Store the inverse: its lower half, empty until a client is counted."""
        self._inverse, self._items, self._release = inverse, items, release or Release()
        self._known = dict(others)

    def __getitem__(self, name: str) -> Tensor:
        if name == WEIGHTS and name not in self._known:
            if self._inverse.numel():
                self._known[name] = self._release.of(self._inverse)
                self._release = Release()  # free its inputs
            else:
                none = self._inverse.new_zeros((), dtype=torch.float32)
                self._known[name] = none.expand(self._items, self._items)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({WEIGHTS, *self._known}))

    def __len__(self) -> int:
        return len({WEIGHTS, *self._known})
