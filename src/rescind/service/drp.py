"""Messages of the Data Rights Protocol 1.0: signed by the agent, checked in the order it states.

A message is JSON with an Ed25519 signature before it, base64 over both, sent as text/plain.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from rescind.service.problems import Problem

VERSION = "1.0"
ACTIONS = {"deletion": "leave", "access": "access"}
"""Rights that are served, and what each asks of the ledger."""
REGIMES = {None, "ccpa", "gdpr"}
SIGNATURE = 64
LONGEST = timedelta(days=1)
"""A message that is valid for longer could be replayed for longer; the protocol advises 15 min."""


def verified(body: bytes, verify_key: str) -> dict[str, Any]:
    """Return the signed JSON of a message, or refuse it: base64 first, then the signature."""
    try:
        raw = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("The body is not base64 of a signature and JSON.") from None
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(verify_key))
    try:
        key.verify(raw[:SIGNATURE], raw[SIGNATURE:])
    except InvalidSignature:
        raise _refused("The signature is not that of this agent's key.") from None
    try:
        message = json.loads(raw[SIGNATURE:])
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise Problem(400, "The signed message is not a JSON object.", "Sign a JSON object.")
    return message


def check_envelope(message: dict[str, Any], agent: str, business: str, now: datetime) -> None:
    """Check whose message it is, for whom, and when: the order of section 3.07."""
    if message.get("agent-id") != agent:
        raise _refused("agent-id is not the agent of this token.")
    if message.get("business-id") != business:
        raise _refused(f"business-id is not {business}.")
    issued, expires = _time(message, "issued-at"), _time(message, "expires-at")
    if issued > now:
        raise _refused("issued-at is in the future. Check the clock.")
    if expires <= now:
        raise Problem(400, "expires-at has passed.", "Sign a new message.", kind="expired")
    if expires - issued > LONGEST:
        raise Problem(400, "It is valid for longer than a day.", "Use 15 minutes.")


def exercised(message: dict[str, Any]) -> tuple[str, str | None]:
    """Return the right that is exercised and the status callback."""
    version, action = message.get("drp.version"), message.get("exercise")
    if version != VERSION:
        raise Problem(400, "drp.version is not supported.", f"Send {VERSION}.")
    if not isinstance(action, str) or action not in ACTIONS:
        allowed = f"Allowed: {', '.join(ACTIONS)}."
        raise Problem(400, "Unsupported rights actions submitted.", allowed)
    regime = message.get("regime")
    if not (regime is None or isinstance(regime, str)) or regime not in REGIMES:
        raise Problem(400, "regime is not supported.", "Send ccpa or gdpr, or leave it out.")
    callback = message.get("status_callback")
    if callback is not None and not (
        isinstance(callback, str) and callback.startswith("https://") and len(callback) <= 500
    ):
        raise Problem(400, "status_callback is not an https address.", "Send https://...")
    return action, callback


def _time(message: dict[str, Any], name: str) -> datetime:
    try:
        at = datetime.fromisoformat(message[name])
    except (KeyError, TypeError, ValueError):
        raise Problem(400, f"{name} is not an ISO 8601 time.", "Send one with a zone.") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _refused(detail: str) -> Problem:
    return Problem(403, detail, "Settle it with the operator of this service.")
