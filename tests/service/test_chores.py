"""Chores: a clean stop tells nothing alarming, and a hindrance is told when it comes and goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from doors import opened
from rescind.errors import DataError
from rescind.ledger.errors import Busy
from rescind.ledger.outage import Outage
from rescind.service import chores

WORDS = ("what is due waits", "what is due is done again")


def refused() -> None:
    raise DataError("the roster was not made: its process ended.")


def said_by(
    call: Callable[[], None], pauses: int, monkeypatch: pytest.MonkeyPatch, caplog
) -> list[str]:
    """Return what a chore logs until it pauses for the last time; then the service ends."""
    left = [pauses]

    async def go() -> None:
        stop = asyncio.Event()

        async def sleep(seconds: float) -> None:
            left[0] -= 1
            if not left[0]:
                stop.set()
                await asyncio.Event().wait()

        instead = SimpleNamespace(to_thread=asyncio.to_thread, sleep=sleep)
        monkeypatch.setattr(chores, "asyncio", instead)
        task = asyncio.create_task(chores._every(1.0, call, Outage(*WORDS)))
        await stop.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.WARNING, "rescind.service"):
        asyncio.run(go())
    return [one.getMessage() for one in caplog.records]


def test_a_stop_that_interrupts_a_chore_is_no_error(monkeypatch, caplog) -> None:
    assert said_by(refused, 1, monkeypatch, caplog) == []
    told = said_by(refused, 2, monkeypatch, caplog)
    assert told == ["DataError: what is due is tried again."], "control"


def test_a_database_that_is_away_is_told_once_and_so_is_its_return(monkeypatch, caplog) -> None:
    calls = iter([True, True, True, False, False])

    def away() -> None:
        if next(calls):
            raise Busy("the database is away")

    gone, back = said_by(away, 5, monkeypatch, caplog)
    assert gone.startswith("the database is away since ")
    assert gone.endswith("UTC: what is due waits.")
    assert back.startswith("what is due is done again since ")


def test_another_chore_that_is_done_does_not_say_that_the_database_is_back(caplog) -> None:
    waiting = Outage(*WORDS)
    with caplog.at_level(logging.WARNING, "rescind.service"):
        waiting.hit(Busy("of somebody"), "advance")
        waiting.hit(Busy("of somebody"), "callbacks")
        waiting.over("tidy")
        waiting.over("advance")
        assert len(caplog.records) == 1, "callbacks wait still"
        waiting.over("callbacks")
    assert "is done again" in caplog.records[1].getMessage()


@pytest.mark.parametrize("finished", [False, True])
def test_a_release_that_stays_without_a_roster_is_named_at_the_end(
    tmp_path: Path, monkeypatch, caplog, finished: bool
) -> None:
    make = chores.make_roster
    monkeypatch.setattr(chores, "make_roster", lambda service: False)
    with caplog.at_level(logging.WARNING, "rescind.service"), opened(tmp_path / "state") as house:
        for n in range(6):
            house.person(tuple(range(n, n + 12)))
        house.ledger.releases.make()
        if finished:
            assert make(house.service)
    told = [one.getMessage() for one in caplog.records]
    line = "the roster of release 1 was not finished: the next release has one."
    assert told == ([] if finished else [line])
