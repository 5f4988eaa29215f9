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
SAYS = {
    NO_OPTION: "this is a receipt: give it by itself, without an option",
    "--event": "this is a request: give it with --event, and its key with --event-key",
    "--acknowledgement": (
        "this is the acknowledgement of a service (rescind serve): give it with --acknowledgement"
    ),
    "--part": "this is one user's part of a request: give it with --part",
    "--event-key": (
        "these are 64 digits, as in the key of a receipt (the file receipt.key): give it with "
        "--event-key. If it is the operator's public key, write ed25519: before it"
    ),
    "--proof": "this is the proof of a place in the log: give it with --proof",
    "--key": "this is a key that signs receipts: give it with --key",
    "--log-key": (
        "this is the key of a log, which signs no receipts: give it with --log-key, beside the "
        "proof (--proof), and with --key the signer's, signing.pub"
    ),
    "--witness": "this is the key of a witness: give it with --witness, beside the proof (--proof)",
    "page": "this is a page for reading, and it is not signed: give receipt.json",
    "rotation": "this is the statement of a new key: rescind keys check reads it",
}
"""What a file is, by the option of `rescind verify` that takes it."""

INSTEAD = {
    "--proof": "--proof takes the .tlog-proof that came with it",
    "--event": "--event takes the request (request.json)",
    "--acknowledgement": "--acknowledgement takes the answer of the service to your request",
    "--part": "--part takes one user's part of a request",
    "--event-key": "--event-key takes the key that came with it (receipt.key)",
    "--key": "--key takes the operator's public key (signing.pub)",
}
"""What to give in place of a receipt: who gives it to an option mostly gave it by itself, too."""


def told_otherwise(data: bytes, option: str) -> str:
    """Say what a file is and where it belongs; '' if that is this option, or is not known."""
    found = _option_of(data.removeprefix(MARK))
    if found is None or found == option:
        return ""
    instead = f"; {INSTEAD[option]}" if found == NO_OPTION and option in INSTEAD else ""
    return f"{SAYS[found]}{instead}"


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
