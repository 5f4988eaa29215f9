"""What of a receipt is the same each time it is written: no key, no time, nothing drawn."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from rescind.privacy.keys import read_secret
from rescind.receipts.receipt import Receipt, opened, parse

SHORT = 12
"""Hexadecimal digits of a digest that are kept."""
DRAWN = ("completes",)
"""Claims that are digests of receipts, each of which is another one each time."""


def short(text: str | bytes) -> str:
    """Return a short digest of a text."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:SHORT]


def read_receipt(path: Path) -> dict[str, Any]:
    """Return the facts of a receipt that stay the same, exact if its key lies beside it."""
    found = parse(path.read_bytes())
    key = path.with_suffix(".key")
    return facts(opened(found, read_secret(key)) if key.is_file() else found)


def read_papers(path: Path) -> dict[str, Any]:
    """Return the same of the receipt in the file of an answer."""
    with zipfile.ZipFile(path) as packed:
        body, key = packed.read("receipt.json"), packed.read("receipt.key")
    return facts(opened(parse(body), bytes.fromhex(key.decode())))


def facts(found: Receipt) -> dict[str, Any]:
    """Return kind, level, amounts, verdict and claims."""
    return {
        "kind": found.asked.kind,
        "level": found.done.level,
        "people": found.asked.people,
        "records": found.asked.records,
        "by": found.done.unlearning,
        "verdict": found.verdict,
        "follows another": bool(found.previous),
        "claims": {name: _claim(name, value) for name, value in sorted(found.claims.items())},
    }


def _claim(name: str, text: str) -> str:
    """Return a claim; of what is under a key only how it is kept."""
    form, colon, rest = text.partition(":")
    secret = colon and form in ("bound", "sealed", "blake2b-named-tree")
    if secret or name in DRAWN:
        return form
    return f"{form}:{rest[:SHORT]}" if colon and len(rest) >= 32 else text
