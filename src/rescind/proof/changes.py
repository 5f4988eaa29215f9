"""Changes of what people lend, as the log of a service holds them.

The entry of a change is `0x01` and an HMAC over a statement of it (kind, items, time, seq) under 32
bytes, the *opening*, which only the person gets. The ledger writes such entries, and whoever has
the opening can show what one of them is about (`rescind verify --acknowledgement`). The page does
the same in `service/static/mine.js`.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence

from rescind.proof.log_folder import CHANGE

ASKED = {"unshare": "Unshare", "erase": "Erase", "leave": "Withdraw"}
"""What a receipt calls the ways to take back."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def statement(kind: str, items: Sequence[str], time: str, seq: int) -> bytes:
    """Return the canonical JSON of a change: what its entry commits to, and a receipt's digest.

    items: original ids, in the order of the catalogue
    """
    return _CANONICAL({"items": list(items), "kind": kind, "seq": seq, "time": time}).encode()


def entry_under(opening: bytes, said: bytes) -> bytes:
    """Return the entry of the log that commits to this statement."""
    return bytes([CHANGE]) + hmac.digest(opening, said, "sha256")
