"""Telling agents: a status is sent to the https address that the request named.

The address must be public (`rescind.proof.reaching`), and the answer is not read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rescind.errors import DataError
from rescind.proof import reaching

LOG = logging.getLogger("rescind.service")
SECONDS = 10.0
FIRST_PAUSE, FACTOR = timedelta(minutes=1), 2
GIVE_UP = timedelta(days=7)


def pause_after(tries: int) -> timedelta:
    """Return how long to wait after so many tries: 1 min, 2, 4, ... up to a day."""
    return min(FIRST_PAUSE * FACTOR ** min(tries, 12), timedelta(days=1))


def send(url: str, status: Mapping[str, Any]) -> bool:
    """Send a status; return whether the agent answered 200. Never raises."""
    headers = {"Content-Type": "application/json"}
    try:
        if not url.startswith("https://"):
            raise reaching.NotPublic("it is not https")
        return reaching.post(url, json.dumps(status).encode(), headers, SECONDS).status == 200
    except reaching.NotPublic:
        LOG.warning("a status callback was not sent: its address is not public https")
    except DataError:
        pass
    return False
