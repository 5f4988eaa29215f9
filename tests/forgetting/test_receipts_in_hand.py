"""What somebody reads who holds a receipt: its chain, the devices it means, what to do.

A run in one process has no devices of people.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.audits.finding import Finding
from rescind.cli import main
from rescind.core.claims import CONFIRMED
from rescind.core.records import Withdraw
from rescind.errors import DataError
from rescind.privacy import keys
from rescind.receipts.how_to_check import WITHOUT_THIS_PROGRAM
from rescind.receipts.log import log_if_possible
from rescind.receipts.page import SIMULATED, page
from rescind.receipts.receipt import Asked, Done, Receipt, canonical, issue, write
from rescind.receipts.verify import verify
from rescind.receipts.words import ROWS
from rescind.storage.events import event_text

OF_A_RUN = Done(
    {"name": "FedAvg"}, "Retrain", "L3", "", "", "", "sha256:04", 12, 340,
    {"requester": 1, "others": 40}, 3.0,
)  # fmt: skip
OF_ROWS = replace(OF_A_RUN, unlearning=ROWS, level="L1", rounds=0, client_rounds=0, online={})
NONE = Finding("audit", "UNAUDITED", note="No audit was requested.")
FIRST = "none, this is the first"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))
    return tmp_path / "keys"


@pytest.fixture
def rescind(monkeypatch, capfd):
    def ask(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["rescind", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capfd.readouterr()
        return int(end.value.code or 0), said.out + said.err

    return ask


def made(done: Done = OF_A_RUN, signer: Ed25519PrivateKey | None = None, **more) -> Receipt:
    asked = Asked("Erase", 3, 1, "blake2b:00")
    return issue(asked, done, [], [NONE], records=3, signer=signer, **more).receipt


def checked(receipt: Receipt, *given: bytes) -> tuple[bool, str]:
    found = verify(canonical(receipt), {keys.public_text(keys.signing_key()): "me"}, given)
    return found.valid, "; ".join(check.says for check in found.checks)


def test_the_page_of_stored_rows_has_no_lines_about_training() -> None:
    rows, run = page(made(OF_ROWS)), page(made())
    lines = ("Rounds", "client round", "Had to be online", "its settings are below")
    for line in (*lines, "Settings of the method"):
        assert line not in rows
        assert line in run, "control: of a run"
    for line in ("Forgot by", "rows deleted", "When", "Seconds"):
        assert line in rows, "what was done stays"


def test_receipts_about_rows_and_about_models_are_one_chain() -> None:
    run = made()
    rows = made(OF_ROWS, previous=canonical(run))
    last = made(previous=canonical(rows))
    assert checked(last, canonical(run), canonical(rows))[0]
    assert not checked(last, canonical(run))[0], "control: one is missing"
    changed = canonical(rows).replace(b'"L1"', b'"L3"')
    assert not checked(last, canonical(run), changed)[0], "control: a false one"


def test_the_page_of_a_run_in_one_process_says_once_that_devices_were_simulated() -> None:
    assert page(made()).replace("&#x27;", "'").count(SIMULATED) == 1
    silos = made(claims={CONFIRMED: "0, 1"})
    for other in (made(OF_ROWS), silos, made(replace(OF_A_RUN, online={}))):
        assert "simulated" not in page(other), "control: stored rows, silos, a service"


def test_a_comment_among_the_lines_to_type_fits_on_paper() -> None:
    lines = WITHOUT_THIS_PROGRAM.splitlines()
    assert any(line.startswith("#") for line in lines), "control: there is one"
    for line in lines:
        assert " #" not in line, "it wraps in print, and its second half is typed as a command"
        assert not line.startswith("#") or len(line) <= 38


def test_a_proof_that_is_none_is_refused(rescind, tmp_path) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(canonical(made()))
    assert rescind("verify", path, "--proof", tmp_path / "nothing")[0] == 2
    assert rescind("verify", path, "--proof", path)[0] == 1
    assert rescind("verify", path)[0] == 0, "control"


def test_an_empty_or_cut_receipt_is_called_so(rescind, tmp_path) -> None:
    path, whole = tmp_path / "receipt.json", canonical(made())
    for data in (b"", b"\n", whole[: len(whole) // 2], b"Dear reader", b"\xff\xfe"):
        path.write_bytes(data)
        code, said = rescind("verify", path)
        assert code == 1
        for word in ("Expecting", "Unterminated", "codec", "column"):
            assert word not in said, "no words of Python"
    path.write_bytes(whole)
    assert rescind("verify", path)[0] == 0, "control"


@pytest.fixture
def two(tmp_path) -> tuple[list[Path], list[Path]]:
    """Receipt, request, key and proof of two requests of one kind."""
    made = []
    for name, user in (("anna", 3), ("ben", 4)):
        folder, event = tmp_path / name, Withdraw(user)
        folder.mkdir()
        key = secrets.token_bytes(32)
        asked = Asked("Withdraw", 3, 1, event.digest(key))
        path = folder / "receipt.json"
        secret = write(issue(asked, OF_A_RUN, [], [NONE], records=3, key=key), path)
        (folder / "request.json").write_text(event_text(event))
        assert log_if_possible(path)
        made.append([path, folder / "request.json", secret, path.with_suffix(".tlog-proof")])
    return made[0], made[1]


def test_files_of_two_receipts_do_not_verify(rescind, two) -> None:
    (path, request, key, proof), (_, *others) = two
    own = ["verify", path, "--event", request, "--event-key", key, "--proof", proof]
    assert rescind(*own)[0] == 0, "control: all of one receipt"
    for at in (3, 5, 7):
        words = [*own]
        words[at] = others[at // 2 - 1]
        assert rescind(*words)[0] == 1
    text = proof.read_text()
    proof.write_text(text.replace(text.splitlines()[-1][-12:], "AAAAAAAAAAA="))
    assert rescind(*own)[0] == 1, "not signed by the log"


def test_a_sealed_part_that_contradicts_the_open_one_fails(rescind, two, monkeypatch) -> None:
    (path, _, key, _), _ = two

    def contradicts(*_: object) -> None:
        raise DataError("its sealed part contradicts what it says in the open.")

    assert rescind("verify", path, "--event-key", key)[0] == 0, "control"
    monkeypatch.setattr("rescind.receipts.verify.opened", contradicts)
    assert rescind("verify", path, "--event-key", key)[0] == 1
