"""Entry: passkeys, sessions, recovery codes, invitations.

These routes need no Idempotency-Key: a challenge, a code and an invitation are each used once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rescind.ledger import accounts, credentials
from rescind.ledger.accounts import NewSession, Passkey
from rescind.ledger.errors import CodeNotKnown, NotThere
from rescind.service import bodies, problems, recovery
from rescind.service.answers import reply, signed_in, signed_out
from rescind.service.callers import Caller, digest_of, new_secret
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheService
from rescind.service.limits import network_of
from rescind.service.passkeys import REGISTER, SIGN_IN, Ceremony, credential_id
from rescind.service.policy import Role, SignUp

router = Doors()


@router.at("POST /v1/account/begin", bodies.Begun)
async def begin_account(
    request: Request, body: bodies.BeginAccount, service: TheService, caller: TheCaller
) -> Response:
    """Begin to register a passkey: for a new account, one more for yours, or as an operator.

    With a recovery code: for the account that it opens. The code is spent when the passkey is
    registered, not before.
    """
    person, invitation, code = b"", b"", b""
    if body.code is not None and body.invitation is not None:
        raise problems.named("one-way-in")
    if body.code is not None:
        person, code = await _owner_of(service, body.code), recovery.split(body.code)[0]
    elif body.invitation is not None:
        invitation = digest_of(body.invitation)
        with service.ledger.store.reading() as tx:
            found = credentials.find_token(tx, invitation, service.ledger.clock())
        if found is None or not found.role.startswith(accounts.INVITED):
            raise NotThere("this invitation is not known here, was used, or is too old.")
    elif caller.role is Role.PERSON:
        if not caller.confirmed:
            raise problems.named("confirm-first")
        person = caller.id
    elif service.settings.sign_up is not SignUp.OPEN:
        raise problems.named("forbidden")
    name, options = service.ceremonies.begin_registration(
        _network(request), person, invitation, code
    )
    return reply({"ceremony": name, "options": options})


@router.at("POST /v1/account/finish", bodies.Joined, 201)
async def finish_account(body: bodies.Ceremony, service: TheService, caller: TheCaller) -> Response:
    """Register the passkey. A new account gets ten recovery codes, shown once."""
    ceremony = service.ceremonies.take(body.ceremony, REGISTER)
    passkey = service.ceremonies.registered(ceremony, body.credential, body.name)
    role = _invited_as(service, ceremony.invitation)
    if role != Role.PERSON:
        return await _open_operator(service, ceremony, passkey, role)
    if ceremony.code:
        return await _return(service, ceremony, passkey)
    if ceremony.person:
        if caller.id != ceremony.person:
            raise problems.named("unauthorized")
        await service.submit(accounts.AddPasskey(ceremony.person, passkey))
        return reply({"role": caller.role, "recovery_codes": []}, 201)
    secret, digest = new_secret()
    texts, codes = await asyncio.to_thread(recovery.new_codes)
    session = NewSession(digest, Role.PERSON)
    await service.submit(accounts.OpenAccount(passkey, codes, session, ceremony.invitation))
    return signed_in({"role": Role.PERSON, "recovery_codes": texts}, secret, 201)


def _network(request: Request) -> str:
    return network_of(request.client.host if request.client else "")


async def _return(service: Service, ceremony: Ceremony, passkey: Passkey) -> Response:
    """Let somebody in who proved a recovery code, which is spent for this passkey."""
    secret, digest = new_secret()
    session = NewSession(digest, Role.PERSON, person=ceremony.person)
    texts, codes = await asyncio.to_thread(recovery.new_codes)
    used = accounts.UseCode(ceremony.person, ceremony.code, session)
    fresh = accounts.NewCodes(ceremony.person, codes, tuple(texts))
    answer = await service.submit(accounts.Return(used, passkey, fresh))
    return signed_in({"role": Role.PERSON, **answer.body}, secret, 201)


async def _owner_of(service: Service, code: str) -> bytes:
    """Return whose recovery code this is; raise `CodeNotKnown` if it opens nothing."""
    with service.ledger.store.reading() as tx:
        lookup, keys = recovery.split(code)[0], service.ledger.keys
        found = credentials.find_credential(tx, keys, lookup, credentials.RECOVERY)
    if not await asyncio.to_thread(recovery.matches, code, found) or found is None:
        raise CodeNotKnown()
    return found.person


def _invited_as(service: Service, invitation: bytes) -> str:
    """Return the role that somebody comes in with; a used invitation is refused later."""
    if not invitation:
        return Role.PERSON
    with service.ledger.store.reading() as tx:
        invited = credentials.find_token(tx, invitation, service.ledger.clock())
    return str(invited.role).removeprefix(accounts.INVITED) if invited else Role.OPERATOR


async def _open_operator(
    service: Service, ceremony: Ceremony, passkey: Passkey, role: str
) -> Response:
    operator = secrets.token_bytes(16)
    secret, digest = new_secret()
    session = NewSession(digest, role, operator=operator)
    await service.submit(accounts.OpenOperator(ceremony.invitation, operator, passkey, session))
    return signed_in({"role": role, "recovery_codes": []}, secret, 201)


@router.at("POST /v1/account/recover", bodies.SignedIn)
async def recover(body: bodies.Recover, service: TheService) -> Response:
    """Sign in with a recovery code, which is spent, without a passkey: for scripts.

    People send the code to /v1/account/begin: there it is spent when they have a passkey.
    """
    person, lookup = await _owner_of(service, body.code), recovery.split(body.code)[0]
    secret, digest = new_secret()
    session = NewSession(digest, Role.PERSON, person=person)
    answer = await service.submit(accounts.UseCode(person, lookup, session))
    return signed_in({"role": Role.PERSON, **answer.body}, secret)


@router.at("POST /v1/session/begin", bodies.Begun)
async def begin_session(request: Request, service: TheService) -> Response:
    """Begin to sign in, or to confirm."""
    name, options = service.ceremonies.begin_sign_in(_network(request))
    return reply({"ceremony": name, "options": options})


@router.at("POST /v1/session/finish", bodies.SignedIn)
async def finish_session(body: bodies.Ceremony, service: TheService) -> Response:
    """Sign in with a passkey."""
    return await _use_passkey(service, body.ceremony, body.credential)


@router.at("POST /v1/session/confirm", bodies.SignedIn)
async def confirm(body: bodies.Ceremony, service: TheService, caller: TheCaller) -> Response:
    """Confirm with a passkey of the same account, for the next five minutes."""
    return await _use_passkey(service, body.ceremony, body.credential, caller)


async def _use_passkey(
    service: Service, name: str, credential: Mapping[str, Any], caller: Caller | None = None
) -> Response:
    """Check a signature and begin a session; an earlier session of this browser ends."""
    ceremony = service.ceremonies.take(name, SIGN_IN)
    known_as = credential_id(credential)
    ledger, old = service.ledger, caller.session if caller else None
    with ledger.store.reading() as tx:
        found = credentials.find_credential(tx, ledger.keys, known_as, credentials.PASSKEY)
        operator = None if found else credentials.find_operator(tx, ledger.keys, known_as)
    secret, digest = new_secret()
    operation: accounts.UsePasskey | accounts.UseOperatorPasskey
    if found is not None:
        key, counter = bytes.fromhex(found.plain["key"]), int(found.plain["counter"])
        known = Passkey(known_as, key, counter, str(found.plain["name"]))
        passkey = service.ceremonies.signed(ceremony, credential, known)
        session = NewSession(digest, Role.PERSON, person=found.person, replaces=old)
        operation, who = accounts.UsePasskey(found.person, passkey, session), found.person
    elif operator is not None:
        known = Passkey(known_as, operator.public_key, operator.counter)
        passkey = service.ceremonies.signed(ceremony, credential, known)
        session = NewSession(digest, operator.role, operator=operator.id, replaces=old)
        operation = accounts.UseOperatorPasskey(operator.id, passkey.counter, session)
        who = operator.id
    else:
        raise NotThere("this passkey is not known here. Use another one, or a recovery code.")
    if caller is not None and caller.id != who:
        raise NotThere("this passkey belongs to another account.")
    await service.submit(operation)
    if old:
        service.callers.drop(session=old)
    return signed_in({"role": session.role}, secret)


@router.at("GET /v1/session", bodies.SignedIn)
async def who_is_here(caller: TheCaller) -> Response:
    """Tell as whom this browser is signed in; nobody is `anonymous`, which is no error."""
    return reply({"role": caller.role})


@router.at("DELETE /v1/session", bodies.Anything)
async def sign_out(service: TheService, caller: TheCaller) -> Response:
    """Sign out in this browser."""
    await service.submit(accounts.SignOut(caller.session))
    service.callers.drop(session=caller.session)
    return signed_out()


@router.at("GET /v1/enter/{code}", shown=False)
async def enter(code: str, service: TheService) -> Response:
    """Sign in to the demonstration with the link that its start printed. It works once."""
    person = service.entrances.pop(digest_of(code), None)
    if person is None:
        raise problems.named("used-link")
    secret, digest = new_secret()
    await service.submit(NewSession(digest, Role.PERSON, person=person))
    answer = RedirectResponse("/", 303)
    cookie = signed_in({}, secret).headers["set-cookie"]
    answer.headers["Set-Cookie"] = cookie
    return answer
