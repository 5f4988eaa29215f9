"""The hold-out attack: drawn by lot for each audit, and committed to before the model is seen.

Whoever knows all attacks of an audit can hide from each of them. This one is drawn from a family
with a secret of 32 random bytes; its digest is written down before the unlearner starts, and the
report opens it.

A part of each requester's records is given to the attacker, who ranks the others against held-out
records of the same user: score = <row, mean row of the known records> in the public item table.
Drawn are the part, and the geometry: how many leading directions of the table are used, and with
which power of their strength.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, Targets, auc_by_person, first_table, mean_of
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Records

SECRET = 32


@dataclass(frozen=True)
class HoldOut:
    """One attack of the family, decided by a secret."""

    secret: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)

    @property
    def digest(self) -> str:
        """Return what is published before the model is seen."""
        return "sha256:" + sha256(b"rescind hold-out" + self.secret).hexdigest()

    @cached_property
    def clock(self) -> Clock:
        """Return a clock that only the holder of the secret can have."""
        return Clock(int.from_bytes(sha256(self.secret).digest()[:7]))

    def between(self, purpose: str, low: float, high: float) -> float:
        return low + (high - low) * float(self.clock.at(0).uniform(purpose, torch.tensor(0)))

    @property
    def known(self) -> float:
        """Fraction of a user's records that the attacker is given."""
        return self.between("known", 0.4, 0.6)

    @property
    def directions(self) -> float:
        """Fraction of the leading directions of the table that is used."""
        return self.between("directions", 0.6, 1.0)

    @property
    def power(self) -> float:
        """Power of the strength of a direction: 1 is the cosine, 0 makes all equally strong."""
        return self.between("power", 0.0, 1.0)

    def opened(self) -> str:
        return (
            f"By lot: {self.known:.2f} of the records known, {self.directions:.2f} of the "
            f"directions, power {self.power:.2f}; secret {self.secret.hex()}, committed to as "
            f"{self.digest}"
        )

    def attack(self, case: Case, fed: Federation) -> PerPerson | None:
        """Compute by user the AUC of unknown forgotten records against held-out ones."""
        known, targets = case.cached("hold-out parts", case.before, lambda: self._parts(case))
        if not targets.people:  # nobody has both known and unknown records
            return None
        others = [self._scores(case, other, known, targets) for other in case.other_refs(fed)]
        mine = self._scores(case, fed, known, targets)
        if mine is None:
            return None
        usual = mean_of([scores for scores in others if scores is not None])
        return auc_by_person(mine - usual, targets)

    def _parts(self, case: Case) -> tuple[Records, Targets]:
        mine = case.forgotten
        given = self.clock.at(0).uniform("part", mine.pairs()) < self.known
        known = mine[given]
        asked = mine[~given]
        return known, Targets.of(
            asked[torch.isin(asked.client, known.client)], case.valid + case.test
        )

    def _scores(
        self, case: Case, fed: Federation, known: Records, targets: Targets
    ) -> Tensor | None:
        return case.cached(f"hold-out {self.digest}", fed, lambda: self._score(fed, known, targets))

    def _score(self, fed: Federation, known: Records, targets: Targets) -> Tensor | None:
        table = first_table(fed)
        if table is None:
            return None
        rows = self.geometry(table.double().cpu())
        place = torch.searchsorted(targets.ids, known.client).clamp(max=targets.people - 1)
        mine = targets.ids[place] == known.client
        user = jagged.segment_mean(rows[known.item[mine]], place[mine], targets.people)
        at = targets.records
        return torch.linalg.vecdot(user[targets.person], rows[at.item])

    def geometry(self, table: Tensor) -> Tensor:
        """Return the rows of an item table as the attack sees them. [I, d] -> [I, r]"""
        left, strength, _ = torch.linalg.svd(table - table.mean(0), full_matrices=False)
        rank = max(2, round(self.directions * len(strength)))
        return functional.normalize(left[:, :rank] * strength[:rank] ** self.power, dim=1)
