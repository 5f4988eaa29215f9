"""Keys and certificates: readable by their owner only, tested with a real TLS handshake."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from rescind.cli.flower import app
from rescind.errors import ConfigError
from rescind.flower import deploy
from rescind.flower.certificates import make_kit
from rescind.flower.silo.identity import check_place

pytestmark = pytest.mark.flower


def tls_error(server: Path, ca: Path, name: str) -> str | None:
    """Connect with this authority. Return the error of the certificate check, or None."""
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(server / "server.pem", server / "server.key")
    one, other = socket.socketpair()
    thread = threading.Thread(target=lambda: _serve(here, one))
    thread.start()
    try:
        there = ssl.create_default_context(cafile=str(ca))
        with there.wrap_socket(other, server_hostname=name):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        other.close()
        thread.join()


def _serve(context: ssl.SSLContext, plain: socket.socket) -> None:
    try:
        context.wrap_socket(plain, server_side=True).close()
    except (OSError, ssl.SSLError):
        plain.close()


def test_a_silo_accepts_the_server_of_its_kit_and_no_other(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "one", 2, ["server.example", "127.0.0.1"])
    other = make_kit(tmp_path / "two", 1, ["server.example"])
    ca = kit / "silo-1" / "ca.pem"
    assert tls_error(kit / "server", ca, "server.example") is None
    assert tls_error(kit / "server", ca, "127.0.0.1") is None
    assert "mismatch" in str(tls_error(kit / "server", ca, "elsewhere.example"))
    assert tls_error(other / "server", ca, "server.example") is not None


def test_every_silo_has_another_key(tmp_path: Path) -> None:
    kit, seen = make_kit(tmp_path / "kit", 3, ["localhost"]), set()
    for silo in range(3):
        path = kit / f"silo-{silo}" / "node.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        private = load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        public = load_ssh_public_key((kit / "server" / f"silo-{silo}.pub").read_bytes())
        assert private.public_key() == public
        seen.add(private.private_numbers().private_value)
    assert len(seen) == 3
    for secret in (
        kit / "ca.key",
        kit / "server" / "server.key",
        kit / "operator" / "operator.key",
    ):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("silos", "hosts", "says"),
    [(0, ["localhost"], "must be at least 1"), (1, [], "at least one --host")],
)
def test_invalid_settings_make_no_kit(
    silos: int, hosts: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_kit(tmp_path / "kit", silos, hosts)
    assert not (tmp_path / "kit").exists()


def test_a_kit_is_not_overwritten(tmp_path: Path) -> None:
    make_kit(tmp_path / "kit", 1, ["localhost"])
    with pytest.raises(ConfigError, match="not empty"):
        make_kit(tmp_path / "kit", 1, ["localhost"])


RUN, UP = ["run", "--silos", "2"], ["up"]
JOIN = ["join", "--silo", "1/2"]


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [
        (RUN, "server", "the server's part of a kit, and this command needs the operator's"),
        (RUN, "silo-1", "the silo's part of a kit, and this command needs the operator's"),
        (RUN, "", "a whole kit"),
        (UP, "operator", "the operator's part of a kit, and this command needs the server's"),
        (JOIN, "server", "the server's part of a kit, and this command needs the silo's"),
    ],
)
def test_another_part_of_a_kit_is_named_with_the_right_one(
    command: list[str], given: str, says: str, tmp_path: Path
) -> None:
    kit = make_kit(tmp_path / "kit", 2, ["localhost"])
    right = {"run": "operator", "up": "server", "join": "silo-1"}[command[0]]
    recipe = [] if command == UP else [str(tmp_path / "none.toml")]
    done = CliRunner().invoke(app, [*command, *recipe, "--kit", str(kit / given)])
    assert isinstance(done.exception, ConfigError)
    assert f"{kit / given} is {says}" in str(done.exception)
    assert f"--kit {kit / right}" in str(done.exception)
    deploy.check_part(kit / right, right)
    deploy.check_part(tmp_path, right)  # not a kit at all: another error says what is missing


@pytest.mark.parametrize(
    ("given", "place", "says", "then"),
    [
        ("silo-0", "1/3", "the kit of silo 0, and --silo 1/3 was given", "give --silo 0/3."),
        ("silo-2", "0/3", "the kit of silo 2, and --silo 0/3 was given", "give --silo 2/3."),
        ("silo-0", "0/2", "the kit of silo 0 of 3, and --silo 0/2 was given", "Give --silo 0/3."),
        ("silo-1", "1/4", "the kit of silo 1 of 3, and --silo 1/4 was given", "Give --silo 1/3."),
        ("silo-0", "3/4", "the kit of silo 0 of 3, and --silo 3/4 was given", "Give --silo 0/3."),
    ],
)
def test_a_silo_joins_with_the_number_of_its_kit_only(
    given: str, place: str, says: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kit = make_kit(tmp_path / "kit", 3, ["localhost"])
    refused = _error_of_join(kit / given, place)
    assert f"{kit / given} is {says}" in refused
    assert then in refused
    assert list(tmp_path.iterdir()) == [kit]  # no folder of the wrong silo
    right = f"{given[-1]}/3"
    assert "none.toml" in _error_of_join(kit / given, right)  # the kit is right, the recipe is not


def test_a_key_of_another_kit_is_told_from_a_wrong_number(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", 2, ["localhost"]) / "silo-0"
    other = make_kit(tmp_path / "other", 2, ["localhost"]) / "silo-0"
    check_place(kit, 0, 2)  # the control
    (kit / "node.key").write_bytes((other / "node.key").read_bytes())
    refused = _error_of_join(kit, "0/2")
    assert f"the files in {kit} are of different kits" in refused
    (kit / "node.key").write_text("not a key")
    assert f"{kit} has no readable node.key" in _error_of_join(kit, "0/2")


def test_a_kit_that_does_not_say_whose_it_is_joins_with_any_number(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", 2, ["localhost"]) / "silo-0"
    with pytest.raises(ConfigError, match="is the kit of silo 0"):
        check_place(kit, 1, 2)
    (kit / "silos.pub").unlink()  # as kits of earlier versions
    check_place(kit, 1, 2)


def _error_of_join(kit: Path, place: str) -> str:
    done = CliRunner().invoke(app, ["join", "none.toml", "--silo", place, "--kit", str(kit)])
    assert isinstance(done.exception, ConfigError), done.exception
    return str(done.exception)


def test_a_kit_that_lies_where_the_state_would_go_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (make_kit(tmp_path / "kit", 2, ["localhost"]) / "silo-0").rename("silo-0")
    before = sorted(path.name for path in Path("silo-0").iterdir())
    assert "Name another folder for its state" in _error_of_join(tmp_path / "silo-0", "0/2")
    assert sorted(path.name for path in Path("silo-0").iterdir()) == before
    Path("silo-0").rename("kit-0")
    assert "none.toml" in _error_of_join(Path("kit-0"), "0/2"), "control"
