"""Data Rights Protocol 1.0: agents exercise rights for people. States are the protocol's own.

Identity claims in a message (name, e-mail) are not read and not kept: there is nothing here that
they could be compared with. A person is found by the code they made, or by their own word.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import accounts, agency, credentials
from rescind.ledger.batch import Once
from rescind.ledger.errors import NotThere
from rescind.service import bodies, chores, drp, statuses
from rescind.service.answers import reply
from rescind.service.callers import Caller, new_secret
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheService
from rescind.service.problems import Problem

router = Doors()
AgentId = Annotated[str, Path(alias="id", max_length=64)]
RequestId = Annotated[str, Path(alias="id", max_length=64)]
CODE = "rescind-code"
"""The claim with the code that a person made for their agent."""
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
        message = drp.verified(body, known.public_key)
        drp.check_envelope(message, agent, service.settings.business, service.ledger.clock())
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
    action, callback = drp.exercised(message)
    code = message.get(CODE)
    if code is not None and not isinstance(code, str):
        raise Problem(400, f"{CODE} is not text.", "Send the code as the person gave it.")
    lookup = service.ledger.keyed(credentials.CREDENTIALS, code.encode()) if code else None
    kind = drp.ACTIONS[action]
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
    message = drp.verified(body, known.public_key)
    if whole or "agent-id" in message:
        business, now = service.settings.business, service.ledger.clock()
        drp.check_envelope(message, known.id, business, now)
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
