"""Routes for machines: is it alive, is it ready, what does it measure."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import Response

from rescind.ledger import fulfilment
from rescind.ledger.errors import Busy
from rescind.service import bodies, pages
from rescind.service.answers import reply
from rescind.service.context import OPTIONAL, Service
from rescind.service.doors import Doors, TheService

router = Doors()
DESCRIPTION = Path(__file__).with_name("openapi.json")


@router.at("GET /openapi.json", bodies.Anything)
async def openapi() -> Response:
    """Describe every route."""
    return Response(_described(), media_type="application/json")


@lru_cache
def _described() -> bytes:
    return DESCRIPTION.read_bytes()


@router.at("GET /v1/keys", bodies.Keys)
async def public_keys(service: TheService) -> Response:
    """Tell the keys to pin: the one that signs receipts, the log's, and those of its witnesses."""
    return reply({**pages.public_keys(service), "witnesses": service.log.witnesses.public_keys()})


@router.at("GET /healthz", bodies.Anything)
async def healthz() -> Response:
    """Tell that the process answers."""
    return reply({"alive": True})


@router.at("GET /readyz", bodies.Anything, more={503: {"model": bodies.Anything}})
def readyz(service: TheService) -> Response:
    """Tell whether people can be sent here: it can write, keys are open, the sum is built."""
    checks = service.readiness()
    ready = all(holds for name, holds in checks.items() if name != OPTIONAL)
    return reply({"ready": ready, **checks}, 200 if ready else 503)


@router.at("GET /metrics", media="text/plain")
def metrics(service: TheService) -> Response:
    """Count for Prometheus. From this machine, or with a token of the scope `metrics`."""
    counts: dict[str, Any] = {"listeners": service.events.listeners}
    with suppress(Busy):  # the database is away: what only it knows is left out
        counts |= _of_the_ledger(service)
    counts["refusing_changes"] = not service.readiness()["can_write"]
    text = service.measures.text({name: float(value) for name, value in counts.items()})
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _of_the_ledger(service: Service) -> dict[str, Any]:
    """Return the numbers that the database is asked for.

    Those of requests are told by `rescind requests run --metrics`, too, under the same names.
    """
    ledger, now = service.ledger, service.ledger.clock()
    counts: dict[str, Any] = ledger.reading.overview()
    waiting, release = ledger.reading.open_requests(), ledger.releases.current
    due = [row.expected_by for row in waiting]
    counts["requests_open"] = counts.pop("open")
    for name, ids in fulfilment.alarms(waiting, now).items():
        counts[f"requests_{name}"] = len(ids)
    return counts | {
        "requests_overdue": sum(at < now for at in due),
        "requests_next_due_seconds": min(due).timestamp() if due else 0.0,
        "release": release.number if release else 0,
        "people_until_release": ledger.releases.due().people_left,
    }


def text_of(description: dict[str, Any]) -> str:
    """Return the OpenAPI description as it is committed."""
    return json.dumps(description, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
