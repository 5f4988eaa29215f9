"""Check the claims of a receipt against the remaining data.

An additive learner forgets by subtraction, so the only correct sum after a request is the sum over
the remaining data. A receipt states its digest, which can be recomputed from that data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rescind.core.claims import AFTER, BEFORE, EPSILON, NEXT, OPEN, PUBLISHED, Claims
from rescind.core.federation import Federation
from rescind.errors import DataError
from rescind.methods.additive._additive import sum_digest
from rescind.privacy.sealing import BOUND, fits
from rescind.receipts import of_run
from rescind.receipts.receipt import Receipt
from rescind.receipts.verify import Check
from rescind.storage.federations import load_federation

__all__ = [
    "AFTER", "BEFORE", "EPSILON", "NEXT", "OPEN", "PUBLISHED", "Claims", "check", "checks_with",
    "sum_digest",
]  # fmt: skip


def checks_with(run: Path) -> Callable[[Receipt], Check]:
    """Return a check of a receipt's claim against the data in a run's folder."""
    fed, key = load_federation(run), of_run.run_key_of(run)
    return lambda receipt: check(receipt, fed, run.name, key)


def check(receipt: Receipt, fed: Federation, where: str, key: bytes | None = None) -> Check:
    """Compare the sum that a receipt states with the sum over the data of a federation.

    key: the run's key, which the stated sum is bound to; not needed for an opened receipt
    """
    stated = receipt.claims.get(AFTER)
    if not fed.method.additive:
        raise DataError(
            f"{where} holds a run of {type(fed.method).__name__}, which keeps no sum. Give the run "
            f"of an additive learner (such as Gram), or leave --data out."
        )
    if stated is None:
        return Check(False, "it states no sum that could be compared with data")
    try:
        found = fed.method.rebuilt(fed)
    except DataError as error:
        return Check(False, f"{where}: {error}")
    if key is None and stated.startswith(BOUND):
        return Check(
            False,
            f"the sum is bound to the run, and this home has no key of {where} to compare it",
        )
    if not fits(stated, found, key):
        still = receipt.claims.get(OPEN, "")
        owed = "" if still.startswith("0 owed, 0 lost") else f"; the receipt states: {still}"
        says = f"the data in {where} add up to {found}, not to the stated sum, {stated}{owed}"
        return Check(False, says)
    blocks = " (earlier blocks: as recorded by the devices)" if fed.world.block else ""
    return Check(True, f"the data in {where} add up to the stated sum, bit for bit{blocks}")
