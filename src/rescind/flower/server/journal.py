"""What silos answered while a request is being forgotten, in order, on the server's disk.

An unlearner is any sequence of steps, so nobody can say in general how to go on in its middle. But
its steps are the same again when it is begun again (random numbers are hashes), and so are its
letters: a server that was killed repeats them, and reads every answer that it had heard already
here. Silos are asked only what they had not answered: nothing is acknowledged or counted twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rescind.core import params
from rescind.errors import DataError
from rescind.flower.wire.messages import Letter
from rescind.storage.packing import drawer, under

log = logging.getLogger(__name__)

Answers = tuple[dict[int, Letter], dict[int, str]]
"""Replies by silo, and for every silo without one the reason."""


@dataclass
class Journal:
    """The exchanges of one request, one file each."""

    folder: Path
    at: int = 0
    """How many exchanges of this process are behind it, read or written."""

    def read(self, letters: Mapping[int, Letter]) -> Answers | None:
        """The answers to the next exchange; None: it was not heard to its end yet."""
        path = self._path(self.at)
        if not path.is_file():
            return None
        try:
            tensors, notes = params.load(path)
        except DataError as error:
            log.warning("passed over an exchange that was not written whole: %s", error)
            self._drop()
            return None
        told = json.loads(notes["facts"])
        if told["asked"] != _digests(letters):
            log.warning("the unlearner's steps differ from those before it was stopped")
            self._drop()
            return None
        self.at += 1
        replies = {
            int(silo): Letter(facts, drawer(f"silo{silo}", tensors))
            for silo, facts in told["replies"].items()
        }
        return replies, {int(silo): reason for silo, reason in told["why"].items()}

    def write(self, letters: Mapping[int, Letter], answers: Answers) -> None:
        """Keep the answers before anything is done with them."""
        replies, why = answers
        tensors = {
            name: value
            for silo, reply in replies.items()
            for name, value in under(f"silo{silo}", reply.tensors).items()
        }
        facts = {silo: reply.facts for silo, reply in replies.items()}
        told = {"asked": _digests(letters), "replies": facts, "why": why}
        params.save(self._path(self.at), tensors, {"facts": json.dumps(told)})
        self.at += 1

    def _drop(self) -> None:
        """What follows an exchange that cannot be used cannot be used either."""
        for path in self.folder.glob("exchange-*.safetensors"):
            if path.name >= self._path(self.at).name:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"exchange-{number:06d}.safetensors"


def _digests(letters: Mapping[int, Letter]) -> dict[str, str]:
    return {str(silo): letter.digest for silo, letter in letters.items()}
