"""A service on a port of this machine, a browser that looks at it, and what it must not do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rescind.ledger import accounts
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import Join, Lend, TakeBack
from rescind.ledger.options import Options
from rescind.service.app import create_app
from rescind.service.callers import new_secret
from rescind.service.policy import Role
from rescind.service.settings import Settings

ITEMS = 40
TITLE = "Secret title"


class Moved:
    """The real time, moved by what a test says: pages compare with the browser's own clock."""

    def __init__(self) -> None:
        self.by = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.by


@dataclass
class Served:
    """A service that listens, and its ledger."""

    origin: str
    ledger: Ledger
    clock: Moved
    service: Any
    people: list[bytes] = field(default_factory=list)

    def do(self, operation: Any) -> Any:
        """Carry an operation out at once."""
        return self.ledger.submit(operation).result(10)

    def crowd(self, people: int = 12) -> None:
        """Let people join and lend."""
        for n in range(people):
            person = bytes.fromhex(self.do(Join()).body["person"])
            self.do(Lend(person, tuple(sorted({(n * 7 + step * 3) % 20 for step in range(10)}))))
            self.people.append(person)

    def take_back(self, person: bytes, count: int = 1, days_ago: float = 0) -> str:
        """Take some records back, some days ago; return the request's id."""
        self.clock.by = -timedelta(days=days_ago)
        items = tuple(self.ledger.live.of(person)[:count].tolist())
        answer = self.do(TakeBack(person, "unshare", items))
        self.clock.by = timedelta()
        return str(answer.body["request_id"])

    def invite(self, role: str = Role.OPERATOR) -> str:
        """Return the address that lets somebody in as an operator, once."""
        secret, digest = new_secret()
        until = self.clock() + timedelta(days=2)
        self.do(accounts.MakeToken(digest, "guest", f"{accounts.INVITED}{role}", (), until))
        return f"{self.origin}/operator#invite={secret}"


@contextmanager
def serving(state: Path, **options: Any) -> Iterator[Served]:
    """Serve on a free port of this machine while the block lasts."""
    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        origin = f"http://localhost:{listening.getsockname()[1]}"
        names = [f"item-{n}" for n in range(ITEMS)]
        catalogue = Catalogue(names, [f"{TITLE} {n}" for n in range(ITEMS)])
        clock = Moved()
        chosen = Options(**{"people": 50, "hours": 24, "min_count": 2, **options})
        ledger = Ledger.open(state, catalogue=catalogue, options=chosen, clock=clock)
        try:
            app = create_app(ledger, Settings(origin=origin, limits=False))
            config = uvicorn.Config(
                app, log_level="error", access_log=False, timeout_graceful_shutdown=5
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield Served(origin, ledger, clock, app.state.service)
            finally:
                events = app.state.service.events
                events._loop.call_soon_threadsafe(events.stop)  # a page may still listen
                server.should_exit = True
                thread.join(20)
        finally:
            ledger.close()


@dataclass
class Watched:
    """A page in a browser, with what went wrong on it."""

    page: Any
    wrong: list[str] = field(default_factory=list)


@contextmanager
def looking(browser: Any, width: int = 1280, scheme: str = "light") -> Iterator[Watched]:
    """Open a page with a passkey device, and note errors and breaches of the policy."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    seen = Watched(page)
    page.on("console", lambda said: said.type == "error" and seen.wrong.append(said.text))
    page.on("pageerror", lambda error: seen.wrong.append(str(error)))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', e => "
        "console.error('CSP', e.violatedDirective, e.blockedURI))"
    )
    device = context.new_cdp_session(page)
    device.send("WebAuthn.enable")
    device.send(
        "WebAuthn.addVirtualAuthenticator",
        {
            "options": {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": True,
                "automaticPresenceSimulation": True,
            }
        },
    )
    try:
        yield seen
    finally:
        context.close()
