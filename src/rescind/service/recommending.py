"""Lists for a person, made from the release in service, with reasons and without scores."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from rescind.service import problems
from rescind.service.answers import moment

if TYPE_CHECKING:
    from rescind.ledger.batch import Items
    from rescind.service.context import Service

OPEN, LIMITED = '"limited":false', '"limited":true'
FEWEST = 5
"""Loans below which the list is what many people lend: fewer say too little, and would show too
much about whoever lends the same."""


def answer(service: Service, person: bytes, k: int) -> Response:
    """Return a person's list. Whoever tries many sets of loans gets the last list again."""
    loans = service.loans(person)
    if (text := of_generation(service, person, loans, k)) is not None:
        return _sent(text)  # not kept: once it is stale, nobody gets it again
    release = service.ledger.releases.current
    if service.ledger.options.instant:  # what is served shows every change anyway
        return _sent(ranked(service, loans, k))
    number = release.number if release is not None else 0
    asked = hashlib.sha256(loans.tobytes() + k.to_bytes(2, "big")).digest()
    repeated, limited = service.probing.known(person, number, asked)
    if limited:
        text = repeated.decode() or popular(service, loans, k)
        return _sent(text.replace(OPEN, LIMITED, 1))
    few = len(loans) < FEWEST or release is None
    text = popular(service, loans, k) if few else ranked(service, loans, k)
    service.probing.keep(person, asked, text.encode())
    return _sent(text)


def _sent(text: str) -> Response:
    return Response(text, media_type="application/json")


def ranked(service: Service, loans: Items, k: int) -> str:
    """Return the list of the release in service, as JSON.

    It is put together from parts that were encoded once: a third of the time of `json.dumps`.
    """
    found = service.ledger.releases.reasoned(loans, k)
    if found is None:
        return _list(service, "release", _lines(service, loans, k))
    names, own, rows = service.names, loans.tolist(), []
    lines = zip(*(one.tolist() for one in found), strict=True)
    for place, (item, chosen, shares, ranks) in enumerate(lines, 1):
        because = ",".join(
            f'{{{names[own[n]]},"share":{share:.4f},"without":{rank}}}'
            for n, share, rank in zip(chosen, shares, ranks, strict=True)
            if n >= 0
        )
        rows.append(f'{{"rank":{place},{names[item]},"because":[{because}]}}')
    return _list(service, "release", rows)


def _lines(service: Service, loans: Items, k: int) -> list[str]:
    """Return the lines of a list that is short, or of the instant form."""
    names, rows = service.names, []
    for rank, one in enumerate(service.ledger.releases.recommend(loans, k), 1):
        without = one.without
        because = ",".join(
            f'{{{names[n]},"share":{share:.4f},"without":{without.get(n, "null")}}}'
            for n, share in one.because
        )
        rows.append(f'{{"rank":{rank},{names[one.item]},"because":[{because}]}}')
    return rows


def of_generation(service: Service, person: bytes, loans: Items, k: int) -> str | None:
    """Return the list of the generation that the operator chose, as JSON; None: the release's."""
    chosen = service.ledger.generations.recommend(person, loans, k)
    if chosen is None:
        return None
    return _list(service, "generation", _without_reasons(service, chosen))


def popular(service: Service, loans: Items, k: int) -> str:
    """Return what most people lend, as of the release in service, as JSON."""
    chosen = service.ledger.releases.popular(loans, k)
    return _list(service, "popular", _without_reasons(service, chosen))


def _without_reasons(service: Service, chosen: list[int]) -> list[str]:
    names = service.names
    return [f'{{"rank":{rank},{names[n]},"because":[]}}' for rank, n in enumerate(chosen, 1)]


def _list(service: Service, kind: str, rows: list[str]) -> str:
    release = service.ledger.releases.current
    about = '"release":null,"made_at":null'
    if release is not None:
        about = f'"release":{release.number},"made_at":"{moment(release.at)}"'
    return f'{{{OPEN},{about},"kind":"{kind}","items":[{",".join(rows)}]}}'


def release_facts(service: Service) -> dict[str, Any]:
    """Return what is served, and when the next release is due."""
    release, due = service.ledger.releases.current, service.ledger.releases.due()
    options = service.ledger.options
    now = None
    if release is not None:
        now = {
            "number": release.number,
            "made_at": moment(release.at),
            "people": release.people,
            "digest": release.digest,
            "rebuilt": list(service.log.witnesses.rebuilt(release.digest).values()),
        }
    coming = {
        "people_left": due.people_left,
        "at_the_earliest": moment(due.earliest),
        "at_the_latest": moment(due.at),
    }
    rules: dict[str, Any] = {"people": options.people, "hours": options.hours}
    rules |= {"least_hours": options.least_hours, "instant": options.instant}
    generation = service.ledger.generations.served()
    beside = None if generation is None else {"job": generation.job, "seq": generation.seq}
    noise = service.ledger.releases.noising.promise()
    return {"current": now, "generation": beside, "next": coming, "rules": rules, "noise": noise}


def release_file(service: Service, digest: str) -> Response:
    """Return the release in service as bytes; it never changes under its digest."""
    release = service.ledger.releases.current
    if release is None or digest not in (release.digest, release.digest.partition(":")[2]):
        raise problems.named("not-found")
    kept = "private, max-age=31536000, immutable"
    headers = {"Cache-Control": kept, "Content-Encoding": "gzip"}
    return Response(service.ledger.releases.file(), 200, headers, "application/octet-stream")
