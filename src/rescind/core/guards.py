"""Privacy guards: clipping and noise on updates and sums before the server gets them.

`Clip` acts in `each`, on every client's update before the sum. Noise (`Gaussian`, `Laplace`) acts
in `each` if single updates leave the devices, and otherwise once in `total`. It comes from the
operating system's entropy, never from the clock, so it cannot be subtracted with the seed of a
run. What each guard guarantees: docs/privacy.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rescind.core.gate import value_of
from rescind.core.settings import check_positive
from rescind.core.update import Rows, Sum, Update
from rescind.errors import ConfigError

Draw = Callable[[tuple[int, ...]], np.ndarray]


class Guard(Protocol):
    """A protection between devices and server."""

    def each(self, update: Update, leaves: bool) -> Update:
        """Protect each client's update; `leaves`: single updates are sent to the server."""
        ...

    def total(self, total: Sum) -> Sum:
        """Protect the sum of a role; called only if single updates do not leave."""
        ...


@dataclass(frozen=True)
class Clip:
    """Scales each client's whole update, all tables together, to at most `norm`."""

    norm: float
    """The largest Euclidean norm an update may have."""

    def __post_init__(self) -> None:
        check_positive("Clip.norm", self.norm)

    def each(self, update: Update, leaves: bool) -> Update:
        for name, entry in update.entries.items():
            _check_float(name, value_of(entry))
        eps = [torch.finfo(value_of(e).dtype).eps for e in update.entries.values()]
        # Rounding the factor and the product may each add half an eps: stay below the bound.
        bound = self.norm * (1 - 2 * max(eps, default=0.0))
        norms = update.norms()
        return update.scale(torch.where(norms > self.norm, bound / norms, 1.0))

    def total(self, total: Sum) -> Sum:
        return total


@dataclass(frozen=True)
class Gaussian:
    """Normal noise of standard deviation noise * clip on every released entry.

    The sum is released, or each client's update if single updates leave: then every update has
    its own noise, and the sum of n updates has sqrt(n) times the noise. Needs `Clip(clip)` before
    it, which bounds what one client can change. `privacy.accountant` computes epsilon.
    """

    noise: float
    """The noise multiplier: standard deviation over clip."""
    clip: float
    """The norm of the `Clip` it is used with."""

    def __post_init__(self) -> None:
        check_positive("Gaussian.noise", self.noise)
        check_positive("Gaussian.clip", self.clip)

    def each(self, update: Update, leaves: bool) -> Update:
        """Add noise to all rows of each client's tables if they leave, touched or not."""
        return _noisy(update, self._draw) if leaves else update

    def total(self, total: Sum) -> Sum:
        return _noisy_sum(total, self._draw)

    def _draw(self, shape: tuple[int, ...]) -> np.ndarray:
        return _entropy().normal(0.0, self.noise * self.clip, shape)


@dataclass(frozen=True)
class Laplace:
    """Laplace(0, scale) on every entry of every client's tables: F3CRec section 5.6, Table 8.

    No clipping and no epsilon: this is not differential privacy, and averaging over rounds removes
    it (docs/privacy.md). Use it to reproduce the paper's table, not for protection.

    DEPARTS the authors' code: noise from the operating system's entropy, not from the run's seed.
    """

    scale: float
    """The paper tries 0.1 to 0.5."""

    def __post_init__(self) -> None:
        check_positive("Laplace.scale", self.scale)

    def each(self, update: Update, leaves: bool) -> Update:
        return _noisy(update, self._draw) if leaves else update

    def total(self, total: Sum) -> Sum:
        """Draw the sum of n clients' noises at once.

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
    """Raise `ConfigError` if guards contradict each other."""
    clips: list[Clip] = []
    noisy = False
    for guard in guards:
        if isinstance(guard, Clip):
            if noisy:
                raise ConfigError("Clip after noise would clip the noise. Put Clip first.")
            clips.append(guard)
        noisy |= isinstance(guard, NOISE)
        if isinstance(guard, Gaussian) and guard.clip not in [clip.norm for clip in clips]:
            found = f"Clip({clips[-1].norm:g})" if clips else "no Clip"
            raise ConfigError(
                f"Gaussian(noise={guard.noise:g}, clip={guard.clip:g}) needs Clip({guard.clip:g}) "
                f"before it, found {found}: the noise alone gives no privacy."
            )


def check_weights(guards: Sequence[Guard], weight: Tensor) -> None:
    """Raise `ConfigError` if there is noise and clients have different weights. weight: [C]

    A weight multiplies what a client can change, and the sum of the weights, by which the mean is
    divided, would reveal how many records a user has.
    """
    noisy = [type(guard).__name__ for guard in guards if isinstance(guard, NOISE)]
    if noisy and not bool(((weight == 1) | (weight == 0)).all()):
        raise ConfigError(f"{noisy[0]} noise needs equal weights: aggregate = 'clients'.")


def _entropy() -> np.random.Generator:  # noqa: TID251
    """Make a generator from 256 bits of the operating system's entropy, for one draw."""
    # The clock must not be used here: its seed is known to the person who runs this.
    return np.random.default_rng(secrets.randbits(256))  # noqa: TID251


def _noise(draw: Draw, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(draw(shape))).to(device=like.device, dtype=like.dtype)


def _noisy(update: Update, draw: Draw) -> Update:
    """Add noise to all rows of every client's tables; allocates [C * rows, d]."""
    entries: dict[str, Rows | Tensor] = {}
    for name, entry in update.entries.items():
        value = value_of(entry)
        _check_float(name, value)
        if not isinstance(entry, Rows):
            entries[name] = entry + _noise(draw, tuple(entry.shape), value)
            continue
        clients, size = update.clients, entry.size
        whole = value.new_empty((clients, size, *value.shape[1:]))
        for client in range(clients):
            whole[client] = _noise(draw, tuple(whole.shape[1:]), value)
        flat = whole.flatten(0, 1)
        flat.index_add_(0, entry.owner.long() * size + entry.index, value)
        places = torch.arange(clients * size, device=value.device)
        entries[name] = Rows(places // size, places % size, flat, size)
    return Update(update.clients, entries)


def _noisy_sum(total: Sum, draw: Draw) -> Sum:
    """Add noise to every entry of the sum and hide which rows were touched."""
    if not total.clients:
        return total
    for name, value in total.totals.items():
        _check_float(name, value)
    totals = {n: v + _noise(draw, tuple(v.shape), v) for n, v in total.totals.items()}
    touched = {name: torch.full_like(v, total.weight) for name, v in total.touched.items()}
    return replace(total, totals=totals, touched=touched)


def _check_float(name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise ConfigError(f"guards need floating-point numbers, but '{name}' is {value.dtype}.")
