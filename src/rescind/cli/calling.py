"""Calls to a running service, with a token from the environment."""

from __future__ import annotations

import json
import os
import re
from typing import Any

TOKEN = "RESCIND_TOKEN"
URL = f"Address of a running service. Its token is read from {TOKEN}."


def check_id(given: str, listing: str) -> None:
    """Refuse what cannot be an id, in words: the service would quote its pattern."""
    from rescind.errors import ConfigError

    if not re.fullmatch("[0-9a-f]{32}", given):
        raise ConfigError(f"'{given}' is not an id. {listing} lists them. Nothing was changed.")


def token_for(scope: str) -> str:
    """Return the token in the environment. scope: what it must allow, to say so if there is none"""
    from rescind.errors import ConfigError

    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(
            f"{TOKEN} is not set. Make a token while the service is stopped: rescind tokens make "
            f"{scope}. Or on the operator's page."
        )
    return token


def call(url: str, method: str, path: str, scope: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request and return what it answers; raise `ConfigError` with its own words.

    scope: what the token must be allowed to do, to say so where there is none
    """
    import secrets
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from rescind.errors import ConfigError

    token = token_for(scope)
    sent = None if body is None else json.dumps(body).encode()
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Idempotency-Key": secrets.token_hex(16),
    }
    try:
        asked = Request(f"{url.rstrip('/')}{path}", sent, headers, method=method)
        with urlopen(asked, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        try:
            told = json.load(error)
            why = f"{told['detail']} {told['next']}"
        except (ValueError, KeyError):
            why = f"it answered {error.code}."
        raise ConfigError(f"{url} refused: {why}") from None
    except (URLError, ValueError, OSError) as error:
        cause = getattr(error, "reason", None) or error
        raise ConfigError(f"cannot reach {url}: {cause}. Check the address.") from None
