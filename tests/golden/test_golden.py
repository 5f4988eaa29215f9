"""What each request comes to, by each way to ask: as it was recorded.

`python -m tests.golden.record` writes `recorded.json` anew; the difference is what changed.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from tests.golden.mouths import MOUTHS
from tests.golden.record import cells, name_of, played, read

from rescind.data.blocklist import Blocklist

QUICK = (
    ("forget", "present", "leave"),
    ("forget", "emptied", "leave"),
    ("queue", "away", "leave"),
    ("silos", "present", "erase one not held"),
    ("silos", "emptied", "leave"),
    ("service", "twice while it waits", "erase all"),
    ("estimator", "present", "leave"),
    ("estimator", "learnt again", "leave"),
    ("cases", "another settings folder"),
)
"""Played each time. All others take minutes."""
EVERY = tuple(cells([*MOUTHS, "cases"]))


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in EVERY],
    ids=name_of,
)
def test_a_request_comes_to_what_was_recorded(cell: tuple[str, ...]) -> None:
    assert played(cell) == read()[name_of(cell)]


def test_every_cell_was_recorded() -> None:
    assert sorted(read()) == sorted(map(name_of, EVERY))
    assert set(QUICK) <= set(EVERY)


def test_a_list_that_does_not_keep_who_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the list of the data, the same cell ends in another way."""
    monkeypatch.setattr(Blocklist, "add_to", lambda *_: None)
    cell = ("forget", "present", "leave")
    found, known = played(cell)["after"], read()[name_of(cell)]["after"]
    assert (known["later"], found["later"]) == (False, True)
