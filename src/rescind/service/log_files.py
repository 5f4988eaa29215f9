"""The log's files over HTTP, as C2SP tlog-tiles names them, and those of the roster."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Protocol

from fastapi import APIRouter, HTTPException, Path
from starlette.responses import Response, StreamingResponse

from rescind.errors import DataError
from rescind.proof import rebuilt
from rescind.proof.roster import LINES, STATED, SUM
from rescind.proof.tlog import TILE, tile_path
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
FOR_EVER = "public, max-age=31536000, immutable"
"""A tile never changes: the log only grows."""
_TILE = re.compile(r"tile/(\d|[1-5]\d|6[0-3]|entries)/((?:x\d{3}/)*\d{3})(?:\.p/([1-9]\d{0,2}))?")


class LogReader(Protocol):
    """What the routes read: a ledger's log, or a `LogFolder`."""

    def read_checkpoint(self) -> str:
        """Return the newest signed checkpoint, with its cosignatures."""

    def tile(self, level: int, index: int, width: int) -> bytes:
        """Return a tile of hashes, or raise `DataError`."""

    def entry_bundle(self, index: int, width: int) -> bytes:
        """Return the entries under a tile of level 0, or raise `DataError`."""


def log_routes(log: LogReader) -> APIRouter:
    """Return the routes below `/log`."""
    routes = APIRouter(prefix="/log", tags=["log"])

    @routes.get("/checkpoint", response_class=Response)
    def checkpoint() -> Response:
        """Return the newest signed checkpoint."""
        return Response(log.read_checkpoint(), media_type="text/plain", headers=FRESH)

    @routes.get("/tile/{path:path}", response_class=Response)
    def tile(path: str) -> Response:
        """Return a tile of hashes (`LEVEL/NNN`) or a bundle of entries (`entries/NNN`)."""
        try:
            level, index, width = read_tile_path(f"tile/{path}")
            if level is None:
                data = log.entry_bundle(index, width)
            else:
                data = log.tile(level, index, width)
        except DataError as error:
            raise HTTPException(404, str(error)) from None
        headers = {"Cache-Control": FOR_EVER}
        return Response(data, media_type="application/octet-stream", headers=headers)

    return routes


def read_tile_path(path: str) -> tuple[int | None, int, int]:
    """Return level (None: entries), index and width of a tile, or raise `DataError`."""
    if found := _TILE.fullmatch(path):
        index, width = int(found[2].replace("/", "").replace("x", "")), int(found[3] or TILE)
        if path == tile_path(found[1], index, width):
            return None if found[1] == "entries" else int(found[1]), index, width
    raise DataError(f"'{path[:80]}' is no tile: expected tile/LEVEL/NNN or tile/entries/NNN.")


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
