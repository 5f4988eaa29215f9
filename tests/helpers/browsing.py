"""A service on a port of this machine, and people who use it with a real browser and a passkey."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select

from rescind.ledger import tables
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import Join, Lend
from rescind.ledger.options import Options
from rescind.service import connections
from rescind.service.app import create_app
from rescind.service.running import Doorway
from served import likes

MARKUP = '<img src=x onerror="document.title=1"><b>& Sons'
TITLES = [f"The Film of {n} ({1950 + n})" for n in range(59)] + [MARKUP]
OPTIONS = Options(people=3, hours=24, neighbours=10, min_count=2, cosign_wait=0.0)
QUIET = ("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "ERR_CONNECTION", "ERR_NETWORK_CHANGED")
"""What Chromium itself writes to the console while there is no network."""


class Clock:
    """The time of this machine, moved by a test."""

    def __init__(self) -> None:
        self.by = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.by


@dataclass
class Town:
    """A running service, and who it holds."""

    ledger: Ledger
    clock: Clock
    origin: str
    app: Any
    port: int
    server: Any

    def release(self) -> None:
        """Make a release now, and tell everybody."""
        made = self.ledger.releases.make(self.ledger)
        self.app.state.service.released(made.number)

    def people(self) -> set[bytes]:
        """Return everybody who has an account."""
        with self.ledger.store.reading() as tx:
            rows = tx.execute(select(tables.person).where(tables.person.c.state == "member"))
            return {bytes(row.id) for row in rows}

    def lent(self, person: bytes) -> set[str]:
        """Return what the ledger says that somebody lends."""
        ids = self.ledger.catalogue.ids
        return {ids[n] for n in self.ledger.reading.loans(person).tolist()}

    def changes(self, person: bytes) -> list[tuple[str, int]]:
        """Return everything that the ledger wrote down about somebody: kind and number."""
        return [(one.kind, one.n) for one in self.ledger.reading.events(person)]


@contextmanager
def town(
    state: Path,
    items: Catalogue | None = None,
    lenders: int = 40,
    door: Doorway | None = None,
    **more: Any,
) -> Iterator[Town]:
    """Run a service with some people who lend, and a release."""
    clock, door = Clock(), door or Doorway(port=0)
    catalogue = items or Catalogue([f"film-{n}" for n in range(len(TITLES))], TITLES)
    ledger = Ledger.open(state, catalogue=catalogue, clock=clock, options=OPTIONS, **more)
    listening = door.listening()
    try:
        for n in range(lenders):
            person = bytes.fromhex(ledger.submit(Join()).result(30).body["person"])
            ledger.submit(Lend(person, tuple(likes(n, len(catalogue))) or (0,))).result(30)
        if lenders:
            ledger.releases.make(ledger)
        port = listening.getsockname()[1]
        settings = door.settings(port, "RESCIND")
        object.__setattr__(settings, "limits", False)
        app = create_app(ledger, settings)
        server = connections.server(app, settings, lifespan="on")
        listening.listen(128)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Town(ledger, clock, settings.origin, app, port, server)
        finally:
            server.should_exit = True
            thread.join(30)
    finally:
        listening.close()
        ledger.close()


def chromium() -> str | None:
    """Return the system's browser."""
    named = os.environ.get("RESCIND_TEST_CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("google-chrome")


@dataclass
class Visitor:
    """One person's browser: its pages, its passkey, and everything that went wrong in it."""

    town: Town
    context: Any
    wrong: list[str] = field(default_factory=list)
    person: bytes = b""

    def open(self, path: str = "/") -> Any:
        """Open a page with an authenticator, and listen to its console."""
        page = self.context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        page.goto(self.town.origin + path)
        return page

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"} and not any(one in message.text for one in QUIET):
            self.wrong.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    def passkey(self, page: Any) -> tuple[Any, str]:
        """Give a page an authenticator that says yes."""
        session = self.context.new_cdp_session(page)
        session.send("WebAuthn.enable", {"enableUI": False})
        made = session.send(
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
        return session, made["authenticatorId"]

    def join(self) -> Any:
        """Make a passkey and keep the codes; return the page."""
        page, before = self.open(), self.town.people()
        self.keys = self.passkey(page)
        page.get_by_role("button", name="Start with a new passkey").click()
        page.get_by_role("heading", name="Keep these codes").wait_for()
        self.codes = page.locator("pre.codes").inner_text().split()
        page.get_by_role("button", name="I have kept them").click()
        page.locator("[data-made]").wait_for()  # everything is read: nothing is being asked now
        (self.person,) = self.town.people() - before
        return page

    def bring(self, page: Any, *numbers: int) -> None:
        """Add records from a CSV file."""
        titles = self.town.ledger.catalogue.titles
        quoted = ['"' + titles[n].replace('"', '""') + '"' for n in numbers]
        text = "title,date\n" + "".join(f"{one},2001-01-04\n" for one in quoted)
        file = {"name": "seen.csv", "mimeType": "text/csv", "buffer": text.encode()}
        page.get_by_label("Add from a file").set_input_files(file)
        page.get_by_text("new here").wait_for()


def serious(page: Any) -> list[str]:
    """Return what axe finds that keeps somebody out, each with where it is."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:120]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


def cut(page: Any) -> list[str]:
    """Return the tables that one must move sideways to read."""
    found = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        ".map(one => one.getAttribute('aria-label'))"
    )
    return list(found)
