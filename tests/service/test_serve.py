"""`rescind serve`: where it listens, what it needs, and one real process from start to end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from rescind.cli import app
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


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(make_token="read,writ"), "'writ' is no scope"),
        (Wanted(users="nobody", codes=Path("codes.csv")), "not an imported dataset"),
        (Wanted(codes=Path("codes.csv")), "give --import NAME"),
        (Wanted(users="mine", demo="synthetic"), "leave --import and --items out"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch, wanted: Wanted, words: str
) -> None:
    from rescind.ledger.options import Options

    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "state", Doorway(port=0), wanted, Options())
    assert not (tmp_path / "state").exists()


def test_a_port_that_is_taken_is_told() -> None:
    with Doorway(port=0).listening() as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            Doorway(port=taken.getsockname()[1]).listening()


def follow_the_page(folder: Path, **env: str) -> str:
    """Run the curl lines of docs/service.md; return all that they print."""
    page = Path(__file__).parents[2] / "docs" / "service.md"
    found = re.search(r'```bash title="api.sh"\n(.*?)```', page.read_text("utf-8"), re.S)
    assert found
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (folder / "jar").unlink(missing_ok=True)
    words = ["bash", "-e", "-c", found[1]]
    done = subprocess.run(
        words, cwd=folder, env=os.environ | env, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def rescind(*words: str, state: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rescind.cli", *words, "--state", str(state)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        (["tokens", "list"], "tokens"),
        (["tokens", "revoke", "0" * 32], "tokens"),
        (["request", "extend", "0" * 32, "--days=1", "--reason=x"], "extend"),
    ],
)
def test_a_command_without_a_token_names_the_scope_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, words: list[str], scope: str
) -> None:
    monkeypatch.delenv("RESCIND_TOKEN", raising=False)
    told = CliRunner().invoke(app, [*words, "--url", "http://localhost:1"])
    assert isinstance(told.exception, ConfigError)
    assert f"rescind tokens make {scope}." in str(told.exception)


@pytest.mark.service
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_real_process_is_filled_signs_in_and_ends_in_order(tmp_path: Path, end) -> None:
    state = tmp_path / "state"
    env = os.environ | {"RESCIND_DATA": str(tmp_path / "none"), "OMP_NUM_THREADS": "1"}
    words = ["serve", "--demo", "synthetic", "--state", str(state), "--port", "0"]
    command = [sys.executable, "-m", "rescind.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    said = ""
    while "token for" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    try:
        base = re.findall(r"serves at (\S+)", said)[0]
        (link,), (token,) = (
            re.findall(r"\S+/v1/enter/\S+", said),
            re.findall(r"90 days: (\S+)", said),
        )
        assert "invitation for operator" in said
        said = follow_the_page(tmp_path, LINK=link, TOKEN=token, BASE=base)
        assert '"changed":2' in said
        assert '"kind":"erase","n":1' in said
        assert re.search(r'"asked":\{"state":"(making|made)"', said)
        again = follow_the_page(tmp_path, LINK=f"{base}/", TOKEN="none", BASE=base)
        assert "401" in again, "control: it stops without the link"
        asked = Request(
            f"{base}/v1/operator/overview", headers={"Authorization": f"Bearer {token}"}
        )
        assert json.load(urlopen(asked, timeout=30))["counts"]["lenders"] > 0
        assert json.load(urlopen(f"{base}/readyz", timeout=30))["ready"] is True
        served = rescind("request", "extend", "0" * 32, "--days=1", "--reason=x", state=state)
        assert served.returncode == 2
        assert "is served now" in served.stderr
        assert "--url ADDRESS, where it is served" in served.stderr
        assert "--url" in served.stderr
        listed = rescind("tokens", "list", state=state)
        assert "made at the start: read,release" in listed.stdout
        process.send_signal(end)
        rest = process.stdout.read()
        assert process.wait(60) == 0
        assert "everything that was acknowledged is on the disk" in rest
    finally:
        process.kill()
    assert "no open requests" in rescind("request", "list", state=state).stdout
    made = rescind("tokens", "make", "read", "--name=cron", state=state)
    assert len(made.stdout.strip()) > 40
    (name,) = re.findall(
        r"(\w+)  until \S+  cron: read", rescind("tokens", "list", state=state).stdout
    )
    assert "opens nothing any more" in rescind("tokens", "revoke", name, state=state).stdout
    assert name not in rescind("tokens", "list", state=state).stdout
    assert rescind("tokens", "revoke", name, state=state).returncode == 2


COMPILED = """
import sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from doors import opened
from rescind.ledger.release_worker import warm_up

def signatures():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("rescind."):
            for one in vars(module).values():
                if isinstance(one, Dispatcher):
                    found[f"{one.py_func.__module__}.{one.py_func.__name__}"] = len(one.signatures)
    return found

with opened(Path(sys.argv[1])) as house:
    if sys.argv[2] == "warm":
        ledger = house.ledger
        warm_up(type(ledger.live), ledger.options, ledger.releases.form)
    before = signatures()
    people = [house.person() for _ in range(8)]
    for n, person in enumerate(people):
        items = [f"item-{(3 * n + k) % 40}" for k in range(10)]
        assert person.post("/v1/me/loans", {"items": items}).status_code == 201
    body = {"kind": "erase", "items": ["item-1"]}
    assert people[0].post("/v1/me/requests", body).status_code == 202
    assert house.release(house.operator()).status_code == 202
    assert people[0].get("/v1/me/recommendations").json()["kind"] == "release"
    after = signatures()
print(sorted(name for name, count in after.items() if count > before.get(name, 0)))
"""


@pytest.mark.service
@pytest.mark.parametrize(("how", "compiled"), [("warm", False), ("cold", True)])
def test_nothing_is_compiled_once_people_come(tmp_path: Path, how: str, compiled: bool) -> None:
    helpers = str(Path(__file__).parents[1] / "helpers")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([helpers, *sys.path])}
    words = [sys.executable, "-c", COMPILED, str(tmp_path / "state"), how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    assert (done.stdout.strip() != "[]") is compiled, done.stdout
