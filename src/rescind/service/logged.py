"""The log's files over HTTP, as C2SP tlog-tiles names them. Anybody may read them."""

from __future__ import annotations

import re
from typing import Protocol

from fastapi import APIRouter, HTTPException, Response

from rescind.errors import DataError
from rescind.proof.tlog import TILE, tile_path

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


def router(log: LogReader) -> APIRouter:
    """Return the routes below `/log`."""
    routes = APIRouter(prefix="/log", tags=["log"])

    @routes.get("/checkpoint", response_class=Response)
    def checkpoint() -> Response:
        """Return the newest signed checkpoint."""
        headers = {"Cache-Control": "no-cache"}
        return Response(log.read_checkpoint(), media_type="text/plain", headers=headers)

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
