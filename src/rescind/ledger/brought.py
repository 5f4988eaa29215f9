"""Operations that bring users in whom an operator has already, so that a kill loses none of them.

Which import is under way stands in the ledger from before its first user until after its release: a
start sees it, and every backup has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rescind.ledger.accounts import Code
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.lending import Lend, join
from rescind.ledger.reading import Reading

IMPORT = "import"
"""The setting that says which import is under way; empty when it is complete."""
COMPLETE = "import complete"
"""The setting that says which import was completed last."""


@dataclass(frozen=True)
class BringIn:
    """Somebody comes with their loans: an account, its code and the loans, all or nothing."""

    code: Code = field(repr=False)
    items: tuple[int, ...]
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Write everything."""
        person, _ = join(batch)
        self.code.write(batch, person)
        return Lend(person, self.items).carry_out(batch)


@dataclass(frozen=True)
class NoteImport:
    """Notes which import is under way; nothing: it is complete."""

    about: Mapping[str, Any] = field(default_factory=dict)
    complete: Mapping[str, Any] = field(default_factory=dict)
    """By what its command is known again."""
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Keep it until the next note."""
        batch.keep(IMPORT, json.dumps(dict(self.about)))
        if self.complete:
            batch.keep(COMPLETE, json.dumps(dict(self.complete)))
        return Answer(200)


def import_under_way(reading: Reading) -> dict[str, Any]:
    """Return what was noted of an import that is not complete; empty if there is none."""
    return dict(json.loads(reading.setting(IMPORT) or "{}"))


def import_completed(reading: Reading) -> dict[str, Any]:
    """Return what was noted of the last complete import; empty if older versions completed it."""
    return dict(json.loads(reading.setting(COMPLETE) or "{}"))
