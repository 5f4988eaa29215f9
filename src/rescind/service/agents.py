"""Data Rights Protocol 1.0: agents exercise rights for people. States are the protocol's own.

Identity claims in a message (name, e-mail) are not read and not kept: there is nothing here that
they could be compared with. A person is found by the code they made, or by their own word.

A message is JSON with an Ed25519 signature before it, base64 over both, sent as text/plain. It is
checked in the order that the protocol states.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import accounts, agency, credentials
from rescind.ledger.batch import Once
from rescind.ledger.errors import NotThere
from rescind.service import bodies, chores, statuses
from rescind.service.answers import reply
from rescind.service.callers import Caller, new_secret
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheService
from rescind.service.problems import Problem

router = Doors()
AgentId = Annotated[str, Path(alias="id", max_length=64)]
RequestId = Annotated[str, Path(alias="id", max_length=64)]
CODE = "rescind-code"
VERSION = "1.0"
ACTIONS = {"deletion": "leave", "access": "access"}
"""Rights that are served, and what each asks of the ledger."""
REGIMES = {None, "ccpa", "gdpr"}
SIGNATURE = 64
LONGEST = timedelta(days=1)
"""A message that is valid for longer could be replayed for longer; the protocol advises 15 min."""
_SIGNED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "text/plain": {
                "schema": {
                    "type": "string",
                    "description": "Base64 of an Ed25519 signature followed by JSON.",
                }
            }
        },
    }
}


def _agent(service: Service, name: str) -> Any:
    with service.ledger.store.reading() as tx:
        return credentials.find_agent(tx, name)


@router.at(
    "POST /drp/v1/agent/{id}", bodies.Anything, extra=_SIGNED, more={403: {"description": "No."}}
)
async def pair(request: Request, agent: AgentId, service: TheService) -> Response:
    """Give an agent a token for its signature. What does not verify gets 403 and no body."""
    known = _agent(service, agent)
    body = await request.body()
    try:
        if known is None:
            raise Problem(403, "This agent is not known here.", "Ask the operator to admit it.")
        message = verified(body, known.public_key)
        check_envelope(message, agent, service.settings.business, service.ledger.clock())
    except Problem:
        return Response(status_code=403)
    token, digest = new_secret()
    await service.submit(accounts.GiveAgentToken(agent, digest))
    return reply({"agent-id": agent, "token": token})


@router.at("GET /drp/v1/agent/{id}", bodies.Anything)
async def information(agent: AgentId, caller: TheCaller) -> Response:
    """Tell an agent that its token still works."""
    if caller.id != agent.encode():
        raise _others()
    return reply({})


@router.at("POST /drp/v1/data-rights-request/", bodies.Status, extra=_SIGNED, shown=False)
@router.at("POST /drp/v1/data-rights-request", bodies.Status, extra=_SIGNED)
async def exercise(request: Request, service: TheService, caller: TheCaller) -> Response:
    """Take a signed request. It passes from `open` on at once."""
    body = await request.body()
    message = await run_in_threadpool(_opened, service, caller, body, True)
    action, callback = exercised(message)
    code = message.get(CODE)
    if code is not None and not isinstance(code, str):
        raise Problem(400, f"{CODE} is not text.", "Send the code as the person gave it.")
    lookup = service.ledger.keyed(credentials.CREDENTIALS, code.encode()) if code else None
    kind = ACTIONS[action]
    operation = agency.Ask(caller.id.decode(), kind, callback, lookup)
    answer = await service.submit(operation, Once(hashlib.sha256(body).hexdigest(), body))
    await run_in_threadpool(chores.advance, service)
    return reply(answer.body)


@router.at("GET /drp/v1/data-rights-request/{id}", bodies.Status)
def status(name: RequestId, service: TheService, caller: TheCaller) -> Response:
    """Tell an agent where its request stands."""
    return reply(statuses.for_agent(service, _own(service, caller, name)))


@router.at("DELETE /drp/v1/data-rights-request/{id}", bodies.Status, extra=_SIGNED)
async def revoke(
    request: Request, name: RequestId, service: TheService, caller: TheCaller
) -> Response:
    """Revoke a request that still waits for the person's word."""
    await run_in_threadpool(_opened, service, caller, await request.body(), False)
    row = await run_in_threadpool(_own, service, caller, name)
    answer = await service.submit(agency.Revoke(caller.id.decode(), row.id))
    return reply(answer.body)


def _opened(service: Service, caller: Caller, body: bytes, whole: bool) -> dict[str, Any]:
    """Return the signed message of this token's agent. whole: it must name agent and business"""
    known = _agent(service, caller.id.decode())
    if known is None:
        raise _others()
    message = verified(body, known.public_key)
    if whole or "agent-id" in message:
        business, now = service.settings.business, service.ledger.clock()
        check_envelope(message, known.id, business, now)
    return message


def _own(service: Service, caller: Caller, name: str) -> Any:
    """Return a request of this agent. Another's and an unknown one are both 403 (section 2.02)."""
    try:
        row = service.ledger.reading.request(name)
    except NotThere:
        raise _others() from None
    if row.agent != caller.id.decode():
        raise _others()
    return row


def _others() -> Problem:
    return Problem(403, "This is not this agent's.", "Use the token of the agent that asked.")


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
