"""The service on PostgreSQL: connections that are cut, and a server that restarts, lose nothing.

All other tests of this folder run on PostgreSQL, too, with RESCIND_TEST_POSTGRES=1.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from databases import CUT, POSTGRES, RESTART, engine
from doors import Browser, House, opened

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not POSTGRES, reason="PostgreSQL is tried with RESCIND_TEST_POSTGRES=1"),
]
CHANGES, PEOPLE, ITEMS = 30, 4, 40


def cut() -> None:
    """End every connection of the service, as a restart does."""
    own = engine()
    with own.connect() as connection:
        connection.execute(text(CUT))
    own.dispose()


def restart() -> None:
    """Restart the server at once, without waiting for its callers."""
    subprocess.run(shlex.split(RESTART), check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("away", ["connections cut", "server restarted"])
def test_0_lost_and_only_503_meanwhile(tmp_path: Path, away: str) -> None:
    if away == "server restarted" and not RESTART:
        pytest.skip("RESCIND_TEST_POSTGRES_RESTART names no command that restarts the server")
    harm: Callable[[], None] = cut if away == "connections cut" else restart
    with opened(tmp_path / "state") as house:
        people = [house.person() for _ in range(PEOPLE)]
        statuses: list[int] = []
        house.runner.run(story(house, people, harm, statuses))
        assert set(statuses) <= {200, 201, 202, 503}, set(statuses)
        assert 503 in statuses, "control: the harm was felt"
        want = [f"item-{n}" for n in range(CHANGES)]
        for person in people:
            mine = person.get("/v1/me/loans", params={"limit": 100}).json()["items"]
            assert sorted(one["id"] for one in mine) == sorted(want)
        held = {bytes(p.id): house.ledger.live.of(p.id).tolist() for p in people}
        assert all(sorted(loans) == list(range(CHANGES)) for loans in held.values())
        assert len(house.ledger.tree) == PEOPLE * CHANGES
    with opened(tmp_path / "state") as again:  # nothing was acknowledged that is not on the disk
        assert len(again.ledger.tree) == PEOPLE * CHANGES
        assert {p: again.ledger.live.of(p).tolist() for p in held} == held


async def story(
    house: House, people: list[Browser], harm: Callable[[], None], statuses: list[int]
) -> None:
    """Let people lend one item after the other, while the database is harmed three times."""
    done = 0

    async def lend(person: Browser, number: int) -> None:
        nonlocal done
        for item in range(CHANGES):
            key = {"Idempotency-Key": f"change-{number:04d}-{item:08d}"}
            while True:
                answer = await person.send(
                    "POST", "/v1/me/loans", json={"items": [f"item-{item}"]}, headers=key
                )
                statuses.append(answer.status_code)
                if answer.status_code != 503:
                    break
                await asyncio.sleep(0.05)
            done += 1

    async def harming() -> None:
        for part in (1, 2, 3):
            while done < part * PEOPLE * CHANGES / 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(harm)

    tasks: list[Any] = [lend(person, n) for n, person in enumerate(people)]
    await asyncio.gather(*tasks, harming())


def test_the_whole_story_writes_into_postgres(tmp_path: Path) -> None:
    """The control of all others: nothing of the ledger is in a file of SQLite."""
    with opened(tmp_path / "state") as house:
        house.person((1, 2, 3))
        assert not house.ledger.store.sqlite
        assert not list((tmp_path / "state").glob("ledger.db*"))
