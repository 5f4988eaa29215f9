"""Who calls: a session's cookie, a bearer token, or nobody; and tokens that a command makes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rescind.errors import ConfigError
from rescind.ledger import accounts, credentials
from rescind.service.policy import SCOPES, Role

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

COOKIE = "__Host-rescind"
Sent = Mapping[bytes, bytes]
"""Headers of a request by name, in lower case."""
CONFIRMED = timedelta(minutes=5)
SEEN_EVERY = timedelta(hours=1)
INVITATION, PATIENCE = timedelta(days=2), timedelta(days=30)
"""How long invitations last: of operators and officers, and of people."""


@dataclass(frozen=True)
class Caller:
    """Somebody who sent a request."""

    role: Role = Role.ANONYMOUS
    id: bytes = b""
    """16 bytes of a person, the id of an operator, the name of an agent."""
    scopes: frozenset[str] = frozenset()
    session: bytes = b""
    """Digest of the session's or token's secret; never the secret."""
    confirmed: bool = False
    """Whether a passkey was used in the last five minutes."""


NOBODY = Caller()


def new_secret() -> tuple[str, bytes]:
    """Return 256 random bits as text, and the digest that is kept of them."""
    text = secrets.token_urlsafe(32)
    return text, digest_of(text)


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _cookie(text: str) -> str:
    """Return our cookie among all that a browser sent; "" if it is not there."""
    for part in text.split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip()
    return ""


@dataclass
class _Known:
    """A session in memory."""

    caller: Caller
    seen: datetime
    expires: datetime
    confirmed_until: datetime


class Callers:
    """Finds out who calls. Sessions in use are in memory, so a request needs no query."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._known: dict[bytes, _Known] = {}

    def of(self, headers: Sent) -> Caller:
        """Return who sent a request. A bearer token hides a cookie; agents have tokens only."""
        bearer = headers.get(b"authorization")
        if bearer is not None:
            kind, _, text = bearer.decode("latin-1").partition(" ")
            return self._of_token(text.strip()) if kind.lower() == "bearer" else NOBODY
        text = _cookie(headers.get(b"cookie", b"").decode("latin-1"))
        return self._of_session(digest_of(text)) if text else NOBODY

    def drop(self, session: bytes = b"", person: bytes = b"") -> None:
        """Forget a session that ended, or all sessions of a person."""
        self._known = {
            digest: known
            for digest, known in self._known.items()
            if digest != session and not (person and known.caller.id == person)
        }

    def read_again(self) -> None:
        self._known = {}

    def _of_session(self, digest: bytes) -> Caller:
        now = self.ledger.clock()
        known = self._known.get(digest) or self._read(digest, now)
        if known is None:
            return NOBODY
        if known.expires <= now or known.seen <= now - credentials.IDLE:
            self._known.pop(digest, None)
            return NOBODY
        if known.caller.confirmed and known.confirmed_until <= now:
            known.caller = replace(known.caller, confirmed=False)
        if now - known.seen > SEEN_EVERY:
            known.seen = now
            self.ledger.submit(accounts.Seen(digest))
        return known.caller

    def _read(self, digest: bytes, now: datetime) -> _Known | None:
        with self.ledger.store.reading() as tx:
            row = credentials.find_session(tx, digest, now)
        if row is None:
            return None
        role, who = Role(row.role), bytes(row.person or row.operator)
        until = row.confirmed_at + CONFIRMED if row.confirmed_at else now
        caller = Caller(role, who, SCOPES.get(role, frozenset()), digest, until > now)
        self._known[digest] = known = _Known(caller, row.seen, row.expires, until)
        return known

    def _of_token(self, text: str) -> Caller:
        digest, now = digest_of(text), self.ledger.clock()
        with self.ledger.store.reading() as tx:
            agent = credentials.find_agent_by_token(tx, digest)
            token = None if agent else credentials.find_token(tx, digest, now)
        if agent is not None:
            return Caller(Role.AGENT, agent.id.encode(), session=digest)
        if token is None or token.role.startswith(accounts.INVITED):
            return NOBODY
        role = Role(token.role)
        scopes = frozenset(token.scope.split()) & SCOPES.get(role, frozenset())
        return Caller(role, b"", scopes, digest)


def scopes_of(text: str) -> tuple[str, ...]:
    """Read scopes such as read,extend; raise `ConfigError` with those that there are."""
    scopes = tuple(part.strip() for part in text.split(",") if part.strip())
    for scope in scopes:
        if scope not in SCOPES[Role.OPERATOR]:
            known = ", ".join(sorted(SCOPES[Role.OPERATOR]))
            raise ConfigError(f"'{scope}' is no scope. There are: {known}.")
    if not scopes:
        raise ConfigError("a token without scopes opens nothing. Give some, such as read,extend.")
    return scopes


def make_token(ledger: Ledger, text: str, name: str, days: int) -> str:
    scopes = scopes_of(text)
    role = Role.OFFICER if set(scopes) <= SCOPES[Role.OFFICER] else Role.OPERATOR
    return _made(ledger, name, role, scopes, timedelta(days=days))


def invite(ledger: Ledger, who: str, role: Role) -> str:
    """Make an invitation for an operator, an officer or a person; return its code."""
    lasts = PATIENCE if role is Role.PERSON else INVITATION
    return _made(ledger, who, f"{accounts.INVITED}{role}", (), lasts)


def _made(ledger: Ledger, name: str, role: str, scopes: tuple[str, ...], lasts: timedelta) -> str:
    text, digest = new_secret()
    until = ledger.clock() + lasts
    ledger.submit(accounts.MakeToken(digest, name, role, scopes, until)).result()
    return text
