"""Releases and generations, as the doors start them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError, suggest
from rescind.ledger import scanner
from rescind.ledger.jobs import RECIPES
from rescind.ledger.scanner import Canary

if TYPE_CHECKING:
    from rescind.service.context import Service

ROUNDS = 150
"""Rounds of a generation, unless the operator says."""
FEW, LONG = 3, 8
"""People whose loans a scan looks for, and how many items make them unmistakable."""


def release_if_due(service: Service) -> bool:
    """Make a release if enough people changed something, or enough time has passed."""
    if service.ending or not service.ledger.releases.is_due(service.ledger.clock()):
        return False
    make_release(service)
    return True


def make_release(service: Service) -> dict[str, Any]:
    """Make a release now; return its number."""
    release = service.ledger.releases.make(service.ledger)
    service.released(release.number)
    return {"number": release.number}


def check_recipe(recipe: str) -> None:
    """Refuse a recipe that is not there, with those that are."""
    if recipe not in RECIPES:
        raise ConfigError(f"'{recipe}' is no recipe for a generation: {suggest(recipe, RECIPES)}")


def start_job(service: Service, recipe: str, rounds: int | None) -> str:
    """Start a generation on the loans of now; return its id."""
    job: str = service.ledger.generations.start(recipe, rounds or ROUNDS)
    return job


def scan(service: Service) -> dict[str, Any]:
    """Look for the loans of a few people in every file of the state folder, in every form.

    They are sealed, so nothing may be found; the scanner plants and finds them itself first.
    """
    lenders = [items for items in service.ledger.live.loans.values() if len(items) >= LONG][:FEW]
    canaries = [
        Canary(f"loans {n}", numbers=tuple(items.tolist())) for n, items in enumerate(lenders)
    ]
    found = scanner.scan([service.ledger.state], canaries)
    return {"looked_for": len(canaries), "planted": found.planted, "found": len(found.found)}
