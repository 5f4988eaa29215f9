"""Tokens and invitations that a command makes: printed once; only their digests are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rescind.errors import ConfigError, suggest
from rescind.ledger import accounts
from rescind.service.callers import new_secret
from rescind.service.policy import SCOPES, Role

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

INVITATION, PATIENCE = timedelta(days=2), timedelta(days=30)
"""How long invitations last: of operators and officers, and of people."""


def scopes_of(text: str) -> tuple[str, ...]:
    """Read scopes such as read,extend; raise `ConfigError` with those that there are."""
    scopes = tuple(part.strip() for part in text.split(",") if part.strip())
    for scope in scopes:
        if scope not in SCOPES[Role.OPERATOR]:
            raise ConfigError(f"'{scope}' is no scope: {suggest(scope, SCOPES[Role.OPERATOR])}")
    if not scopes:
        raise ConfigError("a token without scopes opens nothing. Give some, such as read,extend.")
    return scopes


def make_token(ledger: Ledger, text: str, name: str, days: int) -> str:
    """Make a token with these scopes; return it."""
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
