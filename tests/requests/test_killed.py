"""An answer that is killed at any of its steps, and given again, is the answer.

A kill is an exception that nothing catches, before, inside and after each step, and between two
writes of it. Kills by the system, at every touch of the disk: security/test_forget_killed.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from requesting import CELL, LENDING, Shop, items_of, papers
from rescind.errors import DataError
from rescind.home import Ledger, Request, second_copy
from rescind.privacy import keys
from rescind.receipts.log import open_log
from rescind.receipts.of_run import compare
from rescind.receipts.verify import verify
from rescind.requests import answer, run_holder, signing, table_holder
from rescind.requests import papers as papers_module
from rescind.requests.holders import Holder
from rescind.storage.run_folder import read_facts

WHO = "c3"
KINDS = {
    "leave": ("leave", WHO, ()),
    "erase some": ("erase", WHO, items_of(3)[:2]),
    "unshare": ("unshare", WHO, ()),
    "rows only": ("leave", "n1", ()),
}
INSIDE: dict[str, tuple[Any, str]] = {
    "judged": (answer, "judged"),
    "departure": (Ledger, "depart"),
    "model saved": (run_holder, "save_federation"),
    "facts of the run": (run_holder, "write_facts"),
    "made with the records": (run_holder, "clear_made_with"),
    "rows deleted": (table_holder, "delete_rows"),
    "looked again": (Holder, "has"),
    "signature": (signing, "finish"),
    "receipt kept": (Ledger, "keep_receipt"),
    "copy knows its receipt": (Ledger, "register"),
    "in the log": (answer, "log_receipt"),
    "papers written": (papers_module, "write_atomically"),
    "ended": (Ledger, "end"),
    "second copy": (second_copy, "keep"),
}
STEPS = [step.__name__ for step in answer.STEPS]
POINTS = [f"{when} {name}" for name in [*STEPS, *INSIDE] for when in ("before", "after")]
POINTS += [f"noted {name}" for name in ("asked", *STEPS, "unlearnt of a holder")]
NEVER = {
    "leave": (),
    "erase some": (),
    "unshare": ("rows deleted",),
    "rows only": (
        "model saved",
        "facts of the run",
        "made with the records",
        "copy knows its receipt",
    ),
}
"""Points that an answer of this kind does not pass."""


class Killed(BaseException):
    """Ends a call as a kill does."""


@dataclass(frozen=True)
class Scene:
    """A shop in a folder, which is put back after each kill."""

    shop: Shop
    fresh: Path
    names: dict[str, str]
    """The ids of waiting requests, by kind."""

    def again(self) -> None:
        """Put the shop back as it was, nothing answered."""
        shutil.rmtree(self.shop.folder)
        shutil.copytree(self.fresh, self.shop.folder)


def made(folder: Path, lending: bool) -> Scene:
    shop = Shop.opened(folder, cell=LENDING if lending else CELL)
    shop.arrive("n1", ("p1", "p2"))
    names = {
        name: shop.add(kind, user, items=items).id
        for name, (kind, user, items) in KINDS.items()
        if lending == (name == "unshare")
    }
    fresh = folder.with_name(f"{folder.name}-fresh")
    shutil.copytree(folder, fresh)
    return Scene(shop, fresh, names)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Scene]:
    with pytest.MonkeyPatch.context() as patch:
        found = {}
        for lending in (False, True):
            folder = tmp_path_factory.mktemp("killed") / "shop"
            patch.setenv("RESCIND_HOME", str(folder / "home"))
            found[lending] = made(folder, lending)
        return found


def state_of(shop: Shop, request: Request) -> dict[str, Any]:
    """Return all that must be the same, however often the answer was begun."""
    with Ledger.open() as ledger:
        receipts = ledger._rows("SELECT digest FROM receipt")
        departures = ledger.departures("shop")
        body, proof = ledger.receipt(request.receipt)
        assert not any(sealed for (sealed,) in ledger._rows("SELECT sealed FROM step"))
    facts = read_facts(shop.run()) or {}
    sent = papers(request.id)
    assert sent["receipt.json"] == body
    assert sent["receipt.tlog-proof"].decode() == proof
    assert verify(body, {keys.own_public_key(): "me"}).valid
    assert all(check.holds for check in compare(shop.run())), "run and receipt fit"
    assert facts["model"]["public"] == shop.model()
    return {
        "outcome": request.outcome,
        "model": shop.model(),
        "receipts": len(receipts),
        "log": open_log().checkpoint.size,
        "papers": sorted(sent),
        "departures": departures,
        "stored": [shop.stored(user) for user in (WHO, "n1")],
        "learnt": shop.learnt(WHO),
        "run": sorted(str(p.relative_to(shop.run())) for p in shop.run().rglob("*"))[:99],
        "rows": facts["data"]["rows"],
    }


def dying(what: Callable[..., Any], when: str, times: list[str]) -> Callable[..., Any]:
    """Return a function that is killed before or after its first call."""

    def call(*given: Any, **more: Any) -> Any:
        if times:
            return what(*given, **more)
        times.append(when)
        if when == "after":
            what(*given, **more)
        raise Killed

    call.__name__ = getattr(what, "__name__", "")
    return call


def kill(patch: pytest.MonkeyPatch, point: str, times: list[str]) -> None:
    """Make a point deadly, once."""
    when, _, name = point.partition(" ")
    if when == "noted":
        patch.setattr(Ledger, "done", noted(Ledger.done, name, times))
    elif name in STEPS:
        steps = [dying(s, when, times) if s.__name__ == name else s for s in answer.STEPS]
        patch.setattr(answer, "STEPS", tuple(steps))
    else:
        owner, called = INSIDE[name]
        patch.setattr(owner, called, dying(getattr(owner, called), when, times))


def noted(done: Callable[..., None], name: str, times: list[str]) -> Callable[..., None]:
    """Return `Ledger.done` that is killed once it has written down this step."""

    def call(ledger: Ledger, request: Request, step: str, facts: Any = None) -> None:
        done(ledger, request, step, facts)
        if not times and (step == name or (" " in step and name.endswith("holder"))):
            times.append(step)
            raise Killed

    return call


def killed(scene: Scene, name: str, point: str) -> bool:
    """Answer a request that is killed at a point; return whether it was."""
    scene.again()
    times: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, point, times)
        try:
            scene.shop.answer(scene.names[name])
        except Killed:
            return True
    assert not times
    return False


@pytest.fixture(scope="module")
def uninterrupted(scenes: dict[bool, Scene]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in KINDS:
        scene = scenes[name == "unshare"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RESCIND_HOME", str(scene.shop.folder / "home"))
            scene.again()
            found[name] = state_of(scene.shop, scene.shop.answer(scene.names[name]))
    return found


@pytest.fixture
def scene(scenes: dict[bool, Scene], name: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    chosen = scenes[name == "unshare"]
    monkeypatch.setenv("RESCIND_HOME", str(chosen.shop.folder / "home"))
    return chosen


def check(scene: Scene, name: str, point: str, expected: dict[str, Any]) -> None:
    """Fail unless a request killed at a point, and answered again, is answered the same."""
    assert killed(scene, name, point) != point.endswith(NEVER[name]), "the point was reached"
    for _ in ("again", "once more, which does nothing"):
        answered_the_same(scene, name, expected)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", KINDS)
def test_killed_and_given_again_it_is_the_same_answer(
    scene: Scene, uninterrupted: dict[str, dict[str, Any]], name: str, point: str
) -> None:
    check(scene, name, point, uninterrupted[name])


def test_what_is_expected_says_something(uninterrupted: dict[str, dict[str, Any]]) -> None:
    told = {name: found["outcome"] for name, found in uninterrupted.items()}
    assert told == {name: "ROWS_ONLY" if name == "rows only" else "ERASED" for name in KINDS}
    assert {found["receipts"] for found in uninterrupted.values()} == {1}
    assert {found["log"] for found in uninterrupted.values()} == {1}
    assert len({found["model"] for found in uninterrupted.values()}) == 4


TWICE: dict[str, tuple[str, Any, str, Any]] = {
    "a receipt is signed anew": ("after receipt kept", Ledger, "receipt_of", lambda *_: None),
    "a killed run is not finished": ("before facts of the run", run_holder.Run, "finish", None),
    "rows are not looked for": ("before rows deleted", table_holder.Table, "purge", None),
    "a departure is forgotten": ("before departure", Ledger, "depart", None),
}


@pytest.mark.parametrize("name", ["leave"])
@pytest.mark.parametrize("fault", TWICE)
def test_a_step_that_cannot_be_begun_again_would_be_found(
    scene: Scene, uninterrupted: dict[str, dict[str, Any]], name: str, fault: str
) -> None:
    point, owner, called, instead = TWICE[fault]
    with pytest.MonkeyPatch.context() as patch:
        assert killed(scene, name, point)
        patch.setattr(owner, called, instead or (lambda *_, **__: None))
        with pytest.raises((AssertionError, DataError)):
            answered_the_same(scene, name, uninterrupted[name])


def answered_the_same(scene: Scene, name: str, expected: dict[str, Any]) -> None:
    done = scene.shop.answer(scene.names[name])
    assert state_of(scene.shop, done) == expected
