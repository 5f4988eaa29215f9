"""Replies of the silos during one forgetting request, in order, on the server's disk.

An unlearner is any sequence of steps, so it cannot be resumed in the middle. But it is
deterministic (random numbers are hashes), so a server that was killed repeats the same messages.
It reads replies that it already has from this journal and asks the silos only for the rest.
Nothing is acknowledged or counted twice.

A missing reply (a silo refused, or was away) counts only if the server went on without it. If
nothing came after it, the silo is asked again: its owner may have allowed the request since.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rescind.core import params
from rescind.core.saved import reading, table_in
from rescind.errors import DataError
from rescind.flower.wire.messages import Letter
from rescind.storage.packing import drawer, under

log = logging.getLogger(__name__)

Answers = tuple[dict[int, Letter], dict[int, str]]
"""(replies, reasons of missing replies), both by silo."""


@dataclass
class Journal:
    """The exchanges of one request, one file each."""

    folder: Path
    position: int = 0
    """Number of exchanges that this process has read or written."""

    def read(self, requests: Mapping[int, Letter]) -> Answers | None:
        """Return the answers of the next exchange; None if it was not completed.

        Silos in neither part of the answers are to be asked again. Then `write` replaces them.
        """
        path = self._path(self.position)
        if not path.is_file():
            return None
        try:
            tensors, notes = params.load(path)
            with reading(path):
                saved = table_in(notes)
                replies = {
                    int(silo): Letter(facts, drawer(f"silo{silo}", tensors))
                    for silo, facts in saved["replies"].items()
                }
                why = {int(silo): reason for silo, reason in saved["why"].items()}
                asked = saved["asked"]
        except DataError as error:
            log.warning("skipped an incomplete file of the journal: %s", error)
            self._drop()
            return None
        if asked != _digests(requests):
            log.warning("the journal is not used: the unlearner's messages have changed")
            self._drop()
            return None
        if why and not self._path(self.position + 1).is_file():
            return replies, {}
        self.position += 1
        return replies, why

    def write(self, requests: Mapping[int, Letter], answers: Answers) -> None:
        """Save the answers before they are used."""
        replies, why = answers
        tensors = {
            name: value
            for silo, reply in replies.items()
            for name, value in under(f"silo{silo}", reply.tensors).items()
        }
        facts = {silo: reply.facts for silo, reply in replies.items()}
        saved = {"asked": _digests(requests), "replies": facts, "why": why}
        params.save(self._path(self.position), tensors, {"facts": json.dumps(saved)})
        self.position += 1

    def _drop(self) -> None:
        """Remove this exchange and all later ones: they cannot be used."""
        for path in self.folder.glob("exchange-*.safetensors"):
            if path.name >= self._path(self.position).name:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"exchange-{number:06d}.safetensors"


def _digests(requests: Mapping[int, Letter]) -> dict[str, str]:
    return {str(silo): request.digest for silo, request in requests.items()}
