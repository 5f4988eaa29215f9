"""Start Flower's processes: a SuperLink for the server, a SuperNode for every silo.

By default connections are encrypted and silos are identified by registered keys.
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
    "warning: --insecure: nothing is encrypted and any node can join. Use it only for tests on "
    "one machine."
)
LINK = "rescind"
"""Name of our connection in Flower's configuration."""


@dataclass(frozen=True)
class Link:
    """Address and certificate of a SuperLink."""

    host: str = "127.0.0.1"
    port: int = 8000
    ca: Path | None = None
    """Certificate of the authority that signed the server's; None: not encrypted."""

    @property
    def address(self) -> str:
        """Return host:port."""
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> Link:
        """Return the link as seen from the server's machine, with a host of its certificate."""
        all_hosts = self.host in ("0.0.0.0", "::", "[::]")
        return replace(self, host="127.0.0.1") if all_hosts else self

    def home(self, folder: Path) -> Path:
        """Create a folder for Flower's files with the configuration of this connection."""
        home = folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        how = "insecure = true" if self.ca is None else f'root-certificates = "{self.ca.resolve()}"'
        text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
        (home / "config.toml").write_text(f'{text}address = "{self.address}"\n{how}\n')
        return home


def tool(name: str) -> str:
    """Return the path of one of Flower's programs, from this installation if possible."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"'{name}' is not installed. See docs/deploy.md.")
    return found


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes, which find each other on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home.resolve()), "PATH": path}


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    """Start a process in a new process group. The whole group ends with the `with` block."""
    process = subprocess.Popen(
        list(command),
        env=dict(env),
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has no threads yet
    )
    try:
        yield process
    finally:
        for signal_, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):  # its apps are in the group, too
                os.killpg(process.pid, signal_)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


def _end_with_parent() -> None:
    """Linux: request SIGTERM when the parent is killed, so that no SuperNode is left running."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def listening(link: Link, process: subprocess.Popen, seconds: float = 300.0) -> None:
    """Wait until the SuperLink accepts connections. A busy machine may need minutes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DataError(
                f"the SuperLink ended with code {process.returncode}. Read its output above. Is "
                f"port {link.port} in use?"
            )
        with suppress(OSError), socket.create_connection((link.host, link.port), 1.0):
            return
        time.sleep(0.1)
    raise DataError(
        f"the SuperLink does not listen on {link.address} after {seconds:g} s. Read its output."
    )


def superlink(link: Link, kit: Path | None, database: Path | None) -> list[str]:
    """Return the command for the SuperLink. kit: the server's part; None: not encrypted"""
    command = [sys.executable, "-m", "rescind.flower.superlink"]
    command += ["--host", link.host, "--port", str(link.port)]
    command += ["--disable-runtime-dependency-installation"]
    if database is not None:
        command += ["--database", str(database)]
    if kit is None:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.pem"), ("certfile", "server.pem"),
                         ("keyfile", "server.key")):  # fmt: skip
        command += [f"--ssl-{option}", str(_existing(kit / name))]
    return [*command, "--enable-supernode-auth"]


def register(kit: Path, home: Path) -> list[str]:
    """Register the silos' keys with the SuperLink. Return the names of the silos."""
    names = []
    for path in sorted(kit.glob("silo-*.pub")):
        done = _flwr(["supernode", "register", str(path), LINK], home)
        output = done.stdout + done.stderr
        known = "already" in output.lower() or "in use" in output.lower()
        if done.returncode and not known:
            raise DataError(f"{path.name} could not be registered: {_last_line(output)}")
        names.append(path.stem)
    if not names:
        raise ConfigError(f"{kit} has no silo-*.pub. Make a kit: rescind flower kit")
    return names


def supernode(link: Link, resident: Path, kit: Path | None, port: int) -> list[str]:
    """Return the command for a SuperNode that forwards messages to a resident process.

    port: for the SuperNode's own apps on this machine
    """
    command = [tool("flower-supernode"), "--superlink", link.address, "--port", str(port)]
    # Hexadecimal, because Flower's parser splits at spaces and quotes.
    command += ["--node-config", f'{SILO}="{str(resident).encode().hex()}"']
    if kit is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(_existing(kit / "ca.pem"))]
    return [*command, "--auth-supernode-private-key", str(_existing(kit / "node.key"))]


def submit(asked: RunRequest, home: Path) -> int:
    """Submit a run to the SuperLink. Return its number."""
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(Path(folder), asked)
        done = _flwr(["run", folder, LINK, "--format", "json"], home)
    try:
        reply = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        last = _last_line(done.stdout + done.stderr)
        raise DataError(f"the run was not accepted: {last} Is the SuperLink running?") from None
    if not reply.get("success") or "run-id" not in reply:
        raise DataError(f"the run was not accepted: {reply.get('error-message', reply)}")
    return int(reply["run-id"])


def status(run: int, home: Path) -> str:
    """Return the status of a run: "running", "finished:completed", "finished:failed", ..."""
    done = _flwr(["list", LINK, "--run-id", str(run), "--format", "json"], home)
    try:
        reply = json.loads(done.stdout[done.stdout.index("{") :])
        return str(reply["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def write_bundle(folder: Path, asked: RunRequest) -> None:
    """Write the bundle that Flower needs: the names of our two apps, without code."""
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


def _flwr(arguments: Sequence[str], home: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [tool("flwr"), *arguments], env=environment(home), capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing. Make a kit on one machine (rescind flower kit) and copy its parts "
            f"to the others, or test on one machine with --insecure."
        )
    return path.resolve()


def _last_line(text: str) -> str:
    bare = (line.strip(" \t│╭╰╮╯─") for line in text.splitlines())  # Flower draws boxes
    lines = [line for line in bare if line]
    return lines[-1] if lines else "no output."
