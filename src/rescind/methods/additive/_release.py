"""What an additive learner publishes: how much, in which form, when, and under which noise.

The sum itself stays exact and private to the server; devices are sent a release, which is a
function of the sum (and of fresh noise). Turning a dial here changes nothing of the forgetting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.guards import Gaussian
from rescind.core.params import Params
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.methods.additive._pairs import UNIT, half_each, mirrored, weight_of
from rescind.methods.additive._solve import WEIGHTS, Temper, weights_of

FORMS = ("dense", "neighbours", "factors")
OVERSAMPLED, POWERS = 32, 6
"""Columns and products beyond the rank when factors are sought (Halko, Martinsson, Tropp 2011).
Published weights of ML-100K and ML-1M are then within .2 % of the distance of the nearest matrix
of that rank; more changes no list."""
EDGE = 2.2
"""The largest eigenvalue of symmetric noise of deviation s on n items is 2 s sqrt(n) for large n
(Wigner 1955); a tenth more covers small n."""


@dataclass(frozen=True, kw_only=True)
class Dial:
    """The privacy settings of an additive learner (docs/additive.md). All off as they stand."""

    release: Literal["dense", "neighbours", "factors"] = "dense"
    """What devices are sent of B: all of it, the largest entries of each column, or a matrix of low
    rank. Peeling reads histories out of a dense B as out of G (`rescind leak`)."""
    release_size: int = 50
    """Neighbours of an item, or factors."""
    min_count: int = 0
    """Publish nothing of items that fewer people have: rare ones give their owners away. Above 0,
    devices also send a count of one for each of their items. 0 publishes all."""
    longest_history: int = 0
    """Longer histories weigh floor(4096 sqrt(longest) / n) a pair instead of round(4096 / sqrt(n)):
    nobody changes the sum by more than somebody with this many items. 0 bounds nobody."""
    noise: float = 0.0
    """Gaussian noise on every release: its deviation over what one person can change
    (`sensitivity`). Needs `longest_history`. 0 adds none."""
    delta: float = 1e-5
    """Epsilon is stated at this delta; well below 1 / people."""
    servers: int = 1
    """2: everybody's numbers are added up by two processes that hold a share each, and only the
    sum over everybody is opened (`privacy.two_servers`). 1: the server adds up what it gets."""
    release_every: int = 1
    """People whose part of the sum must have changed before a new release is made. Until then
    devices are sent the old one, which still holds what was forgotten since; receipts say so."""

    def check_dial(self) -> None:
        """Refuse settings that promise nothing or contradict each other."""
        name = type(self).__name__
        allowed = {
            "release": (self.release in FORMS, f"one of {', '.join(FORMS)}"),
            "release_size": (self.release_size >= 1, "1 or more"),
            "min_count": (self.min_count >= 0, "0 or more"),
            "longest_history": (self.longest_history >= 0, "0 or more"),
            "noise": (0 <= self.noise < math.inf, "0 or above and finite"),
            "delta": (0 < self.delta < 1, "between 0 and 1"),
            "servers": (self.servers in (1, 2), "1 or 2"),
            "release_every": (self.release_every >= 1, "1 or more"),
        }
        for field, (fits, what) in allowed.items():
            if not fits:
                raise ConfigError(f"{name}.{field} must be {what}; got {getattr(self, field)}.")
        if self.noise and not self.longest_history:
            raise ConfigError(
                f"{name}.noise = {self.noise:g} needs longest_history: without it one person may "
                f"change the sum by any amount, and the noise hides nobody. Set it to 1 to 100."
            )
        if self.noise and self.min_count:
            raise ConfigError(
                f"{name}.min_count = {self.min_count} reads exact counts, which the noise does not "
                f"cover: epsilon would not hold. Leave one of them out."
            )

    @property
    def quiet(self) -> bool:
        """Whether a release is a plain function of the sum, made at every change."""
        return not self.noise and self.release_every == 1


def sensitivity(longest: int, items: int, parts: int, blocks: int = 1) -> float:
    """How far one person moves the released half of G / 4096, in Euclidean norm.

    A part of n items has the same weight w_n at its n (n + 1) / 2 pairs i >= j and nothing
    elsewhere, so its norm is w_n sqrt(n (n + 1) / 2). `longest` bounds w_n: up to it
    w_n = round(4096 / sqrt(n)), beyond it floor(4096 sqrt(longest) / n), so that w_n n never
    exceeds 4096 sqrt(longest) there; the largest norm over all n <= items is taken here, exactly.
    A person is at most `parts` parts in a block (what they lent, what they kept) that have no item
    in common, so no pair either: their squares add. Over blocks norms add. So sums with and
    without any one person, whatever they have, are at most this far apart, as long as devices send
    what they should. The upper half repeats the lower one and tells nothing more.
    """
    each = torch.arange(1, items + 1)
    norms = weight_of(each, longest).double() / UNIT * half_each(each).double().sqrt()
    return blocks * math.sqrt(parts) * float(norms.max()) if items else 0.0


def noisy(total: Tensor, noise: float, moved: float) -> Tensor:
    """A half of G in whole numbers under Gaussian noise of deviation noise * moved * 4096.

    From the operating system's entropy, never from a seed. Rounded to whole numbers afterwards,
    which no promise suffers from, so that no low digits of a float tell what was added.

    total: [I (I + 1) / 2] in units of 1 / 4096    moved: what one person can change, `sensitivity`
    """
    sums = Sum({"gram": total.double()}, 1.0, 1)
    return Gaussian(noise, moved * UNIT).total(sums).totals["gram"].round()


def noise_ridge(noise: float, moved: float, items: int) -> float:
    """What the ridge must grow by, for a noised sum to have an inverse like that of a sum."""
    return EDGE * noise * moved * math.sqrt(items)


# -- forms ----------------------------------------------------------------------------------------


def neighbours(weights: Tensor, many: int) -> Tensor:
    """Of each column the largest entries alone. [I, I]"""
    many = min(many, len(weights))
    value, row = weights.abs().topk(many, dim=0)
    return torch.zeros_like(weights).scatter_(0, row, weights.gather(0, row) * (value > 0))


def factors(weights: Tensor, rank: int) -> Tensor:
    """Nearly the nearest matrix of this rank, without its diagonal. [I, I]

    The range of B is found from a few more columns than the rank, by products with B and B^T
    (Halko, Martinsson, Tropp 2011, algorithm 4.4), and B is cut inside it: a twentieth of the time
    of all singular vectors at 3,706 items. The first columns are hashes, so B decides alone.
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
    """What of the weights is published. A function of them and of G, so it forgets as they do."""

    form: str = "dense"
    """dense, neighbours or factors"""
    size: int = 50
    rare: Tensor | None = None
    """[I] bool: items of which nothing is published."""
    noised: Callable[[], Tensor] | None = None
    """Makes the lower half of C from a sum under fresh noise; the exact one is then not read."""
    temper: Temper = Temper()
    """How the weights are bent before they are cut."""

    def of(self, inverse: Tensor) -> Tensor:
        """The weights as they are published. inverse: its lower half -> [I, I] float32"""
        full = mirrored(self.noised() if self.noised else inverse)
        weights = weights_of(full, self.temper)
        if self.rare is not None:
            weights = weights.masked_fill(self.rare[:, None] | self.rare[None, :], 0.0)
        if self.form == "neighbours":
            return neighbours(weights, self.size)
        return factors(weights, self.size) if self.form == "factors" else weights


class Published(Mapping[str, Tensor]):
    """Public parameters whose item weights are worked out when they are first read.

    Many may leave before anybody asks for a recommendation; B is a function of C, so reading it
    later gives the same numbers. Nothing of the inverse itself can be read from here.
    """

    def __init__(
        self, inverse: Tensor, items: int, others: Params, release: Release | None = None
    ) -> None:
        """inverse: its lower half, or nothing of it while nobody has been counted"""
        self._inverse, self._items = inverse, items
        self._release = release or Release()
        self._known = dict(others)

    def __getitem__(self, name: str) -> Tensor:
        if name == WEIGHTS and name not in self._known:
            if self._inverse.numel():
                self._known[name] = self._release.of(self._inverse)
                self._release = Release()  # what it was made of need not be kept
            else:
                none = self._inverse.new_zeros((), dtype=torch.float32)  # one zero, read everywhere
                self._known[name] = none.expand(self._items, self._items)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({WEIGHTS, *self._known}))

    def __len__(self) -> int:
        return len({WEIGHTS, *self._known})


def still(public: Params, items: int, others: Params) -> dict[str, Tensor]:
    """The release devices already have, with nothing said of items that came since."""
    old = public[WEIGHTS]
    if len(old) < items:
        grown = old.new_zeros(items, items)
        grown[: len(old), : len(old)] = old
        old = grown
    return {**others, WEIGHTS: old}
