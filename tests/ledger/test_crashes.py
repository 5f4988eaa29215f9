"""Killed at any moment, a ledger loses nothing that it acknowledged and finishes what it began."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from ledger_killing import Server, killed
from ledgers import kept, lent, opened
from rescind.ledger import failpoints
from rescind.ledger.tables import named_slots

SOURCES = Path(failpoints.__file__).parent
TESTS = Path(__file__).parents[1]
AT_A_CHANGE = failpoints.NAMES[:5]
"""Rows of the table of crash points that a change passes; the others belong to releases."""


def reached_in_source() -> set[str]:
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        found.update(re.findall(r'\breach\("([^"]+)"\)', path.read_text(encoding="utf-8")))
    return found


def test_every_failpoint_in_the_source_has_a_row() -> None:
    assert reached_in_source() == set(failpoints.NAMES)


def test_every_failpoint_is_killed_at_by_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    killed_at = [name for name in failpoints.NAMES[5:] if any(f'"{name}' in t for t in texts)]
    assert killed_at == list(failpoints.NAMES[5:])  # the first five: COMMITTED below


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    server = Server(tmp_path_factory.mktemp("points") / "state")
    yield server
    server.close()


COMMITTED = dict(zip(AT_A_CHANGE, (False, False, False, True, True), strict=True))
"""Whether the change is there after a start, though nobody was told."""
CASES = [(point, "leave") for point in AT_A_CHANGE]
CHANGES = ("lend", "erase", "contribute")
CASES += [(point, change) for point in ("keys synced", "committed") for change in CHANGES]


@pytest.mark.parametrize(("point", "change"), CASES)
def test_killed_at_each_point_a_start_reaches_the_end(
    server: Server, point: str, change: str
) -> None:
    name = f"{point}-{change}".replace(" ", "-")
    server.start()
    person = server.ask(do="join", key=f"join-{name}")["body"]["person"]
    server.ask(do="lend", person=person, items=[1, 2], key=f"first-{name}")
    server.ask(do="contribute", person=person, old=[], items=[4, 5], key=f"kept-{name}")
    server.kill()
    server.start(failpoint=point)
    asked = {"do": change, "person": person, "key": f"second-{name}"}
    more = {"lend": {"items": [3]}, "erase": {"items": [1]}}
    more["contribute"] = {"old": [4, 5], "items": [5, 6, 7]}
    asked |= more.get(change, {})
    assert server.ask(**asked) is None
    assert server.ended() == -signal.SIGKILL

    server.start()
    again = server.ask(**asked)
    assert again["status"] < 300
    assert again["replayed"] == COMMITTED[point]
    assert server.ask(do="stop") is None
    assert server.ended() == 0
    ledger = opened(Path(server.place).parent / "state")
    try:
        if change != "leave":
            after = {"lend": [1, 2, 3], "erase": [2], "contribute": [1, 2]}[change]
            assert lent(ledger, bytes.fromhex(person)) == after
            sent = [5, 6, 7] if change == "contribute" else [4, 5]
            assert kept(ledger, bytes.fromhex(person)) == sent
        with ledger.store.reading() as connection:
            assert ledger.keys.ids == named_slots(connection)
        assert all(one.erased_at for one in ledger.reading.open_requests())
    finally:
        ledger.close()


def test_eight_writers_and_random_kills_lose_nothing(tmp_path: Path) -> None:
    verdict = killed(tmp_path / "state", kills=5, seed=7)
    assert verdict.clean, (verdict, verdict.faults)
    assert verdict.acknowledged > 10


@pytest.mark.service
def test_twenty_kills_lose_nothing(tmp_path: Path, database: str | None) -> None:
    verdict = killed(tmp_path / "state", kills=20, seed=11, database=database)
    assert verdict.clean, (verdict, verdict.faults)


@pytest.mark.service
def test_without_the_sweep_the_same_kills_leave_keys(tmp_path: Path) -> None:
    verdict = killed(tmp_path / "state", kills=20, seed=11, without_sweep=True)
    assert verdict.keys_without_box > 0
    assert verdict.unfinished > 0
    assert (verdict.lost, verdict.doubled) == (0, 0)
