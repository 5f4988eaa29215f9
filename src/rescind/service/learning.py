"""Releases and generations, as the doors start them."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from rescind.errors import ConfigError, suggest
from rescind.ledger import scanner, tables
from rescind.ledger.jobs import LEARNING, RECIPES
from rescind.ledger.scanner import Canary

if TYPE_CHECKING:
    from rescind.service.context import Service

ROUNDS = 150
"""Rounds of a generation, unless the operator says."""
FEW, LONG = 3, 8
"""People whose loans a scan looks for, and how many items make them unmistakable."""


def release_if_due(service: Service) -> bool:
    """Make a release if enough people of the last one differ, or enough time has passed."""
    if service.ending or not service.ledger.releases.is_due(service.ledger.clock()):
        return False
    service.released(service.ledger.releases.make(service.ledger).number)
    return True


def release_if_asked(service: Service) -> None:
    """Make what was asked for and is not made yet: a process before this one was killed."""
    if not service.ending:
        service.release_now.work()


def check_recipe(recipe: str) -> None:
    """Refuse a recipe that is not there, with those that are."""
    if recipe not in RECIPES:
        raise ConfigError(f"'{recipe}' is no recipe for a generation: {suggest(recipe, RECIPES)}")


def under_way(service: Service) -> dict[str, Any] | None:
    """Return what is learning now and how far it is; None if nothing is."""
    job, table = tables.job, tables.round_
    with service.ledger.store.reading() as tx:
        row = tx.execute(select(job).where(job.c.state == LEARNING)).first()
        if row is None:
            return None
        mine = select(table).where(table.c.job == row.id).order_by(table.c.number.desc())
        last = tx.execute(mine.limit(1)).first()
    facts = {"job": row.id, "recipe": row.recipe, "rounds": int(row.detail)}
    return {**facts, "round": last.number if last else 0, "asked": last.asked if last else None}


def scan(service: Service) -> dict[str, Any]:
    """Look for the loans of a few people in every file and in the ledger, in every form.

    They are sealed, so nothing may be found; the scanner plants and finds them itself first.
    """
    rows = (items.tolist() for items in service.ledger.live.loans.values() if len(items) >= LONG)
    lenders = list(islice((row for row in rows if scanner.unmistakable(row)), FEW))
    canaries = [Canary(f"loans {n}", numbers=tuple(row)) for n, row in enumerate(lenders)]
    ledger = service.ledger
    with nullcontext() if ledger.store.sqlite else ledger.store.reading() as database:
        found = scanner.scan([ledger.state], canaries, database)
    return {"looked_for": len(canaries), "planted": found.planted, "found": len(found.found)}
