"""Lists for a person, made from the release in service, with reasons and without scores."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from rescind.service import problems
from rescind.service.answers import moment, reply

if TYPE_CHECKING:
    from rescind.ledger.batch import Items
    from rescind.service.context import Service

FEWEST = 5
"""Loans below which the list is what many people lend: fewer say too little, and would show too
much about whoever lends the same."""


def answer(service: Service, person: bytes, k: int) -> Response:
    """Return a person's list. Whoever tries many sets of loans gets the last list again."""
    loans, release = service.loans(person), served(service)
    if service.ledger.options.instant:  # what is served shows every change anyway
        return reply(ranked(service, loans, k))
    number = release.number if release is not None else 0
    asked = hashlib.sha256(loans.tobytes() + k.to_bytes(2, "big")).digest()
    repeated, limited = service.probing.known(person, number, asked)
    if limited:
        body = json.loads(repeated) if repeated else popular(service, loans, k)
        return reply({**body, "limited": True})
    few = len(loans) < FEWEST or release is None
    body = popular(service, loans, k) if few else ranked(service, loans, k)
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    service.probing.keep(person, asked, text.encode())
    return Response(text, media_type="application/json")


def served(service: Service) -> Any:
    """Return the release in service; None before the first, and in the instant form."""
    return None if service.ledger.options.instant else service.ledger.releases.current


def ranked(service: Service, loans: Items, k: int) -> dict[str, Any]:
    """Return the list of the release in service."""
    titles, ids = service.ledger.catalogue.titles, service.ledger.catalogue.ids
    rows = []
    for rank, one in enumerate(service.ledger.releases.recommend(loans, k), 1):
        without = one.without
        because = [
            {"id": ids[n], "title": titles[n], "share": round(share, 4), "without": without.get(n)}
            for n, share in one.because
        ]
        rows.append(
            {"rank": rank, "id": ids[one.item], "title": titles[one.item], "because": because}
        )
    return {**_about(service), "kind": "release", "items": rows, "limited": False}


def popular(service: Service, loans: Items, k: int) -> dict[str, Any]:
    """Return what most people lend, as of the release in service."""
    titles, ids = service.ledger.catalogue.titles, service.ledger.catalogue.ids
    chosen = service.ledger.releases.popular(loans, k)
    rows = [
        {"rank": rank, "id": ids[n], "title": titles[n], "because": []}
        for rank, n in enumerate(chosen, 1)
    ]
    return {**_about(service), "kind": "popular", "items": rows, "limited": False}


def _about(service: Service) -> dict[str, Any]:
    release = served(service)
    if release is None:
        return {"release": None, "made_at": None}
    return {"release": release.number, "made_at": moment(release.at)}


def release_facts(service: Service) -> dict[str, Any]:
    """Return what is served, and when the next release is due."""
    release, due = served(service), service.due()
    options = service.ledger.options
    now = None
    if release is not None:
        now = {
            "number": release.number,
            "made_at": moment(release.at),
            "people": release.people,
            "digest": release.digest,
        }
    coming = {
        "people_left": due.people_left if due else None,
        "at_the_latest": moment(due.at) if due else None,
    }
    rules = {"people": options.people, "hours": options.hours, "instant": options.instant}
    return {"current": now, "next": coming, "rules": rules}


def release_file(service: Service, digest: str) -> Response:
    """Return the release in service as bytes; it never changes under its digest."""
    release = served(service)
    if release is None or digest not in (release.digest, release.digest.partition(":")[2]):
        raise problems.not_there()
    headers = {
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Encoding": "gzip",
    }
    return Response(service.ledger.releases.file(), 200, headers, "application/octet-stream")
