"""Receipts over silos are one chain, also if the server is killed while it signs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flower.silo_shop import SiloShop, asks, outcomes
from rescind.core.claims import CONFIRMED
from rescind.flower.server import answering
from rescind.flower.silo.names import USER, key_of
from rescind.home import Ledger, Request
from rescind.receipts.log import open_log
from rescind.receipts.receipt import Receipt, digest, parse

pytestmark = pytest.mark.flower

RECIPE = """
[data]
name = "synthetic"
users = 24
items = 20
interactions = 220

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
AWAY = 1
"""The silo that is away; who leaves is on the other one."""


@pytest.fixture
def shop(tmp_path: Path) -> SiloShop:
    """A run that is trained with both silos."""
    made = SiloShop(tmp_path, 2)
    made.write_recipe(RECIPE)
    made.serve()
    return made


def chain() -> list[Receipt]:
    """Return the receipts, each after the one that it follows."""
    with Ledger.open() as ledger:
        names = {one.receipt for one in ledger.requests() if one.receipt}
        bodies = [ledger.receipt(name)[0] for name in names]
    after = {parse(body).previous: body for body in bodies}
    assert len(after) == len(bodies), "two follow the same one"
    found, last = list[Receipt](), ""
    while last in after:
        found.append(parse(after[last]))
        last = digest(after[last])
    assert len(found) == len(bodies), "some are on no chain"
    return found


def test_whoever_waits_is_answered_once_and_last(shop: SiloShop) -> None:
    assert outcomes(shop.serve(*asks(leave=["0"]))) == ["ERASED"]
    assert outcomes(shop.serve(*asks(leave=["2", "4"]), away=[AWAY])) == ["WAITING"] * 2
    assert len(chain()) == 1, "no receipt says that a silo is waited for"
    assert outcomes(shop.serve(*asks(leave=["6"]))) == ["ERASED"] * 3
    found = chain()
    assert [one.done.level for one in found] == ["L3"] * 4
    assert all(one.claims[CONFIRMED].count("silo") == 2 for one in found)


@pytest.mark.parametrize("step", ["signed", "logged"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_server_that_was_killed_between_receipts_forks_nothing_and_loses_none(
    number: int, moment: str, step: str, shop: SiloShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(answering, step), 0

    def interrupted(*about: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == number and moment == "before":
            raise KeyboardInterrupt
        made: dict[str, Any] = real(*about)
        if calls == number:
            raise KeyboardInterrupt
        return made

    interrupted.__name__ = step
    monkeypatch.setattr(answering, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.serve(*asks(leave=["2", "4"]))
    facts = shop.serve(*asks(leave=["2", "4"]))
    assert set(outcomes(facts)) == {"ERASED", "REPEATED"} if number == 2 else {"ERASED"}
    assert len(chain()) == 2
    assert len(open_log().entries) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_each_step_a_request_is_answered_once(
    moment: str, shop: SiloShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each person leaves while the server is killed at another note in the ledger."""
    real, left = Ledger.done, 0

    def interrupted(self: Ledger, request: Request, name: str, facts: Any = None) -> None:
        nonlocal left
        left -= 1
        if left == 0 and moment == "before":
            raise KeyboardInterrupt
        real(self, request, name, facts)
        if left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "done", interrupted)
    for number in range(1, 20):
        left, user = number, str(number)
        try:
            shop.serve(*asks(leave=[user]))
            break
        except KeyboardInterrupt:
            assert outcomes(shop.serve(resume=True)) == ["ERASED"]
        assert key_of(USER, user) not in {who for who, _ in shop.held()}
        assert len(chain()) == len(open_log().entries) == number
    assert number == 9, "asked, unlearnt twice, purged thrice, signed, logged"
