"""A server that disappears: whoever waits for a run, and every silo, says so in a line."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import httpx

from flower.deployments import RECIPE, free_port
from rescind.cli.flower import app
from rescind.core.files import locked, write_atomically
from rescind.errors import DataError
from rescind.flower import deploy, waiting
from rescind.flower.deploy import Link, NotFoundError, Operator
from rescind.flower.silo.storage import Store
from rescind.flower.supernode import Connection
from rescind.flower.waiting import wait_for
from rescind.flower.wire import flwr_private

pytestmark = pytest.mark.flower

SOON = 1.0
"""Seconds after which a server counts as gone, in these tests."""


class Told(Operator):
    """An operator whose server says that a run has this status, or raises this."""

    said: str | Exception = "running"

    def _ask(self, verb: str, request: object) -> object:
        if isinstance(self.said, Exception):
            raise self.said
        state, _, detail = self.said.partition(":")
        status = type("Status", (), {"status": state, "sub_status": detail})
        return type("Reply", (), {"run_dict": {7: type("Run", (), {"status": status})}})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(waiting, "PROBED", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener


def told(server: socket.socket, said: str | Exception = "running") -> Told:
    operator = Told(Link("127.0.0.1", server.getsockname()[1]), None)
    object.__setattr__(operator, "said", said)
    return operator


def after(seconds: float, then: Callable[[], object] = lambda: None) -> Callable[[], bool]:
    """Return a function that is true from then on, and that first does something."""
    end = time.monotonic() + seconds

    def ended() -> bool:
        if time.monotonic() < end:
            return False
        then()
        return True

    return ended


def test_a_server_that_is_gone_is_named_with_what_to_do(server: socket.socket) -> None:
    operator, closing = told(server), after(SOON, server.close)
    begun = time.monotonic()
    with pytest.raises(DataError) as raised:
        wait_for(lambda: closing() and False, operator, 7, lambda: None, lost=SOON)
    said = str(raised.value)
    assert operator.link.address in said
    assert "Start 'rescind flower up' again" in said
    assert "--resume" in said
    assert "\n" not in said
    assert 2 * SOON <= time.monotonic() - begun < 60


def test_a_server_that_listens_is_waited_for(server: socket.socket) -> None:
    """The control: with the server there, the end of the run is the end, however late it is."""
    wait_for(after(3 * SOON), told(server), 7, lambda: None, lost=SOON, asked=SOON)


def test_a_result_counts_though_the_server_has_gone(server: socket.socket) -> None:
    operator = told(server)
    server.close()
    wait_for(after(SOON), operator, 7, lambda: None, lost=60.0)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("finished:failed", "run 7 ended"),
        (NotFoundError("Run ID not found."), "does not know run 7"),
    ],
)
def test_a_run_that_cannot_end_any_more_is_told(
    said: str | Exception, match: str, server: socket.socket
) -> None:
    with pytest.raises(DataError, match=match):
        wait_for(after(60.0), told(server, said), 7, lambda: None, asked=0.0)


def test_a_busy_server_is_waited_for(server: socket.socket) -> None:
    busy = DataError("was not reached (timed out)")
    wait_for(after(2 * SOON), told(server, busy), 7, lambda: None, lost=SOON, asked=0.0)


def test_without_a_server_nothing_is_lost(tmp_path: Path) -> None:
    """The result of the run before stays, because no new one was taken."""
    (tmp_path / "recipe.toml").write_text(RECIPE.format(rounds=1))
    out, nobody = tmp_path / "out", f"127.0.0.1:{free_port()}"
    out.mkdir()
    (out / "run.json").write_text("the run before")
    words = ["run", str(tmp_path / "recipe.toml"), "--silos", "2", "--server", nobody]
    done = CliRunner().invoke(app, [*words, "--out", str(out), "--insecure"])
    assert isinstance(done.exception, DataError)  # the command line exits with code 2
    assert nobody in str(done.exception)
    assert "'rescind flower up'" in str(done.exception)
    assert (out / "run.json").read_text() == "the run before"


def test_a_run_that_fails_leaves_the_result_of_the_one_before(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the server writes afterwards counts, though it has the same content."""
    (tmp_path / "recipe.toml").write_text(RECIPE.format(rounds=1))
    out = tmp_path / "out"
    out.mkdir()
    facts = {
        "metrics": {"test": {"HR@20": 0.5}},
        "round": 1,
        "silos": {"messages": 2, "refused": {}, "waiting": []},
        "requests": [],
    }
    result = json.dumps(facts)
    for name in ("run.json", "error.txt"):
        (out / name).write_text(result)

    def asked(name: str, result: str = result):
        def submit(_: Operator, __: object) -> int:
            threading.Timer(SOON, write_atomically, (out / name, result.encode())).start()
            return 7

        monkeypatch.setattr(Operator, "submit", submit)
        at = f"127.0.0.1:{server.getsockname()[1]}"
        words = ["run", str(tmp_path / "recipe.toml"), "--silos", "2", "--server", at]
        return CliRunner().invoke(app, [*words, "--out", str(out), "--insecure"])

    failed = asked("error.txt")
    assert isinstance(failed.exception, DataError)
    assert (out / "run.json").read_text() == result
    done = asked("run.json")
    assert done.exit_code == 0, done.exception
    assert "HR@20 0.5000" in done.output
    waits = {"id": "1", "outcome": "WAITING", "reason": "", "papers": "", "answered": None}
    cases = (("WAITING", False, 10), ("WAITING", True, 20), ("REFUSED", False, 20))
    for outcome, late, code in cases:
        told = {**waits, "outcome": outcome, "late": late}
        open_one = asked("run.json", json.dumps({**facts, "requests": [told]}))
        assert open_one.exit_code == code, "a script must see that a request is not done"
        assert outcome in open_one.output


def test_a_silo_says_once_that_its_server_is_there_that_it_is_lost_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flwr.supernode import fleet_http_connection as fleet

    name = "make_simple_http_retry_invoker"
    monkeypatch.setattr(fleet, name, getattr(fleet, name))  # restored after the test
    connection = Connection("server.example:8000")
    flwr_private.watch_connection(connection.lost, connection.reached)
    invoker = getattr(fleet, name)()
    invoker.wait_function = lambda seconds: None
    for said in ("the server at server.example:8000 answers.\n", ""):
        assert invoker.invoke(lambda: "yes") == "yes"
        assert capsys.readouterr().err == said, "once, and nothing of a server that goes on"
    refusals = [httpx.ConnectError("refused"), httpx.ConnectError("refused")]

    def ask() -> str:
        if refusals:
            raise refusals.pop()
        return "yes"

    assert invoker.invoke(ask) == "yes"
    lines = [s for s in capsys.readouterr().err.splitlines() if "server.example:8000" in s]
    assert len(lines) == 2, lines
    assert "tries again at least every 20 s" in lines[0]
    assert "answers again" in lines[1]


def test_flowers_own_lines_are_left_out_unless_somebody_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLWR_LOG_LEVEL", raising=False)
    assert deploy.environment(tmp_path)["FLWR_LOG_LEVEL"] == "ERROR"
    monkeypatch.setenv("FLWR_LOG_LEVEL", "INFO")
    assert deploy.environment(tmp_path)["FLWR_LOG_LEVEL"] == "INFO"


def test_a_port_that_is_taken_is_told_before_anything_is_started(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: on a free port the server is started."""
    begun: list[list[str]] = []

    class StartedError(Exception):
        """Instead of a process."""

    def started(command: list[str], _: object) -> None:
        begun.append(command)
        raise StartedError

    monkeypatch.setattr("rescind.flower.deploy.started", started)

    def up(port: int) -> BaseException | None:
        words = ["up", "--insecure", "--listen", f"127.0.0.1:{port}"]
        return CliRunner().invoke(app, [*words, "--state", str(tmp_path / "state")]).exception

    def join(port: int) -> BaseException | None:
        (tmp_path / "recipe.toml").write_text(RECIPE.format(rounds=1))
        words = ["join", str(tmp_path / "recipe.toml"), "--silo", "0/2", "--insecure"]
        where = ["--store", str(tmp_path / "silo-0"), "--port", str(port)]
        return CliRunner().invoke(app, [*words, *where]).exception

    taken = server.getsockname()[1]
    for command, option in ((up, "--listen"), (join, "--port")):
        said = str(command(taken))
        assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in said
        assert said.endswith(f"choose another with {option}.")
    assert not begun
    assert not (tmp_path / "state").exists()
    for command in (up, join):
        assert isinstance(command(free_port()), StartedError)
    assert len(begun) == 2


def test_a_second_process_of_a_silo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(rounds=1))
    store = Store(tmp_path / "silo-0")
    store.note(recipe="of the first")
    words = ["join", str(tmp_path / "recipe.toml"), "--silo", "0/2", "--insecure"]
    with locked(store.folder):
        done = CliRunner().invoke(app, [*words, "--store", str(store.folder)])
    assert isinstance(done.exception, DataError)
    assert "in use" in str(done.exception)
    assert store.notes["recipe"] == "of the first", "nothing of the first was changed"
