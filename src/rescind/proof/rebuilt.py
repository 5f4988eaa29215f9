"""What a second party signs that solved a release again from the published sum.

It is a signed note, as a checkpoint is, with the witness's own key. Its first line has spaces, so
no log has it as its name, and no program takes it for a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rescind.errors import DataError
from rescind.proof.log_folder import saw
from rescind.proof.notes import Key, opened
from rescind.proof.roster import Stated

FILE = "rebuilt.json"
"""In a public folder: notes by the name of who signed them."""
HEAD = "what was rebuilt, of rescind"


@dataclass(frozen=True)
class Rebuilt:
    """That the sum of a roster, solved with these settings, gives the weights of its release."""

    log: str
    roster: int
    sum: str
    weights: str
    settings: Mapping[str, Any]
    agrees: str
    """How far: to the byte, or to so many digits."""

    def __str__(self) -> str:
        return f"{HEAD}\n{json.dumps(asdict(self), sort_keys=True, separators=(',', ':'))}\n"

    @classmethod
    def parse(cls, text: str) -> Rebuilt:
        """Read the text of a note, or raise `DataError`."""
        try:
            found = cls(**json.loads(text.removeprefix(f"{HEAD}\n")))
        except (ValueError, TypeError, RecursionError):
            found = None
        if found is None or str(found) != text or not isinstance(found.agrees, str):
            raise DataError("it is no note about a release that was rebuilt.")
        return found

    def is_of(self, log: str, stated: Stated) -> bool:
        """Return whether it is about what a log states."""
        own = (self.log, self.roster, self.sum, self.weights)
        return own == (log, stated.number, stated.sum, stated.weights)


def read(note: str, trusted: Collection[Key]) -> tuple[Rebuilt, dict[Key, int]]:
    """Return what a note says, and which of these keys signed it when."""
    about: tuple[Any, dict[Key, int]] = opened(note, trusted, Rebuilt.parse)
    return about


def told(data: bytes, log: str, stated: Stated, witnesses: Collection[Key]) -> list[str]:
    """Say which of these witnesses rebuilt the release of a roster. data: of `rebuilt.json`"""
    try:
        notes = [str(note) for note in json.loads(data).values()]
    except (ValueError, AttributeError, RecursionError):
        raise DataError(f"{FILE} does not hold notes by name.") from None
    says = []
    for note in notes:
        about, found = read(note, witnesses)
        if found and about.is_of(log, stated):
            says.append(
                f"its release was rebuilt by {saw(found)}: the weights follow from the published "
                f"sum ({about.agrees})"
            )
    return says
