"""Telling agents: a status is sent to the https address that the request named.

The address must be public: a service that calls whatever it is told could be made to call its own
network. Redirects are not followed and the answer is not read.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

LOG = logging.getLogger("rescind.service")
SECONDS = 10.0
FIRST_PAUSE, FACTOR = timedelta(minutes=1), 2
GIVE_UP = timedelta(days=7)


def pause_after(tries: int) -> timedelta:
    """Return how long to wait after so many tries: 1 min, 2, 4, ... up to a day."""
    return min(FIRST_PAUSE * FACTOR ** min(tries, 12), timedelta(days=1))


def public_address(host: str, port: int) -> str | None:
    """Return an address of this host if all its addresses are public, else None."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = [str(one[4][0]) for one in found]
    if not addresses or not all(ipaddress.ip_address(a).is_global for a in addresses):
        return None
    return addresses[0]


class _Connection(http.client.HTTPSConnection):
    """Connects to the address that was checked, so that a second lookup cannot change it."""

    def __init__(self, host: str, port: int, address: str) -> None:
        self._context = ssl.create_default_context()
        super().__init__(host, port, timeout=SECONDS, context=self._context)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), SECONDS)
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host)


def send(url: str, status: Mapping[str, Any]) -> bool:
    """Send a status; return whether the agent answered 200. Never raises."""
    parts = urlsplit(url)
    try:
        port = parts.port or 443
    except ValueError:
        return False
    host = parts.hostname or ""
    address = public_address(host, port) if parts.scheme == "https" and host else None
    if address is None:
        LOG.warning("a status callback was not sent: its address is not public https")
        return False
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = _Connection(host, port, address)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(status).encode(), headers)
        done = connection.getresponse().status == 200
        connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return done
