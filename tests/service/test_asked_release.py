"""A release that was acknowledged is made, also if the service is killed before it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databases import POSTGRES
from doors import House, opened
from rescind.errors import DataError
from rescind.ledger.errors import Busy, Closing
from rescind.ledger.failpoints import VARIABLE
from rescind.ledger.release_steps import TRIES, AskRelease
from rescind.ledger.release_worker import subprocess as of_the_worker
from rescind.service import chores

KEY = "make-0000000000003"
ACKNOWLEDGED = "acknowledged"
KILLED = """
import os, signal, sys, threading
from pathlib import Path
from doors import opened

with opened(Path(sys.argv[1])) as house:
    for n in range(6):
        house.person((1, 2, 3 + n))
    if sys.argv[2] == "acknowledged":
        house.ledger.releases.make = lambda *_: threading.Event().wait()
        answer = house.operator().post("/v1/operator/releases", {}, sys.argv[3])
        print(answer.status_code, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] != "not asked":
        house.release(house.operator(), sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(state: Path, where: str) -> str:
    """Run a service that six people lend to, until it is killed; return what it printed."""
    if POSTGRES:
        pytest.skip("the database of this process is not that of the killed one")
    helpers = str(Path(__file__).parents[1] / "helpers")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([helpers, *sys.path]), VARIABLE: where}
    if where in (ACKNOWLEDGED, "not asked"):
        del env[VARIABLE]
    words = [sys.executable, "-c", KILLED, str(state), where, KEY]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode == -signal.SIGKILL
    return done.stdout


def listed(house: House) -> tuple[list[int], Any]:
    """Return the numbers of the releases, and what became of the one asked for."""
    found = house.operator().get("/v1/operator/releases").json()
    return [one["number"] for one in found["releases"]], found["asked"]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(ACKNOWLEDGED, marks=pytest.mark.slow),
        "release being made",
        pytest.param("release committed", marks=pytest.mark.slow),
    ],
)
def test_killed_after_the_answer_a_start_makes_it_once(tmp_path: Path, where: str) -> None:
    said = killed(tmp_path / "state", where)
    assert said == ("202\n" if where == ACKNOWLEDGED else "")
    with opened(tmp_path / "state") as house:
        chores.release_if_asked(house.service)
        numbers, asked = listed(house)
        assert (numbers, asked["state"], asked["number"]) == ([1], "made", 1)
    with opened(tmp_path / "state") as house:
        chores.release_if_asked(house.service)
        assert listed(house) == ([1], asked), "it is made once, and still told"


def test_the_running_service_makes_it_and_the_same_key_is_answered_truly(tmp_path: Path) -> None:
    killed(tmp_path / "state", ACKNOWLEDGED)
    with opened(tmp_path / "state") as house:
        for _ in range(200):  # its own chore does it, while it answers
            if listed(house)[1] != {"state": "making"}:
                break
        answer = house.operator().post("/v1/operator/releases", {}, KEY)
        assert (answer.status_code, listed(house)[0]) == (202, [1])


def test_a_start_makes_none_that_nobody_asked_for(tmp_path: Path) -> None:
    killed(tmp_path / "state", "not asked")
    with opened(tmp_path / "state") as house:
        chores.release_if_asked(house.service)
        assert listed(house) == ([], None)


def asked_and_refused(state: Path, error: Exception, starts: int, monkeypatch: Any) -> list[Any]:
    """Ask for a release that is refused, start again and again; return what is told each time."""
    begun, told = [], []

    def refuse(*_: object) -> None:
        begun.append(1)
        raise error

    monkeypatch.setattr(chores, "release_if_asked", lambda service: None)  # the chore
    with opened(state) as house:
        house.do(AskRelease("/v1/operator/releases"))
    for _ in range(starts):
        with opened(state) as house:
            monkeypatch.setattr(house.ledger.releases, "make", refuse)
            house.service.release_now._now()
            told.append((len(begun), listed(house)[1]))
    return told


def test_one_that_fails_after_a_start_is_not_tried_again(tmp_path: Path, monkeypatch) -> None:
    error = DataError("the sum is not that of the loans.")
    first, second = asked_and_refused(tmp_path / "state", error, 2, monkeypatch)
    assert first == second
    assert first[0] == 1
    assert (first[1]["state"], first[1]["why"]) == ("failed", str(error))


@pytest.mark.parametrize("error", [Busy("the database is away"), Closing("it is ending")])
def test_what_ends_the_service_each_time_does_so_a_few_times_only(
    tmp_path: Path, monkeypatch, error: Exception
) -> None:
    *first, last = asked_and_refused(tmp_path / "state", error, TRIES + 1, monkeypatch)
    assert first == [(n + 1, {"state": "making"}) for n in range(TRIES)]
    assert (last[0], last[1]["state"]) == (TRIES, "failed")
    assert f"begun {TRIES} times" in last[1]["why"]


def test_one_asked_for_while_another_is_made_is_made_after_it(house: House, monkeypatch) -> None:
    real, operator = house.ledger.releases.make, house.operator()

    def once_more(*given: Any) -> Any:
        monkeypatch.setattr(house.ledger.releases, "make", real)
        house.do(AskRelease("/v1/operator/releases"))
        return real(*given)

    monkeypatch.setattr(house.ledger.releases, "make", once_more)
    house.release(operator)
    numbers, asked = listed(house)
    assert (numbers, asked["number"]) == ([2, 1], 2)


@pytest.mark.parametrize(("code", "error"), [(-2, Closing), (-15, Closing), (-9, DataError)])
def test_a_process_that_was_told_to_end_is_no_failure(
    tmp_path: Path, monkeypatch, code: int, error: type[Exception]
) -> None:
    ended = subprocess.CompletedProcess([], code, b"", b"KeyboardInterrupt")
    with opened(tmp_path / "state", items=1001) as house:
        house.person((1, 2, 3))
        monkeypatch.setattr(of_the_worker, "run", lambda *_, **__: ended)
        with pytest.raises(error):
            house.ledger.releases.make()
