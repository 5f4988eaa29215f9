"""A witness that comes by itself: it reads a log over HTTP, checks that it only grew, and signs.

For a machine that cannot be reached from the log. What it has seen is written before its signature
leaves the machine (`proof.witness`), so a second history is refused, also after a restart.
"""

from __future__ import annotations

import json
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError
from rescind.proof.notes import LARGEST, Checkpoint, Key, in_base64, opened
from rescind.proof.tlog import TILE, Tree, tile_path
from rescind.proof.witness import Witness, bare, request_body

WAIT = 10.0
"""Seconds that a request may take."""


class Away(DataError):
    """The log cannot be reached: it is asked again later."""


class SecondHistory(DataError):
    """The log shows another history than the one that was signed."""


class Pulling:
    """Reads one log again and again for a witness."""

    def __init__(self, url: str, log: Key, witness: Witness, folder: Path) -> None:
        """url: of the service whose log it is    folder: where evidence of a fork is kept"""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"'{url}' is not the address of a service: http:// or https://.")
        self._base, self._log = f"{url.rstrip('/')}/log", log
        self._witness, self._folder = witness, folder
        self._full = bytearray()  # leaves under full tiles: those never change

    def once(self) -> Checkpoint:
        """Read the newest checkpoint, sign it and bring the signature; return it."""
        note = bare(self._get("checkpoint").decode("utf-8", "replace"))
        point, found = opened(note, [self._log])
        if self._log not in found:
            raise DataError(
                f"the checkpoint at {self._base} is not signed by {self._log.name}. Check --key."
            )
        seen = self._witness.seen(self._log.name)
        if point.size < seen.size:
            raise self._refused(note, seen, f"has {point.size} entries now: it was rolled back")
        tree = self._tree(point)
        path = tree.consistency(seen.size, point.size)
        reply = self._witness.add_checkpoint(request_body(seen.size, path, note))
        if reply.status != 200:
            raise self._refused(note, seen, f"does not continue them ({reply.body.strip()})")
        self._post("cosignatures", (note + reply.body).encode())
        return point

    def _tree(self, point: Checkpoint) -> Tree:
        """Fetch the leaves that are not known yet."""
        while point.size - len(self._full) // 32 >= TILE:
            tile = self._get(tile_path(0, len(self._full) // 32 // TILE))
            if len(tile) != TILE * 32:
                raise self._not_signed()
            self._full += tile
        rest = point.size - len(self._full) // 32
        last = self._get(tile_path(0, point.size // TILE, rest)) if rest else b""
        tree = Tree(bytes(self._full) + last)
        if len(tree) != point.size or tree.root() != point.root:
            raise self._not_signed()
        return tree

    def _not_signed(self) -> DataError:
        self._full.clear()
        return DataError(f"the tiles at {self._base} are not those that its checkpoint signs.")

    def _refused(self, note: str, seen: Checkpoint, why: str) -> SecondHistory:
        """Keep what the log signed: with what was seen before, it proves the fork."""
        root = in_base64(seen.root)
        proof = {"seen": {"size": seen.size, "root": root}, "shown": note}
        path = self._folder / "second-history.json"
        write_atomically(path, f"{json.dumps(proof, indent=1)}\n".encode())
        return SecondHistory(
            f"{self._log.name} showed {seen.size} entries before and {why}. It is not signed. The "
            f"proof is in {path.name}."
        )

    def _get(self, path: str) -> bytes:
        return sent(Request(f"{self._base}/{path}"))

    def _post(self, path: str, body: bytes) -> None:
        headers = {"Content-Type": "text/plain"}
        sent(Request(f"{self._base}/{path}", data=body, headers=headers, method="POST"))


def sent(request: Request, most: int = LARGEST) -> bytes:
    """Send a request and return the answer, or raise `Away`. most: bytes that are read"""
    try:
        try:
            answer = urlopen(request, timeout=WAIT)
        except HTTPError as refused:
            answer = refused
        with answer:
            status, body = answer.status, bytes(answer.read(most))
            if len(body) < most and getattr(answer, "length", None):
                raise IncompleteRead(body, answer.length)
    except (URLError, OSError, ValueError, HTTPException) as error:  # whatever a stranger sends
        why = getattr(error, "reason", None) or error
        raise Away(f"{request.full_url} cannot be reached ({why}). Is it running?") from None
    if status >= 400:
        raise Away(f"{request.full_url} says {status}: {body[:500].decode('utf-8', 'replace')}")
    return body
