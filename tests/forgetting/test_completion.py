"""Receipts that complete others, of this version and of earlier ones; real forks are still told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescind.core.claims import COMPLETES, CONFIRMED, WAITED_FOR
from rescind.core.records import Erase, Event, Records, Withdraw
from rescind.privacy import keys
from rescind.receipts.receipt import Done, canonical, digest, issue
from rescind.receipts.verify import verify, verify_all

ERASE = Erase(Records.of([3, 3, 5], [1, 9, 9], [100, 200, 300]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))


def mine() -> dict[str, str]:
    return {keys.public_text(keys.signing_key()): "me"}


def made(
    previous: bytes | None,
    waits: str = "none",
    confirmed: str = "0, 1",
    event: Event = Withdraw(1),  # noqa: B008 - a frozen value
    rounds: int = 1,
    **more: str,
) -> bytes:
    """Return a receipt of two silos, as earlier versions made it. more: further claims"""
    level = "L3" if waits == "none" else "L0"
    done = Done({"name": "Gram"}, "Gram", level, *"abcd", rounds, 3, {"others": 1}, 0.5)
    claims = {CONFIRMED: confirmed, WAITED_FOR: waits, **more}
    issued = issue(event, done, [], [], records=9, claims=claims, previous=previous)
    return canonical(issued.receipt)


def waiting(previous: bytes | None) -> bytes:
    return made(previous, waits="1", confirmed="0")


def told(files: dict[str, bytes]) -> list[str]:
    found = verify_all(files, mine())
    return found[""].problems if "" in found else []


def test_a_completion_of_earlier_versions_is_no_second_history() -> None:
    first = waiting(None)
    second = waiting(first)
    files = {
        "1": first, "2": second, "1-complete": made(first), "2-complete": made(second),
    }  # fmt: skip
    found = verify_all(files, mine())
    assert all(one.valid for one in found.values())
    assert told(files) == []
    (note,) = [check.says for one in found.values() for check in one.checks if check.note]
    assert note.startswith("it completes 1 and stands beside the chain")
    assert note in [check.says for check in found["1-complete"].checks]
    last = files["2-complete"]
    given = verify(last, mine(), [files[name] for name in ("1", "2", "1-complete")])
    assert given.valid, given.problems
    assert "1-complete" not in verify_all({"1": first, "2": second}, mine()), "the control"
    control = verify(last, mine(), [first, second, made(first, event=ERASE)])
    assert [says.split(" ")[0] for says in control.problems] == ["1", "FORK:"]


FORKS = {
    "another kind of request": lambda first: [made(first, event=ERASE), waiting(first)],
    "other work was done": lambda first: [made(first, rounds=10), waiting(first)],
    "other silos": lambda first: [made(first, confirmed="0, 1, 2"), waiting(first)],
    "not all silos": lambda first: [made(first, confirmed="0"), waiting(first)],
    "two completions": lambda first: [made(first), made(first)],
    "two that wait": lambda first: [waiting(first), waiting(first)],
    "a completion and two others": lambda first: [made(first), waiting(first), waiting(first)],
    "the other waits for another silo": lambda first: [
        made(first), made(first, waits="0", confirmed="1"),
    ],
    "the history goes on after both": lambda first: [
        alone := made(first), made(alone), waiting(first),
    ],
    "this version states what it completes": lambda first: [
        made(first, **{COMPLETES: digest(first)}), waiting(first),
    ],
}  # fmt: skip


@pytest.mark.parametrize("fork", FORKS)
def test_two_successors_are_a_fork_unless_one_completes_as_earlier_versions_did(fork: str) -> None:
    first = waiting(None)
    files = {"first": first, **{f"{n}": one for n, one in enumerate(FORKS[fork](first))}}
    (problem,) = told(files)
    assert problem.startswith("FORK: 0 and ")
    assert problem.endswith(" both follow first")


def test_nothing_completes_a_receipt_that_waits_for_nobody() -> None:
    first = made(None)
    assert told({"first": first, "left": made(first), "right": waiting(first)})


@pytest.mark.parametrize("wrong", ["another kind of request", "nothing was waited for"])
def test_a_receipt_that_says_it_completes_another_request_is_not_valid(wrong: str) -> None:
    first = waiting(None)
    other = made(first, event=ERASE) if wrong == "nothing was waited for" else waiting(first)
    states = {COMPLETES: digest(other)}
    event = ERASE if wrong == "another kind of request" else Withdraw(1)
    false, true = made(other, event=event, **states), made(other, **{COMPLETES: digest(first)})
    found = verify_all({"first": first, "other": other, "false": false}, mine())
    assert found["false"].problems == [
        "it says that it completes other, which states another request, or waited for other silos"
    ]
    assert not verify(false, mine(), [first, other]).valid
    found = verify_all({"first": first, "other": other, "true": true}, mine())
    assert found["true"].valid, "the control: a receipt stands between"
    assert "it completes first" in [check.says for check in found["true"].checks]
    assert verify(true, mine(), [first, other]).valid
    assert verify(true, mine()).valid, "the other one was not given"
