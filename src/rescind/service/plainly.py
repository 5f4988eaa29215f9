"""Requests of hot routes that are as they should be, read without a detour.

Most requests fit their description, and finding that out with FastAPI costs more than the change
itself. So a hot route looks first: a request that is plainly right is carried out at once. Anything
else is left to the described route, which says what is wrong, in the same words as everywhere.
These functions return None for it and have no effect.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from rescind.service.bodies import KEY, MOST_ITEM, MOST_ITEMS, MOST_LIST

USUAL = 20
_KEY = re.compile(KEY.encode())
_LENGTH = re.compile(rb"k=([1-9][0-9]{0,2})")
_SECRET = re.compile("[0-9a-f]{64}")
KINDS = ("unshare", "erase", "leave")


@dataclass(frozen=True)
class Change:
    """A request to lend or to take back."""

    key: str
    items: list[str] | None
    if_match: str | None = None
    kind: str = "lend"
    receipt_key: str | None = None


def list_length(request: Request) -> int | None:
    query = request.scope["query_string"]
    if not query:
        return USUAL
    found = _LENGTH.fullmatch(query)
    length = int(found[1]) if found else 0
    return length if 1 <= length <= MOST_LIST else None


async def lending(request: Request) -> Change | None:
    body, headers = await _body(request), _headers(request)
    if headers is None or body.keys() != {"items"} or not _are_items(body["items"]):
        return None
    return Change(headers[0], body["items"], headers[1])


async def taking_back(request: Request) -> Change | None:
    body, headers = await _body(request), _headers(request)
    if headers is None or not {"kind"} <= body.keys() <= {"kind", "items", "receipt_key"}:
        return None
    all_of_it = "everything" if body["kind"] == "leave" else None
    items, secret = body.get("items", all_of_it), body.get("receipt_key")
    right = body["kind"] in KINDS and (items == "everything" or _are_items(items))
    if not right or not (secret is None or (type(secret) is str and _SECRET.fullmatch(secret))):
        return None
    named = None if items == "everything" else items
    return Change(headers[0], named, headers[1], body["kind"], secret)


def _headers(request: Request) -> tuple[str, str | None] | None:
    """Return Idempotency-Key and If-Match; None if one of them is not there once, as it should."""
    keys, tags = [], []
    for name, value in request.scope["headers"]:
        if name == b"idempotency-key":
            keys.append(value)
        elif name == b"if-match":
            tags.append(value)
    if len(keys) != 1 or len(tags) > 1 or not _KEY.fullmatch(keys[0]):
        return None
    return keys[0].decode("latin-1"), tags[0].decode("latin-1") if tags else None


async def _body(request: Request) -> dict[str, Any]:
    text = await request.body()
    if b"\\u" in text:  # a character that is escaped may be half of one
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if type(found) is dict else {}


def _are_items(items: Any) -> bool:
    return (
        type(items) is list
        and 0 < len(items) <= MOST_ITEMS
        and all(type(one) is str and 0 < len(one) <= MOST_ITEM for one in items)
    )
