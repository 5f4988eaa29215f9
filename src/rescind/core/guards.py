"""Privacy guards: what happens to updates and sums before the server sees them.

A guard that bounds (`Clip`) acts in `each`, on every client's update before the sum. A guard that
adds noise (`Gaussian`, `Laplace`) acts in `each` where single updates leave the devices, and
otherwise once in `total`. Noise comes from the operating system's entropy, never from the clock:
who knows the seed of a run cannot subtract it. What each guard promises: docs/privacy.md.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rescind.core.gate import gate, norms_of, value_of
from rescind.core.update import Rows, Sum, Update
from rescind.errors import ConfigError

__all__ = [
    "Clip",
    "Gaussian",
    "Guard",
    "Laplace",
    "check_guards",
    "check_weights",
    "gate",
]

Draw = Callable[[tuple[int, ...]], np.ndarray]


class Guard(Protocol):
    """Something between the devices and the server."""

    def each(self, update: Update, leaves: bool) -> Update:
        """The update with each client's part made safe; `leaves`: single updates are sent on."""
        ...

    def total(self, total: Sum) -> Sum:
        """The sum of a role made safe; called only where single updates do not leave."""
        ...


# -- guards ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """Scale each client's whole update, all tables together, to at most `norm`."""

    norm: float
    """The largest Euclidean norm an update may have."""

    def __post_init__(self) -> None:
        _above_zero("Clip.norm", self.norm)

    def each(self, update: Update, leaves: bool) -> Update:
        """Longer updates are shortened, the others stay as they are."""
        for name, entry in update.entries.items():
            _real(name, value_of(entry))
        kinds = [torch.finfo(value_of(e).dtype).eps for e in update.entries.values()]
        # Rounding the factor and the product may each add half an eps: stay below the bound.
        bound = self.norm * (1 - 2 * max(kinds, default=0.0))
        norms = norms_of(update)
        return update.scale(torch.where(norms > self.norm, bound / norms, 1.0))

    def total(self, total: Sum) -> Sum:
        """The sum as it is."""
        return total


@dataclass(frozen=True)
class Gaussian:
    """Normal noise of standard deviation noise * clip on every entry of what is released.

    Released is the sum, or each client's update where single ones leave: then every update is
    protected by itself and the sum of n carries sqrt(n) times the noise. Needs `Clip(clip)`
    before it, which bounds what one client can change. `privacy.accountant` gives its epsilon.
    """

    noise: float
    """The noise multiplier: standard deviation over clip."""
    clip: float
    """The norm of the `Clip` it is used with."""

    def __post_init__(self) -> None:
        _above_zero("Gaussian.noise", self.noise)
        _above_zero("Gaussian.clip", self.clip)

    def each(self, update: Update, leaves: bool) -> Update:
        """Noise on all rows of each client's tables where they leave, so that no row tells."""
        return _noisy(update, self._draw) if leaves else update

    def total(self, total: Sum) -> Sum:
        """Noise on every entry of the sum."""
        return _noisy_sum(total, self._draw)

    def _draw(self, shape: tuple[int, ...]) -> np.ndarray:
        return _entropy().normal(0.0, self.noise * self.clip, shape)


@dataclass(frozen=True)
class Laplace:
    """Laplace(0, scale) on every entry of every client's tables: F3CRec section 5.6, Table 8.

    No clipping and no epsilon: this is not differential privacy, and averaging rounds undoes it
    (docs/privacy.md). Here to repeat the paper's table, not to protect anybody.

    DEPARTS the authors' code: noise from the operating system's entropy, not from the run's seed.
    """

    scale: float
    """The paper tries 0.1 to 0.5."""

    def __post_init__(self) -> None:
        _above_zero("Laplace.scale", self.scale)

    def each(self, update: Update, leaves: bool) -> Update:
        """Noise on all rows of each client's tables where they leave."""
        return _noisy(update, self._draw) if leaves else update

    def total(self, total: Sum) -> Sum:
        """One draw of the law that n clients' noises have together.

        The sum of n Laplace(b) is Gamma(n, b) - Gamma(n, b): a Laplace is the difference of two
        exponentials, and n exponentials add up to a Gamma (f3crec.md section 4).
        """

        def draw(shape: tuple[int, ...]) -> np.ndarray:
            source = _entropy()
            one, two = (source.standard_gamma(total.clients, shape) for _ in range(2))
            return self.scale * (one - two)

        # Every device sends its whole tables, not only the rows it trained.
        rows = sum(len(total.totals[name]) for name in total.touched)
        dense = sum(v.numel() * v.element_size() for v in total.totals.values())
        return replace(_noisy_sum(total, draw), up=total.clients * (dense + 4 * rows))

    def _draw(self, shape: tuple[int, ...]) -> np.ndarray:
        return _entropy().laplace(0.0, self.scale, shape)


NOISE = (Gaussian, Laplace)


def check_guards(guards: Sequence[Guard]) -> None:
    """Refuse guards that contradict each other."""
    clips: list[Clip] = []
    noisy = False
    for guard in guards:
        if isinstance(guard, Clip):
            if noisy:
                raise ConfigError("Clip stands after a noise and would cut it. Put Clip first.")
            clips.append(guard)
        noisy |= isinstance(guard, NOISE)
        if isinstance(guard, Gaussian) and guard.clip not in [clip.norm for clip in clips]:
            found = f"Clip({clips[-1].norm:g})" if clips else "no Clip"
            raise ConfigError(
                f"Gaussian(noise={guard.noise:g}, clip={guard.clip:g}) needs Clip({guard.clip:g}) "
                f"before it, found {found}. Without it one client may change the sum by any "
                f"amount, and the noise hides nothing."
            )


def check_weights(guards: Sequence[Guard], weight: Tensor) -> None:
    """Refuse noise where clients do not count alike. weight: [C]

    A weight multiplies what a client can change, and the total of the weights, which the mean is
    divided by, would itself tell how many records a person has.
    """
    noisy = [type(guard).__name__ for guard in guards if isinstance(guard, NOISE)]
    if noisy and not bool(((weight == 1) | (weight == 0)).all()):
        raise ConfigError(
            f"{noisy[0]} noise needs clients that count alike, but weights go up to "
            f"{float(weight.max()):g}. Use aggregate = 'clients', or leave the noise out."
        )


def _entropy() -> np.random.Generator:  # noqa: TID251
    """A fresh generator on 256 bits of the operating system's entropy, for one draw."""
    # The one place where the clock must not be used: its seed is known to whoever runs this.
    return np.random.default_rng(secrets.randbits(256))  # noqa: TID251


def _noise(draw: Draw, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(draw(shape))).to(device=like.device, dtype=like.dtype)


def _noisy(update: Update, draw: Draw) -> Update:
    """Every client's tables with noise on all rows: [C * rows, d], as large as that is."""
    entries: dict[str, Rows | Tensor] = {}
    for name, entry in update.entries.items():
        value = value_of(entry)
        _real(name, value)
        if not isinstance(entry, Rows):
            entries[name] = entry + _noise(draw, tuple(entry.shape), value)
            continue
        many, size = update.clients, entry.size
        whole = value.new_empty((many, size, *value.shape[1:]))
        for client in range(many):
            whole[client] = _noise(draw, tuple(whole.shape[1:]), value)
        flat = whole.flatten(0, 1)
        flat.index_add_(0, entry.owner.long() * size + entry.index, value)
        places = torch.arange(many * size, device=value.device)
        entries[name] = Rows(places // size, places % size, flat, size)
    return Update(update.clients, entries)


def _noisy_sum(total: Sum, draw: Draw) -> Sum:
    """The sum with noise on every entry; who touched which row is no longer told."""
    if not total.clients:
        return total
    totals = {}
    for name, value in total.totals.items():
        _real(name, value)
        totals[name] = value + _noise(draw, tuple(value.shape), value)
    touched = {name: torch.full_like(v, total.weight) for name, v in total.touched.items()}
    return replace(total, totals=totals, touched=touched)


def _real(name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise ConfigError(
            f"guards work on real numbers, but '{name}' holds {value.dtype}. "
            f"Leave the guards out for a method that sends whole numbers."
        )


def _above_zero(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{field} must be a finite number above 0, got {value}.")
