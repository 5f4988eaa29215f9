"""Who calls: a session's cookie, a bearer token, or nobody."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from starlette.requests import Request

from rescind.ledger import accounts
from rescind.service.policy import SCOPES, Role

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

COOKIE = "__Host-rescind"
CONFIRMED = timedelta(minutes=5)
"""How long a confirmation with a passkey lasts."""
SEEN_EVERY = timedelta(hours=1)
"""How often the use of a session is written down."""


@dataclass(frozen=True)
class Caller:
    """Somebody who sent a request."""

    role: Role = Role.ANONYMOUS
    id: bytes = b""
    """16 bytes of a person, the id of an operator, the name of an agent."""
    scopes: frozenset[str] = frozenset()
    session: bytes = b""
    """Digest of the session's or token's secret; never the secret."""
    confirmed_at: datetime | None = None

    @property
    def confirmed(self) -> bool:
        """Whether a passkey was used in the last five minutes."""
        return (
            self.confirmed_at is not None and datetime.now(UTC) - self.confirmed_at <= CONFIRMED
        )


NOBODY = Caller()


def new_secret() -> tuple[str, bytes]:
    """Return 256 random bits as text, and the digest that is kept of them."""
    text = secrets.token_urlsafe(32)
    return text, digest_of(text)


def digest_of(text: str) -> bytes:
    """Return what is kept of a secret of 256 random bits."""
    return hashlib.sha256(text.encode()).digest()


class Callers:
    """Finds out who calls. Sessions in use are in memory, so a request needs no query."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._known: dict[bytes, tuple[Caller, datetime, datetime]] = {}

    def of(self, request: Request) -> Caller:
        """Return who sent a request. A bearer token hides a cookie; agents have tokens only."""
        bearer = request.headers.get("authorization")
        if bearer is not None:
            kind, _, text = bearer.partition(" ")
            return self._of_token(text.strip()) if kind.lower() == "bearer" else NOBODY
        if "cookie" not in request.headers:
            return NOBODY
        text = request.cookies.get(COOKIE, "")
        return self._of_session(digest_of(text)) if text else NOBODY

    def drop(self, session: bytes = b"", person: bytes = b"") -> None:
        """Forget a session that ended, or all sessions of a person."""
        self._known = {
            digest: known
            for digest, known in self._known.items()
            if digest != session and not (person and known[0].id == person)
        }

    def _of_session(self, digest: bytes) -> Caller:
        now = self.ledger.clock()
        known = self._known.get(digest)
        if known is None:
            with self.ledger.store.reading() as tx:
                row = accounts.find_session(tx, digest, now)
            if row is None:
                return NOBODY
            role = Role(row.role)
            scopes = SCOPES.get(role, frozenset())
            who = row.person or row.operator
            caller = Caller(role, who, scopes, digest, row.confirmed_at)
            known = self._known[digest] = (caller, row.seen, row.expires)
        caller, seen, expires = known
        if expires <= now or seen <= now - accounts.IDLE:
            self._known.pop(digest, None)
            return NOBODY
        if now - seen > SEEN_EVERY:
            self._known[digest] = (caller, now, expires)
            self.ledger.submit(accounts.Seen(digest))
        return caller

    def _of_token(self, text: str) -> Caller:
        digest, now = digest_of(text), self.ledger.clock()
        with self.ledger.store.reading() as tx:
            agent = accounts.find_agent_by_token(tx, digest)
            token = None if agent else accounts.find_token(tx, digest, now)
        if agent is not None:
            return Caller(Role.AGENT, agent.id.encode(), session=digest)
        if token is None or token.role.startswith(accounts.INVITED):
            return NOBODY
        role = Role(token.role)
        scopes = frozenset(token.scope.split()) & SCOPES.get(role, frozenset())
        return Caller(role, b"", scopes, digest)
