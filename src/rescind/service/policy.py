"""Who may call what: one line per route; and what a service was told at its start.

A route without a line does not start. The table in docs/service.md and the test that calls every
route as every role are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """Who calls. A witness is anonymous here: it reads what everybody may read."""

    ANONYMOUS = "anonymous"
    PERSON = "person"
    AGENT = "agent"
    OFFICER = "officer"
    OPERATOR = "operator"


class SignUp(StrEnum):
    """Who may make an account. A provider of identities (OIDC) would be one more."""

    OPEN = "open"
    INVITED = "invited"


ACCOUNTS = 5
"""New accounts an hour from one network, or as many as `serve --accounts-per-hour` says."""
CHANGES = 300
"""Changes a day of one person, or as many as `serve --changes-per-day` says."""
CONNECTIONS = 1000
"""Open at once, or as many as `serve --connections` says."""
INSECURE = "This service is reached without encryption: others on the way can read everything."


@dataclass(frozen=True)
class Settings:
    """How the doors are reached. The ledger's own settings are `rescind.ledger.options.Options`."""

    origin: str = "http://localhost:8000"
    """Where browsers find us: scheme, host and port. Passkeys are bound to it."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Names that a request may ask for; others are refused (DNS rebinding)."""
    demo: bool = False
    insecure: bool = False
    """Listens beyond this machine without TLS; every page says so."""
    behind_proxy: bool = False
    limits: bool = True
    """Off for measurements and for tests that call every route."""
    accounts: int = ACCOUNTS
    changes: int = CHANGES
    connections: int = CONNECTIONS
    sign_up: SignUp = SignUp.OPEN
    business: str = "RESCIND"
    """What agents call us (`business-id` of the Data Rights Protocol)."""

    @property
    def rp_id(self) -> str:
        """The name that passkeys are bound to: the host without scheme and port."""
        return self.origin.partition("://")[2].partition(":")[0]

    @property
    def encrypted(self) -> bool:
        """Whether browsers may insist on https from now on. The name localhost has other ports."""
        return self.origin.startswith("https://") and self.rp_id != "localhost"

    @property
    def warnings(self) -> list[str]:
        """What every page says, also one about an error."""
        return [INSECURE] * self.insecure

    @property
    def log_name(self) -> str:
        """What the log is called if it has no name yet: it keeps that of the first start."""
        return f"{self.origin.partition('://')[2]}/log"


SCOPES: dict[Role, frozenset[str]] = {
    Role.OFFICER: frozenset({"read", "extend", "metrics"}),
    Role.OPERATOR: frozenset(
        {
            *("read", "extend", "metrics", "release", "jobs", "people", "scan", "agents"),
            *("tokens", "witnesses", "rebuild"),
        }
    ),
}
"""What an operator's routes ask for. A token has some of them; a session all of its role."""

Limit = Literal["none", "read", "change", "sign-in", "account", "erase", "contribute"]


@dataclass(frozen=True)
class Rule:
    """Who may call a route, and how often."""

    who: frozenset[Role]
    limit: Limit
    scope: str = ""
    denied: int = 404
    """What somebody signed in gets who may not call it."""
    signed: bool = False
    """The body carries its own signature (agents), so it need not come from our own pages."""
    once: bool = False
    """It changes the ledger: it needs an Idempotency-Key."""


def _rule(*who: Role, limit: Limit = "read", **more: object) -> Rule:
    return Rule(frozenset(who), limit, **more)  # type: ignore[arg-type]


def _change(scope: str) -> Rule:
    return _rule(Role.OFFICER, Role.OPERATOR, limit="change", scope=scope, once=True)


EVERYBODY = tuple(Role)
_A, _P, _G, _F, _O = Role.ANONYMOUS, Role.PERSON, Role.AGENT, Role.OFFICER, Role.OPERATOR

POLICY: dict[str, Rule] = {
    # anybody
    "GET /": _rule(*EVERYBODY),
    "GET /operator": _rule(*EVERYBODY),
    "GET /check.html": _rule(*EVERYBODY),
    "GET /static/{digest}/{path}": _rule(*EVERYBODY, limit="none"),
    "GET /openapi.json": _rule(*EVERYBODY),
    "GET /healthz": _rule(*EVERYBODY, limit="none"),
    "GET /readyz": _rule(*EVERYBODY, limit="none"),
    "GET /metrics": _rule(_F, _O, limit="none", scope="metrics"),
    "GET /v1/catalogue": _rule(*EVERYBODY),
    "GET /v1/keys": _rule(*EVERYBODY),
    "GET /v1/enter/{code}": _rule(*EVERYBODY, limit="sign-in"),
    "GET /r/{link}": _rule(*EVERYBODY),
    "GET /r/{link}/receipt": _rule(*EVERYBODY),
    "GET /r/{link}/proof": _rule(*EVERYBODY),
    "GET /r/{link}/export": _rule(*EVERYBODY),
    # entry
    "POST /v1/account/begin": _rule(*EVERYBODY, limit="sign-in"),  # an account counts once
    "POST /v1/account/finish": _rule(*EVERYBODY, limit="account"),
    "POST /v1/account/recover": _rule(*EVERYBODY, limit="sign-in"),
    "POST /v1/session/begin": _rule(*EVERYBODY, limit="sign-in"),
    "POST /v1/session/finish": _rule(*EVERYBODY, limit="sign-in"),
    "POST /v1/session/confirm": _rule(_P, _F, _O, limit="sign-in"),
    "GET /v1/session": _rule(*EVERYBODY),
    "DELETE /v1/session": _rule(_P, _F, _O, limit="change"),
    # a person's own
    "GET /v1/me": _rule(_P),
    "GET /v1/me/loans": _rule(_P),
    "GET /v1/me/export": _rule(_P),
    "GET /v1/me/lines": _rule(_P),
    "GET /v1/me/recommendations": _rule(_P),
    "POST /v1/me/loans": _rule(_P, limit="change", once=True),
    "GET /v1/me/contribution": _rule(_P),
    "POST /v1/me/contribution": _rule(_P, limit="contribute", once=True),
    "GET /v1/me/requests": _rule(_P),
    "POST /v1/me/requests": _rule(_P, limit="erase", once=True),
    "GET /v1/me/requests/{id}": _rule(_P),
    "GET /v1/me/requests/{id}/receipt": _rule(_P),
    "GET /v1/me/requests/{id}/proof": _rule(_P),
    "POST /v1/me/requests/{id}/confirm": _rule(_P, limit="erase", once=True),
    "POST /v1/me/codes": _rule(_P, limit="change", once=True),
    "POST /v1/me/recovery-codes": _rule(_P, limit="account", once=True),
    "GET /v1/release": _rule(_P, _O, denied=401),
    "GET /v1/release/{digest}": _rule(_P, _O, denied=401),
    "GET /v1/events": _rule(_P, _F, _O),
    # agents: Data Rights Protocol
    "POST /drp/v1/agent/{id}": _rule(*EVERYBODY, limit="sign-in", signed=True),
    "GET /drp/v1/agent/{id}": _rule(_G, denied=403),
    "POST /drp/v1/data-rights-request": _rule(_G, limit="erase", denied=403, signed=True),
    "POST /drp/v1/data-rights-request/": _rule(_G, limit="erase", denied=403, signed=True),
    "GET /drp/v1/data-rights-request/{id}": _rule(_G, denied=403),
    "DELETE /drp/v1/data-rights-request/{id}": _rule(_G, limit="change", denied=403, signed=True),
    # operators
    "GET /v1/operator/overview": _rule(_F, _O, scope="read"),
    "GET /v1/operator/requests": _rule(_F, _O, scope="read"),
    "GET /v1/operator/releases": _rule(_F, _O, scope="read"),
    "GET /v1/operator/jobs": _rule(_F, _O, scope="read"),
    "GET /v1/operator/jobs/{id}/rounds": _rule(_F, _O, scope="read"),
    "GET /v1/operator/audits": _rule(_F, _O, scope="read"),
    "GET /v1/operator/storage": _rule(_F, _O, scope="read"),
    "GET /v1/operator/witnesses": _rule(_F, _O, scope="read"),
    "GET /v1/operator/sum": _rule(_O, scope="rebuild"),
    "GET /v1/operator/tokens": _rule(_F, _O, scope="tokens"),
    "POST /v1/operator/requests/{id}/extend": _change("extend"),
    "POST /v1/operator/releases": _change("release"),
    "POST /v1/operator/jobs": _change("jobs"),
    "POST /v1/operator/serving": _change("jobs"),
    "POST /v1/operator/people/{id}/quarantine": _change("people"),
    "POST /v1/operator/scan": _change("scan"),
    "POST /v1/operator/witnesses": _change("witnesses"),
    "DELETE /v1/operator/witnesses/{id}": _change("witnesses"),
    "POST /v1/operator/agents": _change("agents"),
    "POST /v1/operator/tokens": _change("tokens"),
    "DELETE /v1/operator/tokens/{id}": _change("tokens"),
    # the log, for witnesses and everybody
    "GET /log/checkpoint": _rule(*EVERYBODY),
    "GET /log/tile/{path}": _rule(*EVERYBODY, limit="none"),
    "GET /log/roster/{name}": _rule(*EVERYBODY),
    "POST /log/cosignatures": _rule(*EVERYBODY, limit="change", signed=True),
    "POST /log/rebuilt": _rule(*EVERYBODY, limit="change", signed=True),
}


def verdict(rule: Rule, role: Role, scopes: frozenset[str]) -> int:
    if role in rule.who and (not rule.scope or rule.scope in scopes):
        return 200
    return 401 if role is Role.ANONYMOUS else rule.denied
