"""From a run to proofs, by the command line alone: forget, log, witness, roster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import command_line
from requesting import unpacked
from rescind.cli.witness import witnessing
from rescind.errors import DataError
from rescind.privacy import keys
from rescind.proof.log_folder import CHANGE, LogFolder, entry_of
from rescind.proof.notes import Checkpoint, signed
from rescind.proof.roster import Public
from rescind.proof.tlog import Tree, leaf_hash
from rescind.receipts.log import open_log
from rescind.service.log_files import log_routes

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
def rescind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.toml").write_text(RECIPE)

    return command_line.rescind


def good(answer: tuple[int, str]) -> str:
    assert answer[0] == 0, answer[1]
    return answer[1]


def test_a_person_leaves_and_anybody_can_check_it(
    rescind: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good(rescind("run", "sum.toml", "--out", "one"))
    log_key = good(rescind("log", "key", "--name", "example.org/log")).strip()
    good(rescind("roster", "publish", "one", "--out", "public"))
    assert "VALID" in good(rescind("roster", "check", "public", "--log-key", log_key))
    good(rescind("roster", "mine", "one", "--user", "7", "--out", "mine.json"))
    hers = Path("mine.json").read_bytes()
    code, said = rescind("roster", "mine", "one", "--user", "8", "--out", "mine.json")
    assert (code, "Choose another name with --out" in said) == (2, True)
    assert Path("mine.json").read_bytes() == hers, "nothing was written"
    good(rescind("roster", "mine", "one", "--user", "7", "--out", "mine.json"))  # the same again
    good(rescind("roster", "mine", "one", "--user", "8", "--out", "mine-2.json"))
    (tmp_path / "kept").write_bytes((tmp_path / "public/log/checkpoint").read_bytes())
    said = good(rescind("roster", "check", "public", "--mine", "mine.json", "--run", "one"))
    assert "counted since" in said
    assert "the weights follow from it" in said

    said = good(rescind("forget", "one", "--user", "7", "--json"))
    (done,) = json.JSONDecoder().raw_decode(said)[0]
    receipt = str(unpacked(done["id"], tmp_path / "hers") / "receipt.json")
    code, said = rescind("roster", "check", "public", "--run", "nowhere")
    assert (code, "NOT VALID" in said) == (2, False), "nothing was found wrong with the roster"
    code, said = rescind("roster", "check", "public", "--run", "one")
    assert code == 1, "control: the roster does not fit this run"
    assert "NOT VALID: the run's sum is not the published one" in said
    again = said.rstrip().partition("If a request was answered since: rescind ")[2]
    assert again == "roster publish one --out public"
    good(rescind(*again.split()))
    with witnessing(tmp_path / "silo", "silo-0", [log_key], "127.0.0.1", 0):
        said = capsys.readouterr().out
        witness = re.search(r"witness (silo-0\S+)", said)[1]
        url = re.search(r"http://127.0.0.1:\d+", said)[0]
        by_silo = ["roster", "check", "public", "--log-key", log_key, "--witness", witness]
        good(rescind("log", "cosign", url, "--key", witness))
        code, said = rescind(*by_silo)
        assert code == 1, "control: the public folder does not know of it"
        assert "not cosigned by silo-0" in said
        assert "of a roster, for its newer folder (rescind log cosign with --public)" in said
        good(rescind("log", "cosign", url, "--key", witness, "--public", "public"))
        said = good(rescind(*by_silo))
        assert re.search(r"is cosigned by silo-0 on 20\d\d-\d\d-\d\dT\S+Z\n", said), (
            "an old copy shows"
        )
        checked = good(rescind("log", "check", "--witness", witness))
        assert re.search(r"  cosigned by silo-0 on 20\d\d-\d\d-\d\dT\S+Z\n", checked)
        good(rescind("log", "key", "--log", "other", "--name", "example.org/other"))
        with pytest.raises(DataError, match="shows another log"):
            Public.read(Path("public")).show(LogFolder(Path("other")))
        good(rescind("log", "prove", receipt))
    proof = ["--proof", receipt.replace(".json", ".tlog-proof")]
    trust = ["--log-key", log_key, "--witness", witness]
    said = good(rescind("verify", receipt, *proof, *trust))
    assert "silo-0 saw this log" in said
    asked = ["--mine", "mine.json", "--since", "kept", "--log-key", log_key]
    said = good(rescind("roster", "check", "public", *asked))
    assert "counted since" not in said
    assert said.count("revoked as entry") == len(json.loads(Path("mine.json").read_text()))
    for what in ("which sum is in use", "whether the weights in use", "whose line is whose"):
        assert what in said.partition("Not covered: ")[2]
    code, said = rescind("roster", "check", "public", "--run", "one")
    assert code == 0, said
    assert "Not covered" not in said, "control: here the sum in use was compared"
    assert "receipt" in good(rescind("log", "list"))
    said = good(rescind("roster", "check", "public", "--since", "kept"))
    assert "  the log begins with what kept signed\n" in said
    assert "begins with" not in good(rescind("roster", "check", "public")), "control"
    said = good(rescind("log", "check", "--since", "kept"))
    assert "VALID" in said
    assert "no witness was named" in said, "one signed, but nobody asked whether"
    assert "cosigned by silo-0" in good(rescind("log", "check", "--witness", witness))
    stranger = ["log", "check", "--log", "public/log", "--log-key", log_key, "--since"]
    good(rescind(*stranger, "kept"))
    good(rescind("forget", "one", "--user", "8"))
    # The log has grown, and the witness is away: the older proof is the better one.
    assert "which has the signature of silo-0" in good(rescind("log", "prove", receipt))
    good(rescind("verify", receipt, *proof, *trust))
    good(rescind("log", "prove", receipt, "--out", "newest"))
    checked = ("verify", receipt, "--proof", "newest", *trust)
    assert rescind(*checked)[0] == 1, "control: what would have been written over it"
    Path("newest").write_text("not a proof")
    good(rescind("log", "prove", receipt, "--out", "newest"))
    assert "not a proof" not in Path("newest").read_text(), "control: only a better proof is kept"
    (tmp_path / "newer").write_bytes((keys.folder() / "log" / "checkpoint").read_bytes())
    code, said = rescind(*stranger, "newer")
    assert code == 1
    assert "and your checkpoint" in said
    log = str(keys.folder() / "log")
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "stranger"))
    for words in (("roster", "check", "public"), ("log", "check", "--log", log)):
        code, said = rescind(*words)
        assert code == 2, "nothing is wrong with it: the key is missing"
        assert "no log key was given" in said
        good(rescind(*words, "--log-key", log_key))


def test_what_cannot_be_checked_is_told_with_code_1_or_2(rescind: Say, tmp_path: Path) -> None:
    for words in (
        ("log", "check"),
        ("log", "cosign", "nowhere", "--key", "x"),
        ("roster", "check", "."),
        ("roster", "check", ".", "--mine", "no"),
        ("log", "check", "--since", "no"),
        ("log", "key", "--name", "two words"),
        ("log", "add", "sum.toml"),
        ("witness", "here", "--key", "nonsense", "--name", "w"),
    ):
        code, said = rescind(*words)
        assert code in (1, 2), words
        assert "Traceback" not in said
    good(rescind("log", "key"))
    assert rescind("log", "cosign", "ftp://x", "--key", "a+b")[0] == 2


PAGE = "<!doctype html><title>404</title>"


def test_a_wrong_file_of_the_checker_is_no_fault_of_the_log(rescind: Say, tmp_path: Path) -> None:
    good(rescind("run", "sum.toml", "--out", "one"))
    key = good(rescind("log", "key", "--name", "example.org/log"))
    (tmp_path / "log.pub").write_text(key)
    good(rescind("roster", "publish", "one", "--out", "public"))
    note = Path("public/log/checkpoint").read_text()
    log, roster = ("log", "check"), ("roster", "check", "public", "--log-key", "log.pub")
    Path("files").mkdir()
    for name, text in (("empty", ""), ("page", PAGE), ("cut", note[:40])):
        path = f"files/{name}"
        Path(path).write_text(text)
        for command in (log, roster):
            code, said = rescind(*command, "--since", path)
            assert (code, "NOT VALID" in said) == (2, False), said
            assert f"error: {path} is no checkpoint of a log: " in said
            assert "Give a copy of public/log/checkpoint" in said
        code, said = rescind(*roster, "--mine", path)
        assert (code, "NOT VALID" in said) == (2, False), said
        assert path in said
    for words, told in (
        (("--witness", "files/empty"), "NAME+ID+KEY"),
        (("--silos", "files/page"), "not the public keys of silos"),
        (("--silos", "files/page", "--after", "files/page"), "files/page"),
    ):
        code, said = rescind(*roster, *words)
        assert (code, "NOT VALID" in said) == (2, False), said
        assert told in said
    for folder in ("nofolder", "files"):
        code, said = rescind("roster", "check", folder, "--log-key", "log.pub")
        assert (code, "NOT VALID" in said) == (2, False), said
        assert f"error: {folder} holds no roster" in said


def test_what_the_operator_gave_is_not_valid(rescind: Say, tmp_path: Path) -> None:
    """The control: a kept checkpoint that contradicts the log, or a folder in parts."""
    good(rescind("run", "sum.toml", "--out", "one"))
    good(rescind("log", "key", "--name", "example.org/log"))
    good(rescind("roster", "publish", "one", "--out", "public"))
    private = keys.log_key()
    Path("kept").write_text(signed(Checkpoint("example.org/log", 2, bytes(32)), private))
    Path("foreign").write_text(signed(Checkpoint("example.org/else", 2, bytes(32)), private))
    for file, told in (
        ("kept", "NOT VALID: TWO HISTORIES: this log signed 2 entries"),
        ("foreign", "NOT VALID: your checkpoint from before: the checkpoint is not signed by"),
    ):
        for command in (("log", "check"), ("roster", "check", "public")):
            code, said = rescind(*command, "--since", file)
            assert code == 1, said
            assert told in said
    Path("public/roster.bin").unlink()
    code, said = rescind("roster", "check", "public")
    assert code == 1
    assert "NOT VALID: public holds no roster" in said


def test_the_log_is_served_as_tiles() -> None:
    log = open_log()
    log.append([entry_of(CHANGE, n.to_bytes(2)) for n in range(300)], keys.log_key())
    app = FastAPI()
    app.include_router(log_routes(log))
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
        "import sys, rescind.cli, rescind.cli.log, rescind.receipts.log, "
        "rescind.proof.roster, rescind.proof.witness_http, rescind.service.log_files; "
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
