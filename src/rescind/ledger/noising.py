"""Releases with noise: schedules, what they cost, and whom they cover.

A schedule is a number of releases with one epsilon for all of them (`privacy.schedules`). It covers
people whose part of the sum comes once and leaves once. Whoever changes something between releases
has one part more; after `changes` parts they are left out of the releases, as if they had left. So
the stated epsilon holds for everybody: a person with c parts is covered by c times as much.

Not covered: how many people changed something, and when. Nothing else exact is told: no digest of
the sum, no count of owners, no audit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import func, select

from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Keep
from rescind.ledger.keyfile import SECRET
from rescind.ledger.options import Options
from rescind.ledger.parts import Parts
from rescind.methods.additive._live_release import Form
from rescind.methods.additive._noised_release import Noise
from rescind.methods.additive._solving import Solving
from rescind.privacy.gaussian import epsilon_of

SETTING = "noise"
SPENT = (
    "the privacy budget is spent, or ended by going back to a backup. The last release stays in "
    "service. Start with another --noise-releases: its epsilon counts in addition."
)
SOLVING = Solving(ridge=8.0, shown_power=0.6)
"""docs/additive.md: the settings that suit noise."""


@dataclass(frozen=True)
class Schedule:
    """A number of releases with one epsilon."""

    noise: float
    releases: int
    changes: int
    delta: float
    first: int
    check: str
    """Tells whether the secret is still the one of its first release."""
    made: int = 0
    salt: str = ""
    """Drawn anew, so that a schedule begun again after going back to a backup has other noise."""

    @property
    def wanted(self) -> tuple[float, int, int, float]:
        return self.noise, self.releases, self.changes, self.delta


def count_release(batch: Batch) -> None:
    """Count a release of the last schedule, in the transaction that makes it durable."""
    *before, last = read(batch.tx)
    schedules = (*before, replace(last, made=last.made + 1))
    batch.keep(SETTING, json.dumps([asdict(one) for one in schedules]))


def end_schedule(tx: Any) -> None:
    """End the schedule of a ledger that was gone back to: what was released since is not known.

    Its noise drawn again for other loans would cancel out between two releases.
    """
    if schedules := read(tx):
        *before, last = (asdict(one) for one in schedules)
        ended = json.dumps([*before, {**last, "made": last["releases"]}])
        tables.keep_setting(tx, SETTING, ended)


def read(tx: Any) -> tuple[Schedule, ...]:
    return tuple(Schedule(**one) for one in json.loads(tables.setting_of(tx, SETTING) or "[]"))


class Noising:
    """The noise of a ledger's releases."""

    def __init__(self, parts: Parts, submit: Callable[..., Future[Answer]]) -> None:
        self._parts, self._submit = parts, submit

    def form(self, options: Options) -> Form:
        """Return how a release with noise is made: no count of owners is used."""
        return Form(SOLVING, options.neighbours, 0)

    def begin(self) -> None:
        """Go on with the schedule of before, or begin another one; nothing is released by this."""
        wanted, known = self._parts.options, self._read()
        if not wanted.noise:
            if any(one.made for one in known):
                raise ConfigError(
                    "this service made releases with noise, and one without would undo it. Give "
                    "--noise again."
                )
            return
        new = Schedule(
            wanted.noise,
            wanted.noise_releases,
            wanted.noise_changes,
            wanted.noise_delta,
            self._next_number(),
            self._check(),
            salt=secrets.token_hex(16),
        )
        if known and (known[-1].wanted, known[-1].check) == (new.wanted, new.check):
            return
        begun = tuple(one for one in known if one.made)  # an unused one costs nothing
        self._submit(Keep({SETTING: [asdict(one) for one in (*begun, new)]})).result()

    @property
    def spent(self) -> bool:
        if not self._parts.options.noise:
            return False
        last = self._read()[-1]
        return last.made >= last.releases

    def next(self) -> Noise | None:
        """Return the noise of the next release; None: without noise."""
        if not self._parts.options.noise:
            return None
        schedules = self._read()
        last = schedules[-1]
        if last.made >= last.releases:
            raise ConfigError(SPENT)
        secret = self._secret(f"schedule {len(schedules)}{last.salt}")
        return Noise(last.noise, last.releases, last.made, secret.hex())

    def left_out(self, seq: int) -> frozenset[bytes]:
        """Return who changed something between releases more often than the schedule covers."""
        if not self._parts.options.noise:
            return frozenset()
        last, event, release = self._read()[-1], tables.event.c, tables.release.c
        chosen = select(event.person, event.seq).where(
            event.person.is_not(None), event.kind.in_(tables.CHANGES), event.seq <= seq
        )
        with self._parts.store.reading() as tx:
            rows = tx.execute(chosen).all()
            ends = tx.scalars(
                select(release.seq).where(release.number >= last.first).order_by(release.seq)
            ).all()
        between = np.searchsorted(np.array(ends, np.int64), [row.seq for row in rows])
        pairs = {(bytes(row.person), int(n)) for row, n in zip(rows, between, strict=True)}
        parts: dict[bytes, int] = {}
        for person, _ in pairs:
            parts[person] = parts.get(person, 0) + 1
        return frozenset(person for person, n in parts.items() if n > last.changes)

    def promise(self) -> dict[str, Any] | None:
        """Return epsilon and what it covers, for pages; None without noise.

        A schedule counts whole from its start; several are one mechanism (Dong, Roth, Su 2019).
        """
        if not self._parts.options.noise:
            return None
        schedules = self._read()
        last = schedules[-1]
        mu = math.sqrt(sum((one.changes / one.noise) ** 2 for one in schedules))
        epsilon = epsilon_of(1 / mu, last.delta)
        return {
            "epsilon": epsilon,
            "delta": last.delta,
            "releases": last.releases,
            "left": last.releases - last.made,
            "changes": last.changes,
            "says": (
                f"Releases have noise: epsilon {epsilon:.2f} at delta {last.delta:g} for each "
                f"person's loans, over all {sum(one.releases for one in schedules):,} releases. "
                f"Whoever changes something between more than {last.changes:,} of them is left out "
                f"later. Not covered: how many people changed something, and when."
            ),
        }

    def _read(self) -> tuple[Schedule, ...]:
        with self._parts.store.reading() as tx:
            return read(tx)

    def _next_number(self) -> int:
        with self._parts.store.reading() as tx:
            return (tx.scalar(select(func.max(tables.release.c.number))) or 0) + 1

    def _secret(self, about: str) -> bytes:
        key = self._parts.keys.own(SECRET)
        return hmac.new(key, f"rescind noise, {about}".encode(), hashlib.sha256).digest()

    def _check(self) -> str:
        return self._secret("check").hex()[:32]
