"""Draw requests by lot, for experiments and audits."""

from __future__ import annotations

from rescind.core.federation import Federation
from rescind.core.records import Records
from rescind.data.simulated_lending import draw_regret
from rescind.home import Refused
from rescind.requests.words import Words


def drawn(fed: Federation, share: float) -> Words:
    """Return an erasure of all that a share of the lenders lent."""
    records = draw_regret(fed.world.shared, fed.clock, share)
    if not len(records):
        raise Refused("nothing-lent", f"a draw of {share:g} of the lenders of this run is nobody.")
    return Words("erase", named(fed, records))


def named(fed: Federation, records: Records) -> dict[str, tuple[str, ...] | None]:
    """Return records by original ids."""
    found: dict[str, list[str]] = {}
    for client, item in zip(records.client.tolist(), records.item.tolist(), strict=True):
        found.setdefault(fed.labels.user_id(client), []).append(fed.labels.item_id(item))
    return {user: tuple(dict.fromkeys(items)) for user, items in found.items()}
