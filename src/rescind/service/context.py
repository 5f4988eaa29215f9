"""What every route reaches for: the ledger, and what only this process remembers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from rescind.ledger.batch import Answer, Items, Once, Operation, Tell
from rescind.ledger.errors import Busy
from rescind.ledger.public_log import PublicLog
from rescind.service.callers import Callers
from rescind.service.events import EVERYBODY, OPERATORS, Events
from rescind.service.limits import Limits, Probing
from rescind.service.measures import Measures
from rescind.service.passkeys import Ceremonies
from rescind.service.policy import Settings
from rescind.service.releases import ReleaseNow

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

LOCAL = frozenset({"127.0.0.1", "::1"})
INSTANT = "Changes show at once here, so somebody who asks before and after can tell what left."
OPTIONAL = "release_loaded"
READABLE = "Whoever runs this service can read what is lent while it is lent."

_Waiting = asyncio.Future[Answer]


class Arriving:
    """Hands answers from the writer's thread to those who wait on one loop.

    The writer answers a batch of callers at once. Waking the loop for each of them takes longer
    than the answer, so it is woken once and hands out whatever has arrived.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[_Waiting, Answer | BaseException]] = deque()
        self._woken = False

    def expect(self) -> tuple[_Waiting, Tell]:
        """Return what the caller waits for, and what tells it. Any thread may call the latter."""
        waiting: _Waiting = self.loop.create_future()

        def tell(outcome: Answer | BaseException) -> None:
            self._arrived.append((waiting, outcome))
            if not self._woken:  # else the loop has yet to begin handing out: it takes this, too
                self._woken = True
                with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    self.loop.call_soon_threadsafe(self._hand_out)

        return waiting, tell

    def _hand_out(self) -> None:
        self._woken = False  # first: what arrives from now on wakes the loop again
        while self._arrived:
            waiting, outcome = self._arrived.popleft()
            if waiting.done():  # given up
                continue
            if isinstance(outcome, Answer):
                waiting.set_result(outcome)
            else:
                waiting.set_exception(outcome)


class Service:
    """One running service."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.ledger, self.settings = ledger, settings
        self.hosts = frozenset(settings.hosts)
        self.limits = Limits(settings.limits, settings.accounts, settings.changes)
        self.probing = Probing()
        self.measures, self.events = Measures(), Events(settings.connections // 2)
        self._arriving: Arriving | None = None
        self.ceremonies, self.callers = Ceremonies(settings), Callers(ledger)
        self.entrances: dict[bytes, bytes] = {}
        """One-time sign-in links of the demonstration: digest of the code, person."""
        self.release_now = ReleaseNow(ledger, self.released)
        self.ending = False
        items = ledger.catalogue
        self.names = [
            json.dumps({"id": item, "title": title}, ensure_ascii=False)[1:-1]
            for item, title in zip(items.ids, items.titles, strict=True)
        ]
        """Id and title of each item as JSON, encoded once."""
        ledger.generations.tell = lambda what, facts: self.events.publish(OPERATORS, what, facts)
        self.log = PublicLog(ledger, settings.log_name)

    async def submit(self, operation: Operation, once: Once | None = None) -> Answer:
        """Have an operation carried out; return when its answer is durable."""
        loop = asyncio.get_running_loop()
        if self._arriving is None or self._arriving.loop is not loop:
            self._arriving = Arriving(loop)
        waiting, tell = self._arriving.expect()
        self.ledger.writer.take(operation, once, tell)
        return await waiting

    def is_local(self, request: Request) -> bool:
        """Whether a request came from this machine, and not through a proxy on it."""
        here = request.client.host if request.client else ""
        return here in LOCAL and not self.settings.behind_proxy

    def loans(self, person: bytes) -> Items:
        found: Items = self.ledger.live.of(person)
        return found

    def facts(self) -> dict[str, Any]:
        """Return what every page says about this service."""
        said = [READABLE]
        said += [INSTANT] * self.ledger.options.instant + self.settings.warnings
        promise = self.ledger.releases.noising.promise()
        said += [promise["says"]] if promise else []
        return {
            "instant": self.ledger.options.instant,
            "demo": self.settings.demo,
            "contribute": not self.ledger.options.noise,
            "said": said,
        }

    def readiness(self) -> dict[str, bool]:
        """Return what must be true before people are sent here. It asks the database.

        Without a release people are served all the same (`OPTIONAL`): lists are the popular items.
        """
        writer = self.ledger.writer
        # A database that was away is asked anew: nobody is sent here who would find it back.
        full = writer.fault is not None and not isinstance(writer.fault, Busy)
        able = writer.running and not full and not self.ending
        return {
            "can_write": able and self.ledger.store.answers(),
            "keys_open": len(self.ledger.keys) > 0,
            "sum_built": self.ledger.live is not None,  # the port opens after these two
            "release_loaded": not self.ledger.releases.missing,
        }

    def changed(self, person: bytes, what: str, answer: Answer) -> None:
        """Tell whoever listens that a person's loans or requests changed."""
        if answer.replayed or not self.events.heard(person, OPERATORS):
            return
        names = ("request_id", "status", "level", "version", "lent")
        told = {name: answer.body[name] for name in names if name in answer.body}
        self.events.publish(person, what, told)
        counted = {name: told[name] for name in names[:3] if name in told}
        self.events.publish(OPERATORS, what, counted)

    def released(self, number: int) -> None:
        self.events.publish(EVERYBODY, "release", {"number": number})
