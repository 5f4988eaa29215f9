"""A browser sends what it keeps to the sum, as the difference that `Gram` defines.

A difference is two parts, `minus` and `plus`, each some items and one weight for all their pairs:
what the device has counted before, and what it has now (`_exchange.client_items`). Whoever sends it
can lie about what they have, but not about how much it counts: the weight must be the one of that
many items, and `minus` the part that the sum holds. So a difference is never more than one person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rescind.core.words import some_of
from rescind.errors import ConsentError, DataError
from rescind.ledger.batch import Answer, Batch, Items
from rescind.ledger.errors import VersionConflict
from rescind.ledger.kept_part import KEPT, KeptPart, kept_part_of, replace_part
from rescind.ledger.lending import checked, loans_of, logged, member
from rescind.methods.additive._live_sum import weight_of

KIND = "contribute"
MOST = 5_000


@dataclass(frozen=True)
class Part:
    """Places in the catalogue, and the weight of each pair of them."""

    items: tuple[int, ...]
    weight: int


@dataclass(frozen=True)
class Contribute:
    """Replace the kept part of a person. 201; 200 if it was the same already."""

    person: bytes
    device: bytes
    minus: Part
    plus: Part

    def carry_out(self, batch: Batch) -> Answer:
        row = member(batch, self.person)
        if batch.options.noise:
            raise ConsentError("noise covers one part of each person here, what they lend. Lend.")
        old = kept_part_of(batch, row)
        self._check_device(old)
        _check_minus(batch, self.minus, old)
        new = _places(batch, self.plus, "plus")
        _check_apart(new, loans_of(batch, row))
        body: dict[str, Any] = {"kept": len(new), "weight": weight_of(len(new))}
        if np.array_equal(old.items, new):
            return Answer(200, {**body, "changed": 0})
        replace_part(batch, row, KEPT, old.items, new, self.device)
        body["changed"] = len(np.setxor1d(old.items, new, assume_unique=True))
        body["acknowledgement"], _ = logged(batch, KIND, self.person, new)
        return Answer(201, body)

    def _check_device(self, old: KeptPart) -> None:
        if len(old.items) and old.device != self.device:
            raise ConsentError(
                f"another browser of yours helps with {len(old.items)} records, and only one can. "
                f"Go on there, or take those back first."
            )


def _places(batch: Batch, part: Part, name: str) -> Items:
    """Return the items of a part, if it is one that a single person can have."""
    if len(part.items) > MOST:
        raise DataError(f"{name} has {len(part.items)} items; at most {MOST} are taken.")
    found = checked(batch, part.items)
    if len(found) != len(part.items):
        raise DataError(f"{name} names an item twice. A record counts once: name it once.")
    if part.weight != weight_of(len(found)):
        raise DataError(
            f"{name} has the weight {part.weight}; {len(found)} items of one person have "
            f"{weight_of(len(found))}."
        )
    return found


def _check_minus(batch: Batch, minus: Part, old: KeptPart) -> None:
    given = _places(batch, minus, "minus") if minus.items else old.items[:0]
    if not np.array_equal(given, old.items) or minus.weight != weight_of(len(old.items)):
        raise VersionConflict(
            f"the sum holds {len(old.items)} records of your browser, and this starts from "
            f"{len(given)} others. Read them again (GET /v1/me/contribution)."
        )


def _check_apart(new: Items, lent: Items) -> None:
    both = np.intersect1d(new, lent, assume_unique=True)
    if len(both):
        # No id in the text: refusals are logged, and a log names no item.
        text = f"{some_of(len(both), len(new))} lent and counted already. Leave that out."
        raise ConsentError(text, item=int(both[0]))
