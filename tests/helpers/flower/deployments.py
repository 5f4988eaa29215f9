"""Start and stop real processes on this machine, with the commands of the manual."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rescind.cli.stopping import TERMINATED

DATA = """
[data]
name = "synthetic"
users = 40
items = 30
interactions = 500
"""
"""Few users, made up."""
RECIPE = (
    DATA
    + """
[method]
name = "FedAvg"
model = {{ name = "MF", dim = 4 }}

[run]
rounds = {rounds}
evaluate_every = {rounds}
checkpoint_every = 1
"""
)
PATIENCE = 600.0
"""Seconds before a test fails: long enough for a busy machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait until a condition is true. what: its name in the error message"""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, f"{what} did not come within {patience:g} s"
        time.sleep(0.2)


def left_below(folder: Path) -> list[str]:
    """Return Flower's processes that keep their files below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"FLWR_HOME={folder}/".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


class Machines:
    """A server and its silos, started as on separate machines."""

    def __init__(
        self, folder: Path, silos: int, rounds: int = 2, recipe: str | None = None
    ) -> None:
        self.folder, self.silos, self.port = folder, silos, free_port()
        self.recipe = folder / "recipe.toml"
        self.recipe.write_text(recipe or RECIPE.format(rounds=rounds))
        self.processes: dict[str, subprocess.Popen] = {}
        self._open = ExitStack()

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.stop(name)
        self._open.close()

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def start(self, name: str, *arguments: str) -> subprocess.Popen:
        """Start one command of the manual in a new process group."""
        log = self._open.enter_context((self.folder / f"{name}.log").open("ab"))
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "rescind.cli", "flower", *arguments],
            cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return self.processes[name]

    def stop(self, name: str, signal_: signal.Signals = signal.SIGTERM) -> None:
        """End a command and the processes that it started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            process.send_signal(signal_)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def terminate(self, name: str) -> str:
        """End a command as a service manager does. Return what it said.

        Fails if a process that it started is left, or if it ends in another way than by its own.
        """
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        code, said = process.wait(PATIENCE), self.log(name)
        assert code == TERMINATED, said
        assert "Traceback" not in said
        assert said.count("stopped.") == 1, said
        home = "flower" if name == "up" else name
        until(lambda: not left_below(self.folder / home), f"the end of the processes of {name}")
        return said

    def up(self, *options: str) -> None:
        up = self.start("up", "up", "--listen", self.server, *options)
        ended = lambda: up.poll() is not None  # noqa: E731
        until(lambda: ended() or "listening on" in self.log("up"), "the server")
        assert not ended(), self.log("up")

    def join(self, silo: int, *options: str) -> None:
        self.start(
            f"silo-{silo}", "join", str(self.recipe), "--silo", f"{silo}/{self.silos}",
            "--server", self.server, "--store", f"silo-{silo}", "--port", str(free_port()),
            *options,
        )  # fmt: skip

    def run(self, *options: str) -> None:
        self.start(
            "run", "run", str(self.recipe), "--silos", str(self.silos), "--server", self.server,
            "--out", "out", *options,
        )  # fmt: skip

    def finished(self, patience: float = PATIENCE) -> None:
        run = self.processes["run"]
        until(lambda: run.poll() is not None, "the end of the run", patience)
        assert run.returncode == 0, self.log("run") + self.log("up")[-3000:]
