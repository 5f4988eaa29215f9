"""From a run to proofs, by the command line alone: forget, log, witness, roster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from rescind.cli import main
from rescind.cli.witness import open_witness
from rescind.forgetting.receipt_log import open_log
from rescind.privacy import keys
from rescind.proof.log_folder import CHANGE, entry_of
from rescind.proof.notes import LOG, Key
from rescind.proof.tlog import Tree, leaf_hash
from rescind.proof.witness_http import server
from rescind.service.logged import router

RECIPE = """
title = "A sum to prove"

[data]
name = "synthetic"
users = 30
items = 25
interactions = 300

[sharing]
ratio = [1, 1, 1]
part = 0.5

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def rescind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Say:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.toml").write_text(RECIPE)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def good(answer: tuple[int, str]) -> str:
    assert answer[0] == 0, answer[1]
    return answer[1]


def test_a_person_leaves_and_anybody_can_check_it(rescind: Say, tmp_path: Path) -> None:
    good(rescind("run", "sum.toml", "--out", "one"))
    log_key = good(rescind("log", "key", "--name", "example.org/log")).strip()
    good(rescind("roster", "publish", "one", "--out", "public"))
    assert "VALID" in good(rescind("roster", "check", "public", "--log-key", log_key))
    good(rescind("roster", "mine", "one", "--user", "7", "--out", "mine.json"))
    (tmp_path / "kept").write_bytes((tmp_path / "public/log/checkpoint").read_bytes())
    said = good(rescind("roster", "check", "public", "--mine", "mine.json", "--run", "one"))
    assert "counted since" in said
    assert "the weights follow from it" in said

    said = good(rescind("forget", "one", "--withdraw", "7", "--audits", "none"))
    assert "In your log: one-forgot-1/receipt.tlog-proof" in said
    witness = open_witness(tmp_path / "silo", "silo-0", [Key.parse(log_key, LOG)])
    with server(witness, "127.0.0.1", 0) as door:
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{door.server_port}"
            good(rescind("roster", "publish", "one-forgot-1", "--out", "public"))
            good(rescind("log", "cosign", url, "--key", str(witness.key)))
            good(rescind("log", "prove", "one-forgot-1/receipt.json"))
        finally:
            door.shutdown()
            thread.join()
    proof = ["--proof", "one-forgot-1/receipt.tlog-proof"]
    trust = ["--log-key", log_key, "--witness", str(witness.key)]
    said = good(rescind("verify", "one-forgot-1/receipt.json", *proof, *trust))
    assert "silo-0 saw this log" in said
    asked = ["--mine", "mine.json", "--since", "kept", "--log-key", log_key]
    said = good(rescind("roster", "check", "public", *asked))
    assert "counted since" not in said
    assert said.count("revoked as entry") == len(json.loads(Path("mine.json").read_text()))
    assert "Not covered: whether the weights" in said
    code, said = rescind("roster", "check", "public", "--run", "one-forgot-1")
    assert code == 0, said
    assert "receipt" in good(rescind("log", "list"))
    assert "VALID" in good(rescind("log", "check", "--since", "kept"))


def test_what_cannot_be_checked_is_told_with_code_1_or_2(rescind: Say, tmp_path: Path) -> None:
    for words, told in (
        (("log", "check"), "holds no log"),
        (("log", "cosign", "nowhere", "--key", "x"), "holds no log"),
        (("roster", "check", "."), "holds no roster"),
        (("roster", "check", ".", "--log-key", "nonsense"), "NAME+ID+KEY"),
        (("log", "key", "--name", "two words"), "cannot name a log"),
        (("log", "add", "sum.toml"), "not JSON"),
        (("witness", "here", "--key", "nonsense", "--name", "w"), "NAME+ID+KEY"),
    ):
        code, said = rescind(*words)
        assert code in (1, 2), words
        assert told in said, (words, said)
        assert "Traceback" not in said
    good(rescind("log", "key"))
    code, said = rescind("log", "cosign", "ftp://x", "--key", "a+b")
    assert code == 2
    assert "NAME+ID+KEY" in said


def test_the_log_is_served_as_tiles() -> None:
    log = open_log()
    log.append([entry_of(CHANGE, n.to_bytes(2)) for n in range(300)], keys.log_key())
    app = FastAPI()
    app.include_router(router(log))
    client = TestClient(app)
    note = client.get("/log/checkpoint")
    assert (note.status_code, note.text) == (200, log.note)
    assert note.headers["content-type"] == "text/plain; charset=utf-8"
    full = client.get("/log/tile/0/000")
    part = client.get("/log/tile/0/001.p/44")
    assert "immutable" in full.headers["cache-control"]
    assert Tree(full.content + part.content).root() == log.checkpoint.root
    bundle = client.get("/log/tile/entries/001.p/44").content
    first = bundle[2 : 2 + int.from_bytes(bundle[:2])]
    assert leaf_hash(first) == part.content[:32]
    for path in ("0/001.p/45", "0/001", "1/000", "entries/001", "0/x", "9/000", "0/001.p/999"):
        assert client.get(f"/log/tile/{path}").status_code == 404, path
    assert client.get("/log/tile/1/000.p/1").content == log.tree.root(256)


def test_checking_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, rescind.cli, rescind.cli.log, rescind.forgetting.receipt_log, "
        "rescind.proof.roster, rescind.proof.witness_http, rescind.service.logged; "
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
