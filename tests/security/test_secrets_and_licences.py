"""No key in what is printed, logged or handed out; every needed package under an open licence."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from requesting import unpacked
from rescind.cli import main
from rescind.cli.doctor import Licence, licences
from rescind.privacy import keys
from rescind.privacy.sealing import run_key

TINY: dict[str, Any] = {
    "data": {"name": "synthetic", "users": 30, "items": 40, "interactions": 400},
    "method": {"name": "FedAvg"},
    "run": {"rounds": 1, "k": [5], "measure": "NDCG@5"},
}


def spelled(secret: bytes) -> list[bytes]:
    """The ways in which somebody might write a key."""
    plain, url = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
    digits = secret.hex().encode()
    return [
        secret,
        digits,
        digits.upper(),
        plain.rstrip(b"="),
        url.rstrip(b"="),
        repr(secret).encode(),
    ]


def leaks(secrets: dict[str, bytes], texts: dict[str, bytes]) -> list[tuple[str, str]]:
    """Where a key stands, as (key, place)."""
    return [
        (name, place)
        for name, secret in secrets.items()
        for place, text in texts.items()
        if any(form in text for form in spelled(secret))
    ]


def test_no_key_is_printed_logged_or_left_outside_its_file(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("RESCIND_HOME", str(home))
    caplog.set_level(logging.DEBUG)
    printed = b""

    def rescind(*words: str) -> None:
        nonlocal printed
        monkeypatch.setattr("sys.argv", ["rescind", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed += "".join(capfd.readouterr()).encode()
        assert end.value.code in (None, 0, 1, 2)

    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TINY))
    rescind("run", "tiny.toml", "--out", "run")
    rescind("forget", "run", "--user", "1")
    (answer,) = (home / "answers").glob("*.zip")
    unpacked(answer.stem, tmp_path / "papers")
    (tmp_path / "papers" / "receipt.key").chmod(0o600)
    papers = tmp_path / "papers"
    receipt, key = str(papers / "receipt.json"), str(papers / "receipt.key")
    rescind("verify", receipt)
    rescind("verify", receipt, "--event-key", key, "--json")
    rescind("verify", receipt, "--event", str(papers / "request.json"), "--event-key", key)
    rescind("verify", receipt, "--event-key", str(home / "keys" / "erasure.key"))
    rescind("verify", receipt, "--key", str(home / "keys" / "signing.key"))  # by mistake
    rescind("forget", "run", "--user", "1")
    signing = keys.signing_key()
    requester = keys.read_secret(Path(key))
    secrets = {
        "signing.key": signing.private_bytes_raw(),
        "erasure.key": keys.erasure_key(),
        "receipt.key": requester,
        "run.key": run_key(requester),
    }
    texts = {"printed": printed, "logged": caplog.text.encode()}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(tmp_path))] = path.read_bytes()
    found = leaks(secrets, texts)
    own = {("erasure.key", "home/keys/erasure.key"), ("receipt.key", "papers/receipt.key")}
    ledger = {("run.key", "home/ledger.db"), ("run.key", "home/keys/ledger-copy.db")}
    ledger.add(("receipt.key", f"home/answers/{answer.name}"))
    assert set(found) - ledger == own, "each key in its own file, the signing key there as PEM"
    for _, place in {("erasure.key", "home/keys/erasure.key"), *(set(found) & ledger)}:
        assert (tmp_path / place).stat().st_mode & 0o777 == 0o600, place


def test_the_search_for_keys_finds_them():
    secret = bytes(range(7, 39))
    for form in spelled(secret):
        assert leaks({"key": secret}, {"log": b"... " + form + b" ..."}) == [("key", "log")]
    assert leaks({"key": secret}, {"log": b"nothing"}) == []


def test_every_needed_package_has_an_open_licence():
    found = {one.package: one for one in licences()}
    assert {"torch", "numpy", "cryptography", "pyarrow", "click"} <= found.keys()
    assert [one for one in found.values() if not one.allowed] == []


@pytest.mark.parametrize(
    "text", ["", "UNKNOWN", "GPL-3.0-only", "AGPLv3", "LGPL-2.1", "MIT AND GPL-2.0", "SSPL-1.0"]
)
def test_other_licences_are_not_taken_for_open(text):
    assert not Licence("package", "1.0", text).allowed


def test_the_command_lists_the_licences(monkeypatch, capfd):
    for words in (["--licences"], ["--licences", "--json"]):
        monkeypatch.setattr("sys.argv", ["rescind", "doctor", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out = capfd.readouterr().out
        assert end.value.code in (None, 0), out
        assert "cryptography" in out
    assert all(one["allowed"] for one in json.loads(out))
