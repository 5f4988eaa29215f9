"""Keys: made once, read by nobody else, the same for everybody who asks at the same time."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from rescind.errors import ConfigError
from rescind.privacy import keys


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "deep" / "home").mkdir(parents=True)
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "deep" / "home"))
    return tmp_path / "deep" / "home" / "keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_the_users_own_unless_named(tmp_path, monkeypatch):
    monkeypatch.delenv("RESCIND_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    usual = tmp_path / ".local" / "share" / "rescind" / "keys"
    assert keys.folder() == usual
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert keys.folder() == tmp_path / "xdg" / "rescind" / "keys"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert keys.folder() == usual
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "other"))
    assert keys.folder() == tmp_path / "other" / "keys"


def test_who_has_no_folder_of_keys_says_nothing_about_the_signer(home, monkeypatch):
    keys.say_of_signer("operator", "Example Ltd")
    assert keys.about_signer() == {"operator": "Example Ltd"}

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(keys, "folder", homeless)
    assert keys.about_signer() == {}


def test_the_signing_key_is_made_once_and_for_its_owner_only(home):
    before = os.umask(0)  # the modes must not depend on the user's umask
    try:
        first = keys.public_text(keys.signing_key())
    finally:
        os.umask(before)
    assert mode(home) == 0o700
    assert mode(home / "signing.key") == 0o600
    assert mode(home / "signing.pub") == 0o644, "it is there to be given away"
    assert (home / "signing.key").read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert keys.public_text(keys.signing_key()) == first
    assert keys.public_key(str(home / "signing.pub")) == first
    assert sorted(path.name for path in home.iterdir()) == ["signing.key", "signing.pub"]


def test_a_strict_umask_also_hides_the_public_key(home):
    before = os.umask(0o077)
    try:
        keys.signing_key()
    finally:
        os.umask(before)
    assert mode(home / "signing.pub") == 0o600


def test_asking_for_the_own_public_key_makes_nothing(home):
    assert keys.own_public_key() is None
    assert not home.exists()
    made = keys.public_text(keys.signing_key())
    assert keys.own_public_key() == made


def test_the_erasure_key_is_another_secret_and_stays(home):
    secret = keys.erasure_key()
    assert len(secret) == 32
    assert keys.erasure_key() == secret
    assert mode(home / "erasure.key") == 0o600
    keys.signing_key()
    assert (home / "erasure.key").read_bytes() != (home / "signing.key").read_bytes()


def test_two_people_have_two_keys(tmp_path, monkeypatch):
    seen = set()
    for name in ("a", "b"):
        monkeypatch.setenv("RESCIND_HOME", str(tmp_path / name))
        seen |= {keys.erasure_key().hex(), keys.public_text(keys.signing_key())}
    assert len(seen) == 4


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_key_that_others_may_read_is_refused(home, wrong):
    keys.signing_key()
    keys.erasure_key()
    for name, ask in (("signing.key", keys.signing_key), ("erasure.key", keys.erasure_key)):
        (home / name).chmod(wrong)
        with pytest.raises(ConfigError, match=f"chmod 600 .*{name}"):
            ask()
        (home / name).chmod(0o600)
        ask()


def test_a_folder_that_others_may_write_to_is_refused(home):
    home.mkdir(parents=True)
    home.chmod(0o770)
    with pytest.raises(ConfigError, match="chmod 700"):
        keys.signing_key()
    assert not list(home.iterdir())


@pytest.mark.parametrize("text", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_broken_key_is_said_and_never_replaced(home, text):
    home.mkdir(parents=True, mode=0o700)
    for name, ask in (("signing.key", keys.signing_key), ("erasure.key", keys.erasure_key)):
        (home / name).write_bytes(text)
        (home / name).chmod(0o600)
        with pytest.raises(ConfigError, match=name):
            ask()
        assert (home / name).read_bytes() == text


def test_all_who_ask_at_once_get_one_key(tmp_path, monkeypatch):
    # Threads: their system calls race as those of processes do, and they all start within a tick.
    for trial in range(20):
        monkeypatch.setenv("RESCIND_HOME", str(tmp_path / str(trial)))
        home = tmp_path / str(trial) / "keys"
        gate = Barrier(8)

        def ask(gate=gate) -> tuple[bytes, str]:
            gate.wait()
            return keys.erasure_key(), keys.public_text(keys.signing_key())

        with ThreadPoolExecutor(8) as crowd:
            said = {one.result() for one in [crowd.submit(ask) for _ in range(8)]}
        assert said == {(keys.erasure_key(), keys.own_public_key())}
        assert not list(home.glob(".*"))


def test_whoever_comes_second_takes_the_key_of_the_first(home, monkeypatch):
    # The other process makes its key between our look and our link: ours must not win.
    home.mkdir(parents=True, mode=0o700)
    theirs, link = "ab" * 32, os.link

    def too_late(source, target):
        Path(target).write_text(theirs)
        Path(target).chmod(0o600)
        link(source, target)

    monkeypatch.setattr(os, "link", too_late)
    assert keys.erasure_key().hex() == theirs
    assert [path.name for path in home.iterdir()] == ["erasure.key"]


def test_a_requesters_key_is_written_once_with_mode_600(tmp_path):
    path, secret = tmp_path / "receipt.key", keys.new_secret()
    keys.write_secret(path, secret)
    assert mode(path) == 0o600
    assert keys.read_secret(path) == secret
    with pytest.raises(ConfigError, match="exists already"):
        keys.write_secret(path, keys.new_secret())
    assert keys.read_secret(path) == secret


def test_public_keys_are_taken_as_words_text_or_pem(home, tmp_path):
    from cryptography.hazmat.primitives import serialization as form

    key = keys.signing_key()
    text, pem = keys.public_text(key), tmp_path / "public.pem"
    pem.write_bytes(
        key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )
    assert keys.public_key(text) == keys.public_key(str(pem)) == text
    for wrong in (text[:-1], text.upper(), "ed25519:" + "g" * 64, str(tmp_path), "no/such/file"):
        with pytest.raises(ConfigError):
            keys.public_key(wrong)
    with pytest.raises(ConfigError, match="private key is never needed"):
        keys.public_key(str(home / "signing.key"))
