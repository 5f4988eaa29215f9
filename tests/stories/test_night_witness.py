"""A night asks witnesses: their signatures are in the papers; one that is away is asked again."""

from __future__ import annotations

import json
import threading
import zipfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.core.home import home
from rescind.home import Ledger
from rescind.night.config import read
from rescind.night.steps import journal_of, work
from rescind.proof.witness import Witness
from rescind.proof.witness_http import server
from rescind.receipts.log import check_proof, key_of, open_log
from rescind.requests.papers import PROOF, RECEIPT

TOML = """
[data]
name = "shop"
[new]
from = "shop.csv"
[requests]
from = "in"
[log]
witnesses = [{{ url = "http://127.0.0.1:{port}", key = "{key}" }}]
"""


def witness(folder: Path) -> Witness:
    Witness.start(folder)
    return Witness(folder, "silo-0", Ed25519PrivateKey.generate(), [key_of(open_log())])


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    rows = [f"c{user},p{(3 * user + k) % 10}" for user in range(12) for k in range(5)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    (tmp_path / "in/x.json").write_text(json.dumps({"leave": "c3"}))
    return tmp_path / "shop.toml"


def night(shop: Path, one: Witness, port: int) -> int:
    shop.write_text(TOML.format(port=port, key=one.key))
    with Ledger.open() as ledger:
        return work(read(shop), ledger, lambda _: None)


def holds(one: Witness) -> bool:
    (path,) = (home() / "answers").glob("*.zip")
    with zipfile.ZipFile(path) as packed:
        receipt, proof = packed.read(RECEIPT), packed.read(PROOF)
    return all(check.holds for check in check_proof(receipt, proof, None, [one.key]))


def test_a_witness_that_is_away_is_asked_the_next_night(shop: Path, tmp_path: Path) -> None:
    one = witness(tmp_path / "witness")
    with server(one, "127.0.0.1", 0) as door:
        port = door.server_port
        assert night(shop, one, 9) == 10
        assert not holds(one), "control: it has not signed"
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        try:
            assert night(shop, one, port) == 0
            assert holds(one)
            stranger = witness(tmp_path / "stranger")
            assert night(shop, stranger, port) == 1, "another key: that is no matter of waiting"
        finally:
            door.shutdown()
            thread.join()
    with Ledger.open() as ledger:
        assert "failed" in ledger.journal(journal_of("shop"))["cosign"]
