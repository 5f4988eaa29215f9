"""What every route reaches for: the ledger, and what only this process remembers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from rescind.ledger.batch import Answer, Once, Operation
from rescind.service.callers import Callers
from rescind.service.events import Events
from rescind.service.limits import Limits, Probing
from rescind.service.measures import Measures
from rescind.service.passkeys import Ceremonies
from rescind.service.settings import Settings

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

LOCAL = frozenset({"127.0.0.1", "::1", "testclient"})


class Service:
    """One running service."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.ledger, self.settings = ledger, settings
        self.hosts = frozenset(settings.hosts)
        self.limits, self.probing = Limits(settings.limits), Probing()
        self.measures, self.events = Measures(), Events()
        self.ceremonies = Ceremonies(settings)
        self.callers = Callers(ledger)
        self.entrances: dict[bytes, bytes] = {}
        """One-time sign-in links of the demonstration: digest of the code, person."""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def submit(self, operation: Operation, once: Once | None = None) -> Answer:
        """Have an operation carried out; return when its answer is durable."""
        return await asyncio.wrap_future(self.ledger.submit(operation, once))

    def later(self, operation: Operation) -> None:
        """Have an operation carried out without waiting for it."""
        self.ledger.submit(operation)

    def is_local(self, request: Request) -> bool:
        """Whether a request came from this machine, and not through a proxy on it."""
        here = request.client.host if request.client else ""
        return here in LOCAL and not self.settings.behind_proxy
