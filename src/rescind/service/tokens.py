"""Tokens for scripts, and invitations: make, list, revoke."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Path
from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import accounts, tables
from rescind.service import bodies, problems
from rescind.service.answers import moment, reply, told
from rescind.service.callers import new_secret
from rescind.service.doors import Doors, TheCaller, TheService, once
from rescind.service.policy import SCOPES, Role
from rescind.service.problems import Problem

router = Doors()
TokenId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")]


@router.at("GET /v1/operator/tokens", bodies.Anything)
def tokens(service: TheService) -> Response:
    """List tokens and invitations that have not ended: what each may do, never the token itself."""
    table = tables.token
    alive = select(table).where(table.c.expires > service.ledger.clock()).order_by(table.c.at)
    with service.ledger.store.reading() as tx:
        rows = tx.execute(alive).all()
    shown = [
        {
            "id": accounts.token_name(bytes(row.digest)),
            "name": row.name,
            "role": row.role,
            "scope": row.scope.split(),
            "made": moment(row.at),
            "expires": moment(row.expires),
        }
        for row in rows
    ]
    return reply({"tokens": shown})


@router.at("DELETE /v1/operator/tokens/{id}", bodies.Anything)
async def revoke_token(
    request: Request, name: TokenId, key: bodies.IdempotencyKey, service: TheService
) -> Response:
    """End a token or an invitation now."""
    return told(await service.submit(accounts.RevokeToken(name), await once(request, key)))


@router.at("POST /v1/operator/tokens", bodies.Token, 201)
async def make_token(
    request: Request,
    body: bodies.NewToken,
    key: bodies.IdempotencyKey,
    service: TheService,
    caller: TheCaller,
) -> Response:
    """Make a token for a script. Its digest is kept; whoever sends the same key again sees it."""
    wrong = sorted(set(body.scope) - caller.scopes)
    if wrong:
        allowed = ", ".join(sorted(caller.scopes))
        raise Problem(422, f"scope: {wrong[0]} is not yours to give.", f"Allowed: {allowed}.")
    if not caller.id:
        raise problems.needs_passkey()
    if not caller.confirmed:
        raise problems.confirm_first()
    narrow = set(body.scope) <= SCOPES[Role.OFFICER]
    role = Role.OFFICER if narrow else Role.OPERATOR
    text, digest = new_secret()
    until = service.ledger.clock() + timedelta(days=body.days)
    scope = tuple(sorted(set(body.scope)))
    operation = accounts.MakeToken(digest, body.name, role, scope, until, text)
    return told(await service.submit(operation, await once(request, key)))
