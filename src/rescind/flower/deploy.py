"""Flower's processes: a SuperLink beside the server, a SuperNode beside every silo.

Connections are encrypted and silos are known by registered keys unless somebody asks for less.
Telemetry, update checks and installations at run time are off.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rescind.errors import ConfigError, DataError
from rescind.flower.run_request import ASKED, SILO, RunRequest

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
INSECURE = (
    "warning: --insecure: nothing is encrypted and any node may join. Use it on one machine, to "
    "try things out."
)
LINK = "rescind"
"""The name of our connection in Flower's configuration."""


@dataclass(frozen=True)
class Link:
    """Where the SuperLink is, and how one gets there."""

    host: str = "127.0.0.1"
    port: int = 8000
    ca: Path | None = None
    """The certificate of who signed the server's; None: not encrypted."""

    @property
    def address(self) -> str:
        """host:port"""
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> Link:
        """The same from this machine: who listens everywhere is reached at its own address."""
        everywhere = self.host in ("0.0.0.0", "::", "[::]")
        return replace(self, host="127.0.0.1") if everywhere else self

    def home(self, folder: Path) -> Path:
        """A folder for Flower's own files, with this connection in it."""
        home = folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        how = "insecure = true" if self.ca is None else f'root-certificates = "{self.ca.resolve()}"'
        text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
        (home / "config.toml").write_text(f'{text}address = "{self.address}"\n{how}\n')
        return home


def tool(name: str) -> str:
    """One of Flower's programs, of this very installation."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"'{name}' is not installed: docs/deploy.md says how.")
    return found


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes, which find each other on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home.resolve()), "PATH": path}


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    """A process in a group of its own; the whole group ends with the block."""
    process = subprocess.Popen(
        list(command),
        env=dict(env),
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - these commands start no threads before
    )
    try:
        yield process
    finally:
        for sign, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):  # apps that a node started are in its group, too
                os.killpg(process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def _end_with_parent() -> None:
    """Linux: ask for SIGTERM when the parent is killed, so that no node without a silo is left."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def listening(link: Link, process: subprocess.Popen, seconds: float = 300.0) -> None:
    """Return once the SuperLink takes connections; a busy machine may need minutes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DataError(
                f"the SuperLink ended with code {process.returncode}; its output above says why. "
                f"Is port {link.port} taken?"
            )
        with suppress(OSError), socket.create_connection((link.host, link.port), 1.0):
            return
        time.sleep(0.1)
    raise DataError(f"the SuperLink does not listen on {link.address} after {seconds:g} s.")


def superlink(link: Link, kit: Path | None, database: Path | None) -> list[str]:
    """The command that starts the SuperLink. kit: the server's part; None: not encrypted"""
    command = [sys.executable, "-m", "rescind.flower.superlink"]
    command += ["--host", link.host, "--port", str(link.port)]
    command += ["--disable-runtime-dependency-installation"]
    if database is not None:
        command += ["--database", str(database)]
    if kit is None:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.pem"), ("certfile", "server.pem"),
                         ("keyfile", "server.key")):  # fmt: skip
        command += [f"--ssl-{option}", str(_there(kit / name))]
    return [*command, "--enable-supernode-auth"]


def register(kit: Path, home: Path) -> list[str]:
    """Let the SuperLink know the silos' keys; the names of those it now knows."""
    names = []
    for path in sorted(kit.glob("silo-*.pub")):
        done = _flwr(["supernode", "register", str(path), LINK], home)
        said = (done.stdout + done.stderr).lower()
        if done.returncode and "already" not in said and "in use" not in said:
            raise DataError(
                f"{path.name} could not be registered: {_last(done.stdout + done.stderr)}"
            )
        names.append(path.stem)
    if not names:
        raise ConfigError(f"{kit} holds no silo-*.pub. Make a kit: rescind flower kit")
    return names


def supernode(link: Link, resident: Path, kit: Path | None, port: int) -> list[str]:
    """The command that starts a SuperNode, whose messages are carried to a resident process.

    port: where its own apps reach it, on this machine
    """
    command = [tool("flower-supernode"), "--superlink", link.address, "--port", str(port)]
    # Hexadecimal, since Flower's parser splits at spaces and quotes.
    command += ["--node-config", f'{SILO}="{str(resident).encode().hex()}"']
    if kit is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(_there(kit / "ca.pem"))]
    return [*command, "--auth-supernode-private-key", str(_there(kit / "node.key"))]


def submit(asked: RunRequest, home: Path) -> int:
    """Hand a run to the SuperLink; its number."""
    with tempfile.TemporaryDirectory() as folder:
        app(Path(folder), asked)
        done = _flwr(["run", folder, LINK, "--format", "json"], home)
    try:
        told = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        raise DataError(
            f"the run was not taken: {_last(done.stdout + done.stderr)} Is the SuperLink up?"
        ) from None
    if not told.get("success") or "run-id" not in told:
        raise DataError(f"the run was not taken: {told.get('error-message', told)}")
    return int(told["run-id"])


def status(run: int, home: Path) -> str:
    """How a run is doing: "running", "finished:completed", "finished:failed" and the like."""
    done = _flwr(["list", LINK, "--run-id", str(run), "--format", "json"], home)
    try:
        told = json.loads(done.stdout[done.stdout.index("{") :])
        return str(told["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def app(folder: Path, asked: RunRequest) -> Path:
    """The bundle that Flower wants: names of our two apps, and no code."""
    (folder / "LICENSE").write_text("Apache-2.0\n")
    text = json.dumps(asked.to_json())  # a JSON string is a TOML string, too
    (folder / "pyproject.toml").write_text(
        "[build-system]\n"
        'requires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        "[project]\n"
        'name = "rescind-run"\nversion = "1.0.0"\ndescription = "A recipe over silos"\n'
        'license = {file = "LICENSE"}\ndependencies = ["flwr>=1.41"]\n\n'
        "[tool.flwr.app]\n"
        'publisher = "rescind"\n\n'
        "[tool.flwr.app.components]\n"
        'serverapp = "rescind.flower.apps:server_app"\n'
        'clientapp = "rescind.flower.apps:node_app"\n\n'
        "[tool.flwr.app.config]\n"
        f"{ASKED} = {text}\n"
    )
    return folder


def _flwr(arguments: Sequence[str], home: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [tool("flwr"), *arguments], env=environment(home), capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing. Make a kit on one machine (rescind flower kit) and carry its "
            f"parts to the others, or try things out on one machine with --insecure."
        )
    return path.resolve()


def _last(text: str) -> str:
    bare = (line.strip(" \t│╭╰╮╯─") for line in text.splitlines())  # Flower draws boxes
    lines = [line for line in bare if line]
    return lines[-1] if lines else "it said nothing."
