"""Start Flower's processes: a SuperLink for the server, a SuperNode for every silo.

By default connections are encrypted and silos are identified by registered keys.
Telemetry, update checks and installations at run time are off.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError, DataError
from rescind.flower.run_request import ASKED, SILO, RunRequest
from rescind.flower.wire import flwr_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEYS = {"server": "server.key", "operator": "operator.key", "silo": "node.key"}
"""Each part of a kit (certificates.py), and its private key, which no other part has."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
INSECURE = (
    "warning: --insecure: nothing is encrypted, and every user of this machine can join or submit "
    "runs. Other machines are refused. Use it only for tests."
)


@dataclass(frozen=True)
class Link:
    """Address and certificate of a SuperLink."""

    host: str = "127.0.0.1"
    port: int = 7800
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


def tool(name: str) -> str:
    """Return the path of one of Flower's programs, from this installation if possible."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"'{name}' is not installed. See docs/deploy.md.")
    return found


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's processes, which keep their files in this folder."""
    home = folder / "flwr"
    home.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # Flower tells each message in ten lines, among which nobody would find what to do next.
    level = os.environ.get("FLWR_LOG_LEVEL", "ERROR")
    return {
        **os.environ, **QUIET,
        "FLWR_HOME": str(home.resolve()), "PATH": path, "FLWR_LOG_LEVEL": level,
    }  # fmt: skip


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


def check_free(link: Link, option: str = "--listen") -> None:
    """Refuse an address where nobody can listen: Flower would tell it in a long traceback.

    option: of the command line, which chooses another one
    """
    host = link.host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, link.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {link.address}: {error.strerror or error}. End what listens "
                f"there, or choose another with {option}."
            ) from None


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


def check_part(kit: Path, part: str) -> None:
    """Refuse another part of a kit, or the whole kit, and name the part that is needed.

    part: server, operator, silo-0 ...
    """
    needed = part.partition("-")[0]
    if (kit / KEYS[needed]).is_file():
        return
    if (kit / part / KEYS[needed]).is_file():
        raise ConfigError(f"{kit} is a whole kit. Give the part for this: --kit {kit / part}")
    for other, key in KEYS.items():
        if (kit / key).is_file():
            machine = "a silo's" if needed == "silo" else "the server's"
            raise ConfigError(
                f"{kit} is the {other}'s part of a kit, and this command needs the {needed}'s: "
                f"--kit {kit.parent / part}, on {machine} machine."
            )


def guests(kit: Path | None) -> list[str]:
    """Check that the server's part of a kit says who may connect. Return the names of its silos."""
    if kit is None:
        return []
    from rescind.flower.superlink import Guests

    Guests.of_kit(kit)
    return sorted(path.stem for path in kit.glob("silo-*.pub"))


def superlink(link: Link, kit: Path | None, database: Path | None, secret: Path) -> list[str]:
    """Return the command for the SuperLink. kit: the server's part; None: not encrypted

    secret: the file with which `superexec` proves that it may start apps
    """
    command = [sys.executable, "-m", "rescind.flower.superlink"]
    command += ["--host", link.host, "--port", str(link.port), *_apart(secret)]
    command += ["--disable-runtime-dependency-installation"]
    if database is not None:
        command += ["--database", str(database)]
    if kit is None:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.pem"), ("certfile", "server.pem"),
                         ("keyfile", "server.key")):  # fmt: skip
        command += [f"--ssl-{option}", str(_existing(kit / name))]
    return [*command, "--enable-supernode-auth", "--kit", str(kit.resolve())]


def supernode(link: Link, resident: Path, kit: Path | None, port: int, secret: Path) -> list[str]:
    """Return the command for a SuperNode that forwards messages to a resident process.

    port: for the SuperNode's own apps on this machine    secret: as for `superlink`
    """
    command = [sys.executable, "-m", "rescind.flower.supernode"]
    command += ["--superlink", link.address, "--port", str(port), *_apart(secret)]
    # Hexadecimal, because Flower's parser splits at spaces and quotes.
    command += ["--node-config", f'{SILO}="{str(resident).encode().hex()}"']
    if kit is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(_existing(kit / "ca.pem"))]
    return [*command, "--auth-supernode-private-key", str(_existing(kit / "node.key"))]


def superexec(link: Link, secret: Path) -> list[str]:
    """Return the command for the process that starts apps for a SuperLink or a SuperNode.

    Flower can start it by itself, but then everyone who reaches the port may take its place.
    """
    command = [tool("flower-superexec"), "--runtime-api-address", link.address]
    command += ["--superexec-auth-secret-file", str(secret), "--parent-pid", str(os.getpid())]
    how = ["--insecure"] if link.ca is None else ["--root-certificates", str(link.ca.resolve())]
    return [*command, *how]


def new_secret(folder: Path) -> Path:
    """Write a new secret for Flower's processes on this machine to a file of mode 600."""
    path = folder / "superexec.key"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    return path.resolve()


def _apart(secret: Path) -> list[str]:
    return ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]


class NotFoundError(DataError):
    """The server does not have what was asked for."""


@dataclass(frozen=True)
class Operator:
    """The operator's connection to the SuperLink. Each request is signed, if there is a key."""

    link: Link
    key: Ed25519PrivateKey | None

    @classmethod
    def of_kit(cls, link: Link, kit: Path | None) -> Operator:
        """Read the operator's key. kit: the operator's part; None: without keys"""
        from rescind.flower.operator_key import load_operator_key

        return cls(link, load_operator_key(_existing(kit / "operator.key")) if kit else None)

    def submit(self, asked: RunRequest) -> int:
        """Submit a run. Return its number."""
        from rescind.flower.bundle import bundle, bundle_digest
        from rescind.flower.handed_over import hand_over

        path = hand_over(asked)
        fab = flwr_private.fab_to_proto(flwr_private.Fab(bundle_digest(), bundle(), {}))
        config = flwr_private.user_config_to_proto({ASKED: str(path)})
        request = flwr_private.StartRunRequest(fab=fab, override_config=config)
        try:
            return int(self._ask("StartRun", request).run_id)
        except BaseException:  # nobody will take it
            path.unlink(missing_ok=True)
            raise

    def status(self, run: int) -> str:
        """Return the status of a run: "running", "finished:completed", "finished:failed", ...

        "not found": the server has no such run; "unknown": it did not say, as when it is busy
        """
        try:
            reply = self._ask("ListRuns", flwr_private.ListRunsRequest(run_id=run))
        except NotFoundError:
            return "not found"
        except DataError:
            return "unknown"
        found = reply.run_dict[run].status
        return f"{found.status}:{found.sub_status}".rstrip(":")

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Sign a request; Flower's HTTP client calls this."""
        if self.key is not None:
            from rescind.flower.operator_key import HEADER, signed

            request = context.request
            request.headers[HEADER] = signed(self.key, request.url.path, request.content)
        return call_next(context)

    def _ask(self, verb: str, request: Any) -> Any:
        import httpx

        version = flwr_private.RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        ca = self.link.ca and _existing(self.link.ca).read_bytes()
        client = flwr_private.ControlHttpClient.from_server_address(
            self.link.address, self.link.ca is None, ca, [version, self]
        )
        try:
            return getattr(client, verb)(request)
        except httpx.HTTPStatusError as error:
            missing = error.response.status_code == httpx.codes.NOT_FOUND
            kind = NotFoundError if missing else DataError
            raise kind(f"the server refused this: {error.response.text[:500]}") from None
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise DataError(
                f"the server at {self.link.address} was not reached ({error}). Is 'rescind flower "
                f"up' running on this machine? Start it, then give the same command; nothing was "
                f"changed."
            ) from None
        finally:
            client.close()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing. Make a kit on one machine (rescind flower kit) and copy its parts "
            f"to the others, or test on one machine with --insecure."
        )
    return path.resolve()
