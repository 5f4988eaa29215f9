"""Refuse silos whose data does not go together, before the first round.

The server knows users and items by number, so every silo must mean the same by a number.
"""

from __future__ import annotations

from collections.abc import Mapping

from rescind.errors import DataError
from rescind.flower.wire.messages import SENDER
from rescind.storage.packing import Facts

SHARED = (
    "Silos of one run need the same table, of which each uses its own users only: import it, add "
    "to it and erase from it on each machine alike; or let each silo join with a table of its own "
    "users: --own"
)
OWN = "Give the same list of items to every silo: join --own LIST"
KIND = ("task", "features", "classes", "block")


def check_tables(silos: Mapping[int, Facts]) -> None:
    """Compare what silos said of their tables. Raises `DataError` if one has another."""
    if len({tuple(facts[name] for name in KIND) for facts in silos.values()}) > 1:
        raise DataError("the silos have different kinds of data. Use one recipe for all.")
    for silo, facts in silos.items():
        if facts.get("table") is None:
            raise DataError(f"silo {silo} does not say which table it has. {SENDER}")
    first = min(silos)
    one = silos[first]["table"]
    need = OWN if one["own"] else SHARED
    for silo in sorted(silos):
        other = silos[silo]["table"]
        if other["own"] != one["own"]:
            own, whole = (silo, first) if other["own"] else (first, silo)
            raise DataError(
                f"silo {own} joined with --own (its table has its own users only) and silo "
                f"{whole} without (its table has the users of all silos). Let all silos of a run "
                f"join in one way (docs/deploy.md). Nothing was trained."
            )
        if flaw := _difference(one, other):
            raise DataError(
                f"silo {silo} has another {'list' if one['own'] else 'table'} than silo {first}: "
                f"{flaw}. {need} (docs/deploy.md). Nothing was trained."
            )


def _difference(one: Facts, other: Facts) -> str:
    """Return how a table differs from the first one; "" if it does not."""
    if one["own"] and one["items"] != other["items"]:
        return f"{other['items']} items, not {one['items']}"
    if (one["items"], one["users"]) != (other["items"], other["users"]):
        return (
            f"{other['items']} items and {other['users']} users, not {one['items']} and "
            f"{one['users']}"
        )
    kinds = [kind for kind in ("item", "user") if one[f"{kind}_ids"] != other[f"{kind}_ids"]]
    return f"as many, but other {' and '.join(kinds)} ids" if kinds else ""
