"""Estimators that forget by a request of a home: a receipt, and the same model as a new fit."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import rescind as rs
from rescind.cli import app
from rescind.core.home import home
from rescind.errors import RescindError
from rescind.home import Ledger
from rescind.privacy.keys import own_public_key
from rescind.receipts.receipt import canonical
from rescind.receipts.verify import verify
from rescind.requests.papers import papers_of

HAD = [("ann", "a"), ("ann", "b"), ("bob", "a"), ("bob", "c"), ("cat", "b"), (7, "a"), (7, "c")]


@pytest.fixture(autouse=True)
def a_home_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "home"))


def test_who_only_forgets_in_memory_makes_no_home() -> None:
    model = rs.Gram().fit(HAD).forget(users=["ann"])
    assert isinstance(model, rs.Gram)
    assert not home().exists()


def test_with_a_ledger_users_leave_exactly_and_get_one_receipt() -> None:
    model = rs.Gram().fit(HAD)
    receipt = model.forget(users=["ann", 7], ledger=True)
    assert (
        model.digest() == rs.Gram().fit([row for row in HAD if row[0] in ("bob", "cat")]).digest()
    )
    assert receipt.done.level == "L3"
    assert verify(canonical(receipt), {own_public_key() or "": "own"}).valid
    with Ledger.open() as ledger:
        (request,) = ledger.requests()
    assert (request.outcome, request.records) == ("ERASED", {})
    assert papers_of(request.id).is_file()


def test_asking_again_gives_the_same_receipt_and_a_stranger_is_refused() -> None:
    model = rs.Gram().fit(HAD)
    first = model.forget(users=["ann"], ledger=True)
    assert model.forget(users=["ann"], ledger=True) == first
    with pytest.raises(RescindError) as refused:
        model.forget(users=["zoe"], ledger=True)
    assert refused.value.code == "unknown-person"


def test_a_saved_model_forgets_in_its_file_whoever_asks(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    model = rs.Gram().fit(HAD)
    model.save(file)
    model.forget(users=["ann"], ledger=True, data="shop")
    assert rs.Gram.load(file).users == [7, "bob", "cat"]
    done = CliRunner().invoke(app, ["forget", "--data", "shop", "--user", "7"])
    assert done.exit_code == 0, done.output
    assert rs.Gram.load(file).users == ["bob", "cat"]


def test_a_client_leaves_a_graph() -> None:
    nodes = {"node": [1, 2, 3, 4], "client": ["x", "x", "y", "y"], "label": ["a", "b", "a", "b"]}
    features = [[1, 0], [0, 1], [1, 0], [0, 1]]
    model = rs.GraphGram().fit(nodes, [(1, 2), (3, 4)], features=features)
    receipt = model.forget(clients=["x"], ledger=True)
    assert receipt.done.level == "L3"
    assert model.clients == ["y"]
