"""Know the files that come with a receipt: who gets five of them gives one in place of another."""

from __future__ import annotations

import json
import re
from typing import Any

from rescind.errors import ConfigError
from rescind.proof.notes import LOG, WITNESS, Key

MARK = b"\xef\xbb\xbf"
"""What editors of Windows put at the start of a text in UTF-8."""
NO_OPTION = ""
"""The receipt itself is given without an option."""
KINDS = {
    NO_OPTION: "a receipt",
    "--event": "a request (request.json)",
    "--acknowledgement": "the acknowledgement of a service",
    "--part": "one user's part of a request",
    "--event-key": "the key of a receipt (receipt.key), or digits that lack ed25519: before them",
    "--proof": "the proof of a place in the log (.tlog-proof)",
    "--key": "a key that signs receipts (signing.pub)",
    "--log-key": "the key of a log, which signs no receipts",
    "--witness": "the key of a witness",
    "page": "a page for reading, which is not signed: give receipt.json",
    "rotation": "the statement of a new key: rescind keys check reads it",
}
"""What a file is, by the option of `rescind verify` that takes it."""


def told_otherwise(data: bytes, option: str) -> str:
    """Say what a file is and where it belongs; '' if that is this option, or is not known."""
    found = _option_of(data.removeprefix(MARK))
    if found is None or found == option:
        return ""
    told = f"this is {KINDS[found]}"
    told += f": give it with {found}" if found.startswith("--") else ""
    return f"{told}; {option} takes {KINDS[option]}" if option and found == NO_OPTION else told


def _option_of(data: bytes) -> str | None:
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        return None
    if text[:14].lower() == "<!doctype html":
        return "page"
    if text.startswith("c2sp.org/tlog-proof@"):
        return "--proof"
    if re.fullmatch("[0-9a-f]{64}", text):
        return "--event-key"
    if re.fullmatch("ed25519:[0-9a-f]{64}", text) or text.startswith("-----BEGIN PUBLIC KEY"):
        return "--key"
    for kind, option in ((LOG, "--log-key"), (WITNESS, "--witness")):
        try:
            Key.parse(text, kind)
        except ConfigError:
            continue
        return option
    try:
        return _option_of_table(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _option_of_table(table: Any) -> str | None:
    words = table.keys() if isinstance(table, dict) else set()
    for option, needed in (
        (NO_OPTION, {"asked", "done", "signature"}),
        ("--acknowledgement", {"acknowledgement"}),
        ("--acknowledgement", {"entry", "leaf", "opening"}),
        ("--part", {"request", "way", "key"}),
        ("rotation", {"by_old", "by_new"}),
    ):
        if needed <= words:
            return option
    return "--event" if "kind" in words and words & {"inner", "client"} else None
