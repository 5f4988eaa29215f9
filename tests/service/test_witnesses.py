"""Witnesses of the service's log: asked, or coming by themselves; a fork is refused for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from doors import House, log_key, opened
from rescind.cli.witness import open_witness
from rescind.errors import DataError
from rescind.ledger import cosigned
from rescind.ledger.options import Options
from rescind.proof import notes
from rescind.proof.log_folder import CHANGE, RECEIPT, entry_of
from rescind.proof.notes import Checkpoint, Key, Proof
from rescind.proof.pulling import Away, Pulling, SecondHistory
from rescind.proof.tlog import Tree
from rescind.proof.witness import SEEN, Witness
from rescind.proof.witness_http import server

AT_ONCE = Options(instant=True, cosign_wait=0)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosigned, "PAUSE", 0.0)


@contextmanager
def listening(witness: Witness) -> Iterator[str]:
    with server(witness, "127.0.0.1", 0) as door:
        thread = threading.Thread(target=door.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.server_port}"
        finally:
            door.shutdown()
            thread.join()


def receipt_of(house: House) -> dict[str, Any]:
    """Let somebody take something back; return the answer, with its receipt."""
    person = house.person((1, 2, 3))
    told = person.post("/v1/me/requests", {"kind": "erase", "items": ["item-2"]}).json()
    return {**told, "receipt": house.caller().get(f"{told['link']}/receipt").content}


def test_a_witness_that_is_asked_signs_checkpoints_and_proofs(tmp_path: Path) -> None:
    with opened(tmp_path / "state", AT_ONCE) as house:
        operator, key = house.operator(), log_key(house)
        witness = open_witness(tmp_path / "witness", "silo-0", [key])
        with listening(witness) as url:
            house.service.log.witnesses.admit(witness.key, url, by_name=True)
            told = receipt_of(house)
            proof = house.caller().get(f"{told['link']}/proof")  # it asks, but does not wait
            house.service.log.witnesses.ask()
            proof = house.caller().get(f"{told['link']}/proof")
            assert proof.headers["Rescind-Cosigned"] == "1 of 1"
        entry = entry_of(RECEIPT, told["receipt"])
        _, seen = Proof.parse(proof.text).check(entry, key, [witness.key])
        assert seen[witness.key] > 1.7e9
        note = house.caller().get("/log/checkpoint").text
        assert witness.key in notes.opened(note, [witness.key])[1]
        listed = operator.get("/v1/operator/witnesses").json()
        (row,) = listed["witnesses"]
        assert (row["name"], row["problem"]) == ("silo-0", None)
        assert row["signed"] == listed["checkpoint"]["size"] == listed["leaves"]
        assert (listed["checkpoint"]["by"], listed["checkpoint"]["of"]) == (["silo-0"], 1)
        assert operator.get("/v1/operator/overview").json()["log"]["cosigned"] == 1
    with opened(tmp_path / "state", AT_ONCE) as house:  # what they signed is in the ledger
        again = house.caller().get(f"{told['link']}/proof")
        assert again.headers["Rescind-Cosigned"] == "1 of 1"
        Proof.parse(again.text).check(entry, key, [witness.key])


def test_a_witness_that_is_away_is_told_and_the_proof_says_how_many_signed(tmp_path: Path) -> None:
    """The control of the test above: nobody signed, and the check says so."""
    with opened(tmp_path / "state", AT_ONCE) as house:
        operator, key = house.operator(), log_key(house)
        witness = open_witness(tmp_path / "witness", "silo-0", [key])
        house.service.log.witnesses.admit(witness.key, NOWHERE, by_name=True)
        told = receipt_of(house)
        house.service.log.witnesses.ask()
        proof = house.caller().get(f"{told['link']}/proof")
        assert proof.headers["Rescind-Cosigned"] == "0 of 1"
        entry = entry_of(RECEIPT, told["receipt"])
        Proof.parse(proof.text).check(entry, key)
        with pytest.raises(DataError, match="not cosigned by silo-0"):
            Proof.parse(proof.text).check(entry, key, [witness.key])
        (row,) = operator.get("/v1/operator/witnesses").json()["witnesses"]
        assert "cannot be reached" in row["problem"]
        path, once = (
            f"/v1/operator/witnesses/{row['id']}",
            {"Idempotency-Key": "dismiss-" + "k" * 9},
        )
        gone, again = (operator.call("DELETE", path, headers=once) for _ in range(2))
        assert gone.json() == again.json() == {"removed": "silo-0"}
        assert again.headers["Idempotent-Replay"] == "true"
        assert house.caller().get(f"{told['link']}/proof").headers["Rescind-Cosigned"] == "0 of 0"


def through(house: House) -> Callable[[Request], bytes]:
    """Return how a witness reaches a service without a network."""

    def sent(request: Request) -> bytes:
        path = request.full_url.removeprefix("http://localhost:8000")
        more = {"content": request.data, "headers": {"content-type": "text/plain"}}
        answer = house.caller().call(request.get_method(), path, **(more if request.data else {}))
        if answer.status_code >= 400:
            raise Away(answer.text)
        return answer.content

    return sent


def pulling(house: House, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pulling, Key]:
    """A witness that comes by itself; made again from its folder, it is the same one."""
    monkeypatch.setattr("rescind.proof.pulling.sent", through(house))
    witness = open_witness(folder, "silo-1", [log_key(house)])
    return Pulling("http://localhost:8000/", log_key(house), witness, folder), witness.key


def test_a_witness_that_comes_by_itself_signs(tmp_path: Path, monkeypatch: Any) -> None:
    with opened(tmp_path / "state", AT_ONCE) as house:
        coming, key = pulling(house, tmp_path / "witness", monkeypatch)
        told = receipt_of(house)
        with pytest.raises(Away, match="no witness that this log knows"):  # not admitted yet
            coming.once()
        house.operator().post("/v1/operator/witnesses", {"key": str(key)})
        assert coming.once().size == len(house.ledger.tree)
        for _ in range(260):  # more than one tile
            house.do(_Entry())
        again, _ = pulling(house, tmp_path / "witness", monkeypatch)
        assert again.once().size == coming.once().size == len(house.ledger.tree) > 256
        proof = house.caller().get(f"{told['link']}/proof")
        assert proof.headers["Rescind-Cosigned"] == "1 of 1"
        entry = entry_of(RECEIPT, told["receipt"])
        Proof.parse(proof.text).check(entry, log_key(house), [key])


class _Entry:
    """An entry in the log about nothing."""

    person = None

    def carry_out(self, batch: Any) -> Any:
        batch.append(entry_of(CHANGE, b"nothing"))
        return cosigned.Answer(200)


@pytest.mark.parametrize("shown", ["another history", "rolled back"])
def test_a_fork_is_refused_also_after_a_restart(
    tmp_path: Path, monkeypatch: Any, shown: str
) -> None:
    folder = tmp_path / "witness"
    with opened(tmp_path / "state", AT_ONCE) as house:
        coming, key = pulling(house, folder, monkeypatch)
        house.operator().post("/v1/operator/witnesses", {"key": str(key)})
        receipt_of(house)
        size = coming.once().size
        before = (folder / SEEN).read_bytes()
        forged = Tree()
        for n in range(size + 3 if shown == "another history" else size - 1):
            forged.append(entry_of(CHANGE, bytes([n])))
        point = Checkpoint(house.service.log.name, len(forged), forged.root())
        answers = {
            "checkpoint": notes.signed(point, house.ledger.log_key).encode(),
            f"000.p/{len(forged)}": forged.tile(0, 0, len(forged)),
        }

        def lying(request: Request) -> bytes:
            return answers[request.full_url.partition("/log/")[2].removeprefix("tile/0/")]

        again, _ = pulling(house, folder, monkeypatch)
        monkeypatch.setattr("rescind.proof.pulling.sent", lying)
        for one in (coming, again):
            with pytest.raises(SecondHistory, match="not signed"):
                one.once()
        assert (folder / SEEN).read_bytes() == before
        evidence = json.loads((folder / "second-history.json").read_text())
        assert evidence["seen"]["size"] == size
        assert notes.opened(evidence["shown"], [log_key(house)])[0] == point
        monkeypatch.setattr("rescind.proof.pulling.sent", through(house))
        receipt_of(house)
        assert again.once().size > size  # the control: the true log goes on


def test_only_a_true_cosignature_is_kept(house: House, tmp_path: Path) -> None:
    known = open_witness(tmp_path / "known", "silo-0", [log_key(house)])
    house.operator().post("/v1/operator/witnesses", {"key": str(known.key)})
    receipt = house.caller().get("/log/checkpoint").text
    line = notes.signature_line(
        receipt.rpartition("\n\n")[0] + "\n", "silo-0", known._private, notes.WITNESS, 5
    )
    other = line[:-10] + ("A" if line[-10] != "A" else "B") + line[-9:]

    def bring(text: str) -> int:
        plain = {"content-type": "text/plain"}
        caller = house.caller()
        return caller.call("POST", "/log/cosignatures", content=text, headers=plain).status_code

    assert bring(receipt + other) == 422
    assert bring(receipt) == 422
    assert bring("nothing") == 422
    foreign = notes.signed(Checkpoint("other/log", 0, Tree().root()), house.ledger.log_key)
    assert bring(foreign + line) == 422
    assert house.service.log.witnesses.lines_of(0) == ""
    assert bring(receipt + line) == bring(receipt + line) == 200  # control, and again
    assert house.caller().get("/log/checkpoint").text == receipt + line
