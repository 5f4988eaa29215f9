"""Notes in the header of a safetensors file. Needs no torch.

Safetensors writes several notes in another order each time, and files of one model are to have the
same bytes: so several are kept as one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

WHOLE = "rescind.notes"
FOREIGN = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What reading a file ends with whose content is not what was expected."""


def as_one(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as a header keeps them."""
    return dict(notes) if len(notes) < 2 else {WHOLE: json.dumps(dict(sorted(notes.items())))}


def apart(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the notes of a header."""
    whole: dict[str, str] = json.loads(metadata[WHOLE]) if {*metadata} == {WHOLE} else {}
    notes = whole or dict(metadata)
    if not all(isinstance(each, str) for each in notes.values()):
        raise ValueError("a note is no text")
    return notes
