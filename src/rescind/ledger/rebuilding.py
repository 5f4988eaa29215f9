"""A witness that rebuilds: it takes the sum of each release, solves it, and signs what it got.

Its operator gave it a token with the scope `rebuild`, because the sum tells what people have
together. The sum stays in memory here, too; what is kept is the public folder of the roster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import Request

from rescind.errors import DataError
from rescind.ledger.open_sum import OpenSum
from rescind.methods.additive._live_release import LARGEST, unpacked
from rescind.methods.additive._solving import half
from rescind.proof.fetching import fetch
from rescind.proof.notes import LARGEST as NOTE
from rescind.proof.notes import Key
from rescind.proof.pulling import Away, sent
from rescind.proof.rebuilt import Rebuilt
from rescind.proof.roster import STATED, Public, Stated, check
from rescind.proof.witness import Witness

Leaver = Sequence[Mapping[str, Any]]
"""The lines that somebody kept from before they left, checked (`proof.roster.own_line`)."""


class Rebuilding:
    """Rebuilds each release of a service once."""

    def __init__(self, url: str, log: Key, witness: Witness, folder: Path, token: str) -> None:
        """folder: for the public folder of the roster"""
        self._base, self._log, self._witness = url.rstrip("/"), log, witness
        self._public, self._token, self._done = folder / "public", token, b""

    def once(self, leavers: Mapping[str, Leaver] | None = None) -> list[str]:
        """Rebuild the release of the newest roster, sign that, and bring it; none twice.

        Return what was found, in sentences; raise `DataError` with what does not hold, and `Away`
        if the service cannot be asked now. leavers: by the name of their file
        """
        if self._get(f"/log/roster/{STATED}") == self._done:
            return []
        stated = fetch(self._base, self._public)
        public = Public.read(self._public)
        says = check(public, self._log)
        seen = self._witness.seen(self._log.name)
        if public.log.tree_root(seen.size) != seen.root:
            raise DataError(
                f"the roster is of another history than the {seen.size} entries signed."
            )
        opened = OpenSum.read(
            self._get("/v1/operator/sum", 8 * half(stated.items) + (1 << 20)), stated.items
        )
        if opened.number != stated.number:
            raise Away("a new roster was made while this one was read.")
        agrees = opened.check(public, unpacked(self._get(f"/v1/release/{stated.weights}", LARGEST)))
        self._sign(stated, opened, agrees)
        self._done = public.stated
        says.append(f"the weights of the release follow from it ({agrees}): signed")
        return says + [f"{name}: {gone(lines, opened)}" for name, lines in (leavers or {}).items()]

    def _sign(self, stated: Stated, opened: OpenSum, agrees: str) -> None:
        settings = asdict(opened.form)
        about = (self._log.name, stated.number, stated.sum, stated.weights, settings, agrees)
        note = self._witness.signed(str(Rebuilt(*about)))
        self._send("/log/rebuilt", NOTE, data=note.encode(), method="POST")

    def _get(self, path: str, most: int = NOTE) -> bytes:
        return self._send(path, most)

    def _send(self, path: str, most: int, **more: Any) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "text/plain"}
        return sent(Request(f"{self._base}{path}", headers=headers, **more), most)


def gone(lines: Leaver, opened: OpenSum) -> str:
    """Say whether a sum shows that none of a leaver's parts is in it."""
    short = [opened.short(one) for one in lines]
    if short and all(short):
        return f"OUT: {sum(short):,} pairs of these items have less in the sum than that part had"
    return "NOT SHOWN: every pair of these items has as much in the sum as that part had"
