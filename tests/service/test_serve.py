"""`rescind serve`: where it listens, what it needs, and one real process from start to end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from rescind.errors import ConfigError, DataError
from rescind.service.running import Doorway, Wanted, run


def test_it_listens_on_this_machine_only() -> None:
    door = Doorway()
    assert door.local
    settings = door.settings(8000, "RESCIND")
    assert settings.origin == "http://localhost:8000"
    assert settings.rp_id == "localhost"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "lend.example.org"])
def test_another_address_needs_a_reason(host: str) -> None:
    with pytest.raises(ConfigError, match="nothing is encrypted"):
        Doorway(host=host)
    assert Doorway(host=host, insecure=True).settings(80, "X").insecure
    proxied = Doorway(host=host, behind_proxy=("lend.example.org",)).settings(8000, "X")
    assert (proxied.origin, proxied.behind_proxy) == ("https://lend.example.org", True)
    with pytest.raises(ConfigError, match="this machine only"):
        Doorway(host=host, insecure=True, demo=True)


def test_a_demonstration_is_not_put_behind_a_proxy() -> None:
    with pytest.raises(ConfigError, match="this machine only"):
        Doorway(behind_proxy=("lend.example.org",), demo=True)


def test_tls_needs_both_files(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    with pytest.raises(ConfigError, match="both"):
        Doorway(host="0.0.0.0", tls_cert=file)
    with pytest.raises(ConfigError, match="is not a file"):
        Doorway(host="0.0.0.0", tls_cert=file, tls_key=file)
    file.touch()
    door = Doorway(host="0.0.0.0", name="lend.example.org", tls_cert=file, tls_key=file)
    assert door.settings(443, "X").origin == "https://lend.example.org"
    assert door.settings(443, "X").hosts == ("lend.example.org",)


def test_a_new_folder_needs_items(tmp_path: Path) -> None:
    from rescind.ledger.options import Options

    state = tmp_path / "state"
    with pytest.raises(ConfigError, match="needs items"):
        run(state, Doorway(port=0), Wanted(), Options())
    items = tmp_path / "films.csv"
    items.write_text("name\nBrazil\n")
    with pytest.raises(DataError, match="no column 'id'"):
        run(state, Doorway(port=0), Wanted(items=items), Options())
    assert not state.exists()


def test_a_port_that_is_taken_is_told() -> None:
    with Doorway(port=0).listening() as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            Doorway(port=taken.getsockname()[1]).listening()


@pytest.mark.service
def test_a_real_process_is_filled_signs_in_and_ends_in_order(tmp_path: Path) -> None:
    env = os.environ | {"RESCIND_DATA": str(tmp_path / "none"), "OMP_NUM_THREADS": "1"}
    words = ["serve", "--demo", "synthetic", "--state", str(tmp_path / "state"), "--port", "0"]
    command = [sys.executable, "-u", "-m", "rescind.cli", *words, "--make-token", "read,extend"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    said = ""
    while "token for" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    try:
        base = re.findall(r"serves at (\S+)", said)[0]
        link, token = re.findall(r"(\S+/v1/enter/\S+)|days: (\S+)", said)
        answer = urlopen(Request(link[0], headers={"Sec-Fetch-Site": "none"}), timeout=30)
        assert answer.status == 200  # followed to the first page
        asked = Request(
            f"{base}/v1/operator/overview", headers={"Authorization": f"Bearer {token[1]}"}
        )
        assert json.load(urlopen(asked, timeout=30))["counts"]["lenders"] > 0
        assert json.load(urlopen(f"{base}/readyz", timeout=30))["ready"] is True
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
        assert "everything that was acknowledged is on the disk" in rest
    finally:
        process.kill()
    listed = subprocess.run(
        [sys.executable, "-m", "rescind.cli", "requests", "--state", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no open requests" in listed.stdout
