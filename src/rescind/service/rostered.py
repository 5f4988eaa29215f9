"""The roster over HTTP: its files for everybody, and a person's own line for that person."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from fastapi import Path
from starlette.responses import Response, StreamingResponse

from rescind.proof import rebuilt
from rescind.proof.roster import LINES, STATED, SUM
from rescind.service import bodies
from rescind.service.answers import reply
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheService
from rescind.service.problems import Problem

router = Doors()
Name = Annotated[str, Path()]
NAMES = (STATED, SUM, LINES, rebuilt.FILE)
MEDIA = "application/octet-stream"
CHUNK = 1 << 16
FRESH = {"Cache-Control": "no-cache"}


@router.at("GET /log/roster/{name}", media=MEDIA)
def roster(name: Name, service: TheService) -> Response:
    """Hand out what strangers add up: `release.json`, `sum.bin`, `roster.bin`, `rebuilt.json`.

    The log has the digest of `release.json`. `rescind roster fetch` reads all of it.
    """
    if name not in NAMES:
        raise Problem(404, f"The roster has no such file: it has {', '.join(NAMES)}.", "Name one.")
    made = service.ledger.roster
    notes = json.dumps(service.log.witnesses.rebuilt()).encode()
    data = {STATED: made.stated, SUM: made.total, rebuilt.FILE: notes}.get(name)
    if data is not None:
        return Response(data, media_type=MEDIA, headers=FRESH)
    if name != LINES or (path := made.lines) is None:
        raise _none(service)
    try:
        file = path.open("rb")
    except OSError:  # replaced meanwhile
        raise _none(service) from None
    size = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
    return StreamingResponse(_chunks(file), 200, {**FRESH, **size}, MEDIA)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read(CHUNK):
            yield data


def _none(service: Service) -> Problem:
    options = service.ledger.options
    if options.instant or options.noise:
        form = "the instant form" if options.instant else "noise"
        return Problem(404, f"There is no roster with {form}.", "docs/proof.md says why.")
    return Problem(404, "There is no roster yet.", "It is made after the next release. Ask later.")


@router.at("GET /v1/operator/sum", media=MEDIA)
def open_sum(service: TheService) -> Response:
    """Hand out the sum of the last roster, to solve it again (rescind witness --rebuild)."""
    held = service.ledger.roster.open_sum
    if held is None:
        says = "The sum of the last release is not held."
        raise Problem(404, says, "It is from the next one on, once a token may rebuild.")
    return Response(held.to_bytes(), media_type=MEDIA, headers={"Cache-Control": "no-store"})


@router.at("GET /v1/me/lines", bodies.Anything)
def lines(service: TheService, caller: TheCaller) -> Response:
    """Tell what you need to find your line in the roster, now and after you left. Keep it secret.

    Empty from a change of your loans until the roster of the next release.
    """
    return reply({"lines": service.ledger.roster.mine(caller.id)}, headers=FRESH)
