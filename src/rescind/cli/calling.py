"""Calls to a running service, with a token from the environment."""

from __future__ import annotations

import json
import os
from typing import Any

TOKEN = "RESCIND_TOKEN"
URL = f"Address of a running service. Its token is read from {TOKEN}."


def call(url: str, method: str, path: str, scope: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request and return what it answers; raise `ConfigError` with its own words.

    scope: what the token must be allowed to do, to say so where there is none
    """
    import secrets
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from rescind.errors import ConfigError

    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(
            f"{TOKEN} is not set. This needs a token with the scope {scope}. Make one while the "
            f"service is stopped: rescind tokens make {scope}. Or on the operator's page."
        )
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
