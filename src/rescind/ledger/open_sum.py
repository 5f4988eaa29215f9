"""The sum of a roster in the clear, and what it must give: for whoever may rebuild.

That is the ledger itself (`ledger.roster_audit`), or a second party that the operator gave a token
(`ledger.rebuilding`). Never a stranger: the sum tells what people have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.errors import DataError, RescindError
from rescind.ledger.roster_worker import LENT
from rescind.methods.additive._live_release import Form, Weights, file_digest, read, release_of
from rescind.methods.additive._live_sum import Totals
from rescind.methods.additive._solving import half
from rescind.proof.roster import Public, Stated
from rescind.proof.sum_hash import LENGTH, OWNERS, opens, pairs_of

KINDS = ("<i4", "<i8")
PLACES = ("first", "target", "popular")
NEAR = 1e-6
EVERY_BYTE, SIX_DIGITS = "every byte", "six digits of each weight"
"""How far a release is what another machine solves. Solves agree to 14 digits or more: weights that
are rounded to a step are the same bytes, and of others the last digit of a few may differ."""


@dataclass(frozen=True)
class OpenSum:
    """A published sum in the clear: what the lines add up to, and how it is solved."""

    number: int
    form: Form
    sums: Totals = field(repr=False)
    small: NDArray[np.int64] = field(repr=False)
    """The sum of what hides the lines. [3, 1024]"""

    def to_bytes(self) -> bytes:
        """Return it as a service hands it out: a line of JSON, then three arrays."""
        total = self.sums.total.astype(KINDS[self.sums.total.itemsize == 8])
        facts = {"number": self.number, "kind": total.dtype.str, "form": asdict(self.form)}
        arrays = (total, self.sums.owners.astype("<i8"), self.small.astype("<i8"))
        return b"\n".join([json.dumps(facts).encode(), b"".join(map(np.ndarray.tobytes, arrays))])

    @classmethod
    def read(cls, data: bytes, items: int) -> OpenSum:
        """Read what an operator sent, or raise `DataError`."""
        head, _, body = data.partition(b"\n")
        try:
            facts = json.loads(head)
            kind = np.dtype(KINDS[KINDS.index(facts["kind"])])
            ends = np.cumsum([kind.itemsize * half(items), 8 * items, 24 * LENGTH])
            if len(body) != ends[-1]:
                raise ValueError(f"{len(body)} bytes are not those of {items} items")
            total = np.frombuffer(body[: ends[0]], kind)
            parts = [np.frombuffer(body[a:b], "<i8") for a, b in pairwise(ends)]
            form = Form.of(facts["form"])
            sums, small = Totals(total, parts[0]), parts[1].reshape(3, LENGTH)
            return cls(int(facts["number"]), form, sums, small)
        except (ValueError, KeyError, TypeError, RecursionError, RescindError) as error:
            raise DataError(f"what the service sent is not an open sum ({error}).") from None

    def check(self, public: Public, file: bytes) -> str:
        """Return how far the release of a roster is what this sum gives; raise if it is not.

        file: the release
        """
        stated = Stated.parse(public.stated)
        if file_digest(file) != stated.weights:
            raise DataError("the release in service is not the one that the roster states.")
        halves = {LENT: self.sums.total.astype(np.int64, copy=False)}
        if self.form.min_count:
            halves[OWNERS] = self.sums.owners
        total = np.frombuffer(public.total, "<u8").astype(np.uint64)
        if wrong := opens(total, halves, self.small, stated.lines, stated.items):
            raise DataError(f"the sum in use is not the published one: {wrong}.")
        published, ids = read(file)
        if len(ids) != self.sums.items:
            raise DataError(f"the release has {len(ids)} items, and the sum {self.sums.items}.")
        solved = release_of(self.sums, self.form)
        if solved.to_bytes(ids) == file:
            return EVERY_BYTE
        if near(published, solved):
            return SIX_DIGITS
        raise DataError("the weights in use were not solved from the published sum.")

    def short(self, line: Mapping[str, Any]) -> int:
        """Count pairs of a leaver's items that have less in the sum than the leaver's part had.

        With one, no line that counts holds that part. None shows nothing: others may have all
        pairs, too. line: as `rescind roster mine` wrote it, checked (`own_line`)
        """
        pairs = pairs_of(np.array(line["items"], np.int64))
        inside = pairs[pairs < len(self.sums.total)]
        few = np.count_nonzero(self.sums.total[inside] < line["weight"])
        return int(few) + len(pairs) - len(inside)


def near(published: Weights, solved: Weights) -> bool:
    """Return whether weights stand at the same places and are equal to six digits."""
    pairs = ((getattr(published, name), getattr(solved, name)) for name in PLACES)
    same = all(np.array_equal(one, two) for one, two in pairs)
    return same and np.allclose(published.weight, solved.weight, rtol=NEAR, atol=0)
