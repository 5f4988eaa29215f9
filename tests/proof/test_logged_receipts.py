"""Receipts in a log: proofs that hold offline, and that no changed byte survives."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from shutil import which

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.cli import main
from rescind.core.records import Erase, Records
from rescind.privacy import keys
from rescind.proof.log_folder import CHANGE, ENTRIES, RECEIPT, LogFolder, entry_of
from rescind.proof.notes import LOG, WITNESS, Key
from rescind.proof.witness import Witness, request_body
from rescind.receipts.log import (
    check_proof,
    key_of,
    log_if_possible,
    log_receipt,
    open_log,
    proof_path,
)
from rescind.receipts.receipt import Done, canonical, issue
from rescind.receipts.verify import verify as verified

DONE = Done(
    method={"name": "Gram"}, unlearning="Subtract", level="L3", world_before="a", world_after="b",
    model_before="c", model_after="d", rounds=1, client_rounds=1, online={}, seconds=1,
)  # fmt: skip


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    path = tmp_path / "receipt.json"
    issued = issue(Erase(Records.of([3], [1], [100])), DONE, (), ())
    path.write_bytes(canonical(issued.receipt))
    return path


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    log = open_log()
    Witness.start(tmp_path / "witness")
    private = Ed25519PrivateKey.generate()
    return Witness(tmp_path / "witness", "silo-0", private, [key_of(log)], lambda: 1.7e9)


def cosign(log: LogFolder, witness: Witness) -> None:
    old = witness.seen(log.checkpoint.origin).size
    path = log.tree.consistency(old, log.checkpoint.size)
    reply = witness.add_checkpoint(request_body(old, path, log.note))
    assert reply.status == 200, reply
    log.cosigned(reply.body, witness.key)


def logged(receipt: Path, witness: Witness) -> tuple[bytes, bytes, Key, Key]:
    """A receipt that is the sixth of nine entries, with its cosigned proof."""
    log = open_log()
    log.append([entry_of(CHANGE, bytes([n])) for n in range(5)], keys.log_key())
    log_receipt(receipt, log)
    log.append([entry_of(CHANGE, bytes([n])) for n in range(5, 8)], keys.log_key())
    cosign(log, witness)
    log_receipt(receipt, log)
    return receipt.read_bytes(), proof_path(receipt).read_bytes(), key_of(log), witness.key


def holds(data: bytes, proof: bytes, log: Key, *witnesses: Key) -> bool:
    return all(check.holds for check in check_proof(data, proof, log, witnesses))


def test_a_proof_says_where_the_receipt_is_and_who_saw_it(receipt: Path, witness: Witness) -> None:
    data, proof, log, seen_by = logged(receipt, witness)
    said = [check.says for check in check_proof(data, proof, log, [seen_by])]
    assert said[0].startswith("it is entry 6 of 9 in the log rescind/")
    assert said[1] == "silo-0 saw this log on 2023-11-14T22:13:20Z and cosigned it"
    assert len(proof) < 1_200
    assert len(data) + len(proof) < 8_000


def test_no_changed_byte_of_receipt_or_proof_passes(receipt: Path, witness: Witness) -> None:
    data, proof, log, seen_by = logged(receipt, witness)
    assert holds(data, proof, log, seen_by)
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert not holds(bad, proof, log, seen_by), at
    for at in range(len(proof)):
        for flip in (1, 0x80):
            bad = proof[:at] + bytes([proof[at] ^ flip]) + proof[at + 1 :]
            assert not holds(data, bad, log, seen_by), (at, flip)
    for at in range(0, len(proof), 3):
        assert not holds(data, proof[:at], log, seen_by), at
        assert not holds(data, proof[:at] + proof[at + 1 :], log, seen_by), at


def verify(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        run("verify", *words)
    return int(end.value.code or 0)


def run(*words: str) -> None:
    import sys

    old, sys.argv = sys.argv, ["rescind", *words]
    try:
        main()
    finally:
        sys.argv = old


def test_the_command_line_checks_a_proof_offline(
    receipt: Path, witness: Witness, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, log, seen_by = logged(receipt, witness)
    proof = str(proof_path(receipt))
    given = [str(receipt), "--proof", proof]
    assert verify(*given, "--log-key", str(log), "--witness", str(seen_by)) == 0
    assert "entry 6 of 9" in capsys.readouterr().out
    assert verify(*given) == 0  # the operator's own log
    assert "name a witness" in capsys.readouterr().out
    stranger = Key("silo-1", seen_by.public, WITNESS)
    assert verify(*given, "--witness", str(stranger)) == 1
    said = capsys.readouterr().out
    assert "not cosigned by silo-1" in said
    assert "Ask the operator for a newer proof (they give rescind log cosign, then" in said
    assert verify(str(receipt), "--log-key", str(log)) == 2
    assert verify(*given, "--log-key", "nonsense") == 2
    told = capsys.readouterr().err
    assert "signing key" not in told
    signing, published = keys.own_public_key(), keys.folder() / "signing.pub"
    for one in (str(published), str(signing)):
        assert verify(*given, "--log-key", one) == 2
    proof_path(receipt).write_text(proof_path(receipt).read_text().replace("index 5", "index 4"))
    assert verify(*given, "--log-key", str(log)) == 1


def script_of_the_page() -> str:
    told = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    script = told.split("### A proof, without this program")[1].split("```bash\n")[1]
    return script.split("```")[0]


SHELLS = pytest.mark.parametrize("shell", ["bash", "dash", "sh"])


def skip_without(shell: str) -> None:
    for program in ("openssl", "sha256sum", "base64", shell):
        if not which(program):
            pytest.skip(f"{program} is not installed")


@SHELLS
@pytest.mark.parametrize(("size", "place"), [(1, 0), (2, 1), (3, 2)], ids=str)
def test_the_script_of_the_page_holds_for_the_first_receipts_of_a_log(
    receipt: Path, witness: Witness, tmp_path: Path, size: int, place: int, shell: str
) -> None:
    skip_without(shell)
    log = open_log()
    for number in range(size):
        if number == place:
            log_receipt(receipt, log)
        else:
            log.append([entry_of(CHANGE, bytes([number]))], keys.log_key())
    cosign(log, witness)
    log_receipt(receipt, log)
    assert (log.checkpoint.size, log.proof(entry_of(RECEIPT, receipt.read_bytes())).index) == (
        size,
        place,
    )
    names = {**os.environ, "LOG_KEY": str(key_of(log)), "WITNESS_KEY": str(witness.key)}

    def checked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shell, "-c", script_of_the_page()], cwd=tmp_path, capture_output=True, check=False,
            env=names, text=True,
        )  # fmt: skip

    done = checked()
    assert done.returncode == 0, done.stderr
    assert "In the log, and seen by the witness" in done.stdout
    names["WITNESS_KEY"] = ""
    alone = checked()
    assert (alone.returncode, alone.stdout.splitlines()[-1]) == (
        0,
        "In the log. No witness was asked.",
    )
    receipt.write_bytes(receipt.read_bytes().replace(b"L3", b"L2"))
    refused = checked()
    assert refused.returncode != 0, "control: a changed receipt"
    assert refused.stdout.startswith("NOT shown: that the receipt is in the log")


@SHELLS
def test_the_page_tells_how_to_check_with_openssl_and_sha256sum(
    receipt: Path, witness: Witness, tmp_path: Path, shell: str
) -> None:
    skip_without(shell)
    script = script_of_the_page()
    data, proof, log, seen_by = logged(receipt, witness)
    names = {**os.environ, "LOG_KEY": str(log), "WITNESS_KEY": str(seen_by)}

    def checked(receipt: bytes, proof: bytes, **other: str) -> str:
        """Return the last line: it must not be taken for a good one if the script failed."""
        (tmp_path / "receipt.json").write_bytes(receipt)
        (tmp_path / "receipt.tlog-proof").write_bytes(proof)
        told = subprocess.run(
            [shell, "-c", script], cwd=tmp_path, capture_output=True, check=False,
            env={**names, **other}, text=True,
        )  # fmt: skip
        *before, last = told.stdout.splitlines()
        assert not before, "one line is the verdict"
        assert last.startswith("In the log") == (told.returncode == 0), told.stderr
        return last

    no_entry, no_log, no_witness = (
        f"NOT shown: that {what}" for what in ("the receipt is in", "the log signed", "the witness")
    )
    assert checked(data, proof).startswith("In the log, and seen by the witness")
    assert checked(data.replace(b"L3", b"L2"), proof).startswith(no_entry)
    assert checked(data, proof.replace(b"index 5", b"index 4")).startswith(no_entry)
    assert checked(data, b"").startswith(no_entry)
    lines = proof.split(b"\n")
    for n, missing in ((5, no_entry), (-3, no_log), (-2, no_witness)):  # a hash, the signatures
        other = bytearray(lines[n])
        other[-20] = ord("A") if other[-20] != ord("A") else ord("B")
        changed = b"\n".join([*lines[:n], bytes(other), *lines[n:][1:]])
        assert checked(data, changed).startswith(missing), n
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    assert checked(data, proof, LOG_KEY=str(Key(log.name, public))).startswith(no_log)
    assert checked(data, proof, LOG_KEY="").startswith(no_log)
    for name in (seen_by.name, "somebody else"):
        stranger = str(Key(name, public, WITNESS))
        assert checked(data, proof, WITNESS_KEY=stranger).startswith(no_witness), name
    assert checked(data, proof, WITNESS_KEY=str(log)).startswith(no_witness), "it is no witness"


def test_a_damaged_log_does_not_stop_a_receipt_and_is_told_later(
    receipt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log()
    log.append([entry_of(CHANGE, bytes([n])) for n in range(5)], keys.log_key())
    whole = (log.folder / ENTRIES).read_bytes()
    (log.folder / ENTRIES).write_bytes(whole[:66])
    assert not log_if_possible(receipt)
    assert not proof_path(receipt).exists()
    with pytest.raises(SystemExit, match="2"):
        run("log", "add", str(receipt))
    assert "Restore the folder" in capsys.readouterr().err
    (log.folder / ENTRIES).write_bytes(whole)
    assert log_if_possible(receipt)


def test_the_vectors_for_other_programs() -> None:
    # `vectors.json` is for whoever checks receipts in another language, such as the page.
    table = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
    data, proof = table["receipt"].encode(), table["proof"].encode()
    log, witness = Key.parse(table["log_key"], LOG), Key.parse(table["witness_key"], WITNESS)
    assert verified(data, {table["signing_key"]: "the operator"}).valid
    assert holds(data, proof, log, witness)
    assert len(table["bad_proofs"]) == 9
    for name, bad in table["bad_proofs"].items():
        assert not holds(data, bad.encode(), log, witness), name
