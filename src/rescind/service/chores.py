"""What a running service does by itself: releases that are due, requests, callbacks, witnesses."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from rescind.errors import DataError, RescindError
from rescind.ledger import agency, tables
from rescind.ledger.errors import Busy, DiskFull
from rescind.ledger.outage import Outage
from rescind.proof import reaching
from rescind.service import statuses

if TYPE_CHECKING:
    from rescind.service.context import Service

LOG = logging.getLogger("rescind.service")
TIDY_SECONDS, LOG_SECONDS = 3600.0, 30 * 24 * 3600
"""How often logs are looked at, and how old they may be."""
LOOK_SECONDS, ADVANCE_SECONDS, CALLBACK_SECONDS, WITNESS_SECONDS = 1.0, 60.0, 10.0, 10.0
SECONDS = 10.0
FIRST_PAUSE, FACTOR = timedelta(minutes=1), 2
GIVE_UP = timedelta(days=7)
END_SECONDS = 15.0
"""From a signal until the chores are cancelled, at most: open requests are answered first."""


def all_of(service: Service) -> list[Coroutine[Any, Any, None]]:
    told: dict[str, tuple[str, str | None]] = {}
    chores: list[tuple[float, Callable[[], Any]]] = [
        (LOOK_SECONDS, lambda: release_if_asked(service)),
        (LOOK_SECONDS, lambda: release_if_due(service)),
        (ADVANCE_SECONDS, lambda: advance(service)),
        (CALLBACK_SECONDS, lambda: tell_agents(service, told)),
        (WITNESS_SECONDS, service.log.witnesses.ask),
        (LOOK_SECONDS, lambda: make_roster(service)),
        (TIDY_SECONDS, lambda: delete_logs(service.ledger.state / "logs")),
    ]
    waiting = Outage("what is due waits", "what is due is done again")
    return [_every(seconds, call, waiting) for seconds, call in chores]


async def _every(seconds: float, call: Callable[[], Any], waiting: Outage) -> None:
    """Call again and again, in a thread of its own, until the service ends.

    A signal that ends the service may end its processes first. So an error is told only if the
    service goes on: a task that is cancelled meanwhile tells nothing.
    """
    while True:
        try:
            await asyncio.to_thread(call)
            waiting.over(call)
        except (Busy, DiskFull) as error:
            waiting.hit(error, call)
        except Exception as error:
            await asyncio.sleep(END_SECONDS)
            if isinstance(error, RescindError):
                LOG.warning("%s: what is due is tried again.", type(error).__name__)
            else:
                LOG.error("a chore failed: %s", type(error).__name__)
        await asyncio.sleep(seconds)


def tell_unfinished(service: Service) -> None:
    """Tell, at the end of the service, if the last release stays without a roster."""
    if (number := service.ledger.roster.unfinished()) is not None:
        LOG.warning("the roster of release %d was not finished: the next release has one.", number)


def release_if_due(service: Service) -> bool:
    """Make a release if enough people of the last one differ, or enough time has passed."""
    if service.ending or not service.ledger.releases.is_due(service.ledger.clock()):
        return False
    service.released(service.ledger.releases.make(service.ledger).number)
    return True


def release_if_asked(service: Service) -> None:
    """Make what was asked for and is not made yet: a process before this one was killed."""
    if not service.ending:
        service.release_now.work()


def make_roster(service: Service) -> bool:
    """Make the roster of a release that has none, if lines are what this service publishes."""
    return not service.ending and service.ledger.roster.publish() is not None


def delete_logs(folder: Path) -> int:
    """Delete logs that were last written 30 days ago; return how many there were."""
    old = time.time() - LOG_SECONDS
    gone = [path for path in folder.glob("*.log") if path.stat().st_mtime < old]
    for path in gone:
        path.unlink()
    return len(gone)


def advance(service: Service) -> None:
    """Move agents' requests on; whoever left by one of them is signed out."""
    if service.ledger.submit(agency.Advance()).result().body["moved"]:
        service.callers.read_again()


def pause_after(tries: int) -> timedelta:
    """Return how long to wait after so many tries: 1 min, 2, 4, ... up to a day."""
    return min(FIRST_PAUSE * FACTOR ** min(tries, 12), timedelta(days=1))


def send_status(url: str, status: Mapping[str, Any]) -> bool:
    """Send a status; return whether the agent answered 200. Never raises.

    The address must be public (`rescind.proof.reaching`), and the answer is not read.
    """
    headers = {"Content-Type": "application/json"}
    try:
        if not url.startswith("https://"):
            raise reaching.NotPublic("it is not https")
        return reaching.post(url, json.dumps(status).encode(), headers, SECONDS).status == 200
    except reaching.NotPublic:
        LOG.warning("a status callback was not sent: its address is not public https")
    except DataError:
        pass
    return False


def tell_agents(
    service: Service,
    told: dict[str, tuple[str, str | None]],
    send: Callable[[str, dict[str, Any]], bool] = send_status,
) -> int:
    """Send statuses that are due to their agents; return how many were taken.

    told: the last state each agent was told by this process
    """
    rows, now, taken = tables.request, service.ledger.clock(), 0
    due = select(rows).where(rows.c.callback.is_not(None), rows.c.callback_due <= now)
    with service.ledger.store.reading() as tx:
        waiting = tx.execute(due).all()
    for row in waiting:
        state = (row.status, row.reason)
        if told.get(row.id) == state:
            continue
        done = send(row.callback, statuses.for_agent(service, row))
        taken += done
        service.ledger.submit(_next_try(row, done, now)).result()
        if done:
            told[row.id] = state
    return taken


def _next_try(row: Any, done: bool, now: Any) -> agency.Told:
    """Say when to call again: after a pause, at the next change of state, or never."""
    if done:
        final = row.status not in (agency.OPEN, agency.IN_PROGRESS)
        return agency.Told(row.id, 0, None if final else now)
    if now - row.received_at > GIVE_UP:
        return agency.Told(row.id, 0, None)
    tries = (row.callback_tries or 0) + 1
    return agency.Told(row.id, tries, now + pause_after(tries))
