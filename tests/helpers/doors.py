"""A service in this process, and browsers, scripts and agents that call it without a network."""

from __future__ import annotations

import asyncio
import atexit
import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from authenticator import Authenticator
from databases import POSTGRES, schema
from rescind.ledger import accounts
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import Join, Lend
from rescind.ledger.options import Options
from rescind.ledger.place import FILE
from rescind.proof.notes import LOG, Key
from rescind.service.app import create_app
from rescind.service.callers import COOKIE, new_secret
from rescind.service.policy import SCOPES, Role, Settings

_DATABASES: dict[Path, str] = {}
_UNTIL_THE_END = ExitStack()
atexit.register(_UNTIL_THE_END.close)
ORIGIN = "http://localhost:8000"
ITEMS = 40


class Clock:
    """The time that a test decides."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 16, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def go(self, **by: float) -> None:
        """Let time pass."""
        self.at += timedelta(**by)


@dataclass
class House:
    """A running service."""

    ledger: Ledger
    clock: Clock
    app: Any
    runner: asyncio.Runner

    @property
    def service(self) -> Any:
        return self.app.state.service

    def do(self, operation: Any) -> Any:
        """Carry an operation out at once."""
        return self.ledger.submit(operation).result(60)  # the first one compiles

    def release(self, operator: Browser, key: str = "") -> httpx.Response:
        """Ask for a release as an operator does, and wait until it is made."""
        answer = operator.post("/v1/operator/releases", {}, key)
        self.runner.run(self.service.release_now.settled())
        return answer

    def caller(self, **given: Any) -> Browser:
        """Return somebody who calls, anonymous if nothing is given."""
        return Browser(self, **given)

    def person(self, lends: tuple[int, ...] = (), confirmed: bool = True) -> Browser:
        """Return a browser of a new person who is signed in."""
        person = bytes.fromhex(self.do(Join()).body["person"])
        if lends:
            self.do(Lend(person, lends))
        secret, digest = new_secret()
        self.do(accounts.NewSession(digest, Role.PERSON, person=person, confirmed=confirmed))
        return Browser(self, secret, id=person)

    def operator(self, role: str = Role.OPERATOR) -> Browser:
        """Return a browser of a signed-in operator or officer."""
        secret, digest = new_secret()
        self.do(accounts.NewSession(digest, role, operator=secrets.token_bytes(16)))
        return Browser(self, secret)

    def script(self, *scope: str, role: str = Role.OPERATOR) -> Browser:
        """Return a script with a token."""
        secret, digest = new_secret()
        until = self.clock() + timedelta(days=30)
        self.do(accounts.MakeToken(digest, "script", role, scope or tuple(SCOPES[role]), until))
        return Browser(self, bearer=secret)

    def agent(self, name: str = "AGENT_ONE") -> Agent:
        """Return an agent with a token."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw().hex()
        self.do(accounts.AddAgent(name, name, public))
        agent = Agent(self, name=name, key=key)
        answer = agent.pair()
        assert answer.status_code == 200, answer.text
        agent.bearer = answer.json()["token"]
        return agent


@dataclass
class Browser:
    """Calls a service as one caller does. A browser sends what browsers send."""

    house: House
    secret: str = ""
    bearer: str = ""
    id: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request and return the answer."""
        return self.house.runner.run(self.send(method, path, **more))

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request inside a running loop."""
        headers = {"sec-fetch-site": "same-origin"} if not self.bearer else {}
        if self.secret:
            headers["cookie"] = f"{COOKIE}={self.secret}"
        if self.bearer:
            headers["authorization"] = f"Bearer {self.bearer}"
        headers = {**headers, **self.headers, **more.pop("headers", {})}
        transport = httpx.ASGITransport(
            self.house.app, raise_app_exceptions=False, client=(self.address, 1)
        )
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            answer = await client.request(method, path, headers=headers, **more)
        if COOKIE in answer.headers.get("set-cookie", ""):
            self.secret = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        return answer

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.call("GET", path, **more)

    def post(
        self, path: str, body: Any = None, key: str | None = "", **more: Any
    ) -> httpx.Response:
        """POST JSON with a new Idempotency-Key, or the one given, or none."""
        headers = dict(more.pop("headers", {}))
        if key is not None:
            headers["Idempotency-Key"] = key or secrets.token_hex(16)
        return self.call("POST", path, json=body, headers=headers, **more)

    def register(self, device: Authenticator, **begin: Any) -> httpx.Response:
        """Register a passkey."""
        begun = self.post("/v1/account/begin", begin, None).json()
        body = {"ceremony": begun["ceremony"], "credential": device.create(begun["options"])}
        return self.post("/v1/account/finish", body, None)

    def sign_in(self, device: Authenticator, way: str = "finish") -> httpx.Response:
        """Sign in, or confirm."""
        begun = self.post("/v1/session/begin", {}, None).json()
        body = {"ceremony": begun["ceremony"], "credential": device.get(begun["options"])}
        return self.post(f"/v1/session/{way}", body, None)


@dataclass
class Agent(Browser):
    """An agent of the Data Rights Protocol, with its signing key."""

    name: str = ""
    key: Any = None

    def signed(self, message: dict[str, Any], key: Any = None) -> str:
        """Return a message as the protocol sends it."""
        raw = json.dumps(message).encode()
        return base64.b64encode((key or self.key).sign(raw) + raw).decode()

    def envelope(self, **more: Any) -> dict[str, Any]:
        """Return the fields that every message has."""
        now = self.house.clock()
        return {
            "agent-id": self.name,
            "business-id": "RESCIND",
            "issued-at": (now - timedelta(minutes=1)).isoformat(),
            "expires-at": (now + timedelta(minutes=14)).isoformat(),
            **more,
        }

    def exercise(self, action: str = "deletion", **more: Any) -> dict[str, Any]:
        """Return a message that exercises a right."""
        about = {"drp.version": "1.0", "exercise": action, "regime": "ccpa"}
        return self.envelope(**about, **more)

    def pair(self, **changes: Any) -> httpx.Response:
        """Ask for a token."""
        return self.tell("POST", f"/drp/v1/agent/{self.name}", self.envelope(**changes))

    def tell(self, method: str, path: str, message: Any, key: Any = None) -> httpx.Response:
        """Send a signed message."""
        text = message if isinstance(message, str) else self.signed(message, key)
        headers = {"content-type": "text/plain"}
        return self.call(method, path, content=text, headers=headers)


@contextmanager
def opened(
    state: Path, options: Options | None = None, items: int = ITEMS, **settings: Any
) -> Iterator[House]:
    """Run a service on a state folder while the block lasts; in PostgreSQL where it is asked for.

    The same folder gets the same database again, until all tests have run. One that has a ledger of
    its own keeps it.
    """
    clock = Clock()
    names = [f"item-{n}" for n in range(items)]
    titles = [f"Title of {n}" for n in range(items)]
    catalogue = Catalogue(names, titles) if items else None  # the folder has one
    if POSTGRES and state not in _DATABASES and not (state / FILE).exists():
        _DATABASES[state] = _UNTIL_THE_END.enter_context(schema())
    ledger = Ledger.open(
        state,
        catalogue=catalogue,
        options=options,
        clock=clock,
        database=_DATABASES.get(state),
    )
    runner = asyncio.Runner()
    try:
        app = create_app(ledger, Settings(**{"limits": False, **settings}))
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        try:
            yield House(ledger, clock, app, runner)
        finally:
            runner.run(lifespan.__aexit__(None, None, None))
    finally:
        runner.close()
        ledger.close()


def log_key(house: House) -> Key:
    """The key of a service's log, as it states it."""
    return Key.parse(house.caller().get("/v1/keys").json()["log"], LOG)
