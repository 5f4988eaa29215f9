"""Posting to an address that others name: it must be public, and no redirect is followed.

A program that calls whatever it is told could be made to call its own network.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rescind.errors import DataError


class NotPublic(DataError):
    """The address lies in a network of one's own, or there is none."""


class Away(DataError):
    """Nobody answers at an address now."""

    code = "away"


class Answered(NamedTuple):
    """What an address answered."""

    status: int
    content_type: str
    body: bytes


def public_address(host: str, port: int) -> str | None:
    """Return an address of this host if all its addresses are public, else None."""
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = [str(entry[4][0]) for entry in known]
    if not addresses or not all(ipaddress.ip_address(a).is_global for a in addresses):
        return None
    return addresses[0]


def address_of(url: str) -> tuple[str, int, str]:
    """Return host and port of a URL, and an address of it, or refuse it if that is not public."""
    host, port = _host_of(url)
    address = public_address(host, port)
    if address is None:
        raise NotPublic(f"{host} has no public address, or also others.")
    return host, port, address


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
    largest: int = 0,
    anywhere: bool = False,
) -> Answered:
    """Send a body; return the answer, or raise `DataError`.

    largest: bytes that are read of the answer    anywhere: also to addresses that are not public
    """
    host, port, address = (*_host_of(url), "") if anywhere else address_of(url)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection: Any = kind(host, port, timeout=seconds)
    if address:  # the one that was checked: a second lookup could find another
        connection._create_connection = lambda _, *more: socket.create_connection(
            (address, port), *more
        )
    try:
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        read = answer.read(largest)
        return Answered(answer.status, answer.headers.get("Content-Type", ""), read)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Away(f"cannot be reached ({error or type(error).__name__}).") from None
    finally:
        connection.close()


def _host_of(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    except (ValueError, KeyError):
        raise DataError("the address is neither http:// nor https://.") from None
    return parts.hostname or "", port
