"""Flower's SuperLink behind a gate: `python -m rescind.flower.superlink`.

It takes the options of `flower-superlink` and `--kit`, the server's part of a kit. Flower serves
three interfaces on one port, and authenticates only silos (fleet). The gate lets pass:

    fleet      silos whose key is in the kit
    control    the operator, from this machine: start our bundle, list runs
    runtime    Flower's own processes on this machine (with a secret, see deploy.py)

Without a kit only connections from this machine are accepted.

Database writes wait longer than Flower's 5 s: each thread that serves a silo writes to one SQLite
file, and ten silos on two busy cores wait longer than that. Messages in it are sealed
(`server_folder.py`).
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.errors import ConfigError
from rescind.flower import bundle
from rescind.flower.operator_key import HEADER, OperatorCheck
from rescind.flower.server_folder import Sealed, private_files
from rescind.flower.wire import flwr_private

log = logging.getLogger(__name__)

BUSY_SECONDS = 300
"""How long a write may wait: the default deadline of a round."""
LARGEST_CONTROL = 2**20
"""Largest request of the operator in bytes. Our bundle and its settings have a few thousand."""
FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
START = f"{CONTROL}start-run"
ALLOWED_CONTROL = (START, f"{CONTROL}list-runs")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Guests:
    """Who may use which interface."""

    silos: frozenset[bytes] = frozenset()
    """Public keys of the kit's silos, as Flower writes them."""
    operator: OperatorCheck | None = None
    """None: without keys, from this machine only (--insecure)."""

    @classmethod
    def of_kit(cls, kit: Path) -> Guests:
        """Read the keys of the server's part of a kit."""
        from rescind.privacy.keys import public_key

        operator = kit / "operator.pub"
        paths = sorted(kit.glob("silo-*.pub"))
        if not operator.is_file() or not paths:
            raise ConfigError(
                f"{kit} has no operator.pub or no silo-*.pub, so anyone could submit runs. Make a "
                f"new kit (rescind flower kit), or test on one machine with --insecure."
            )
        silos = frozenset(flwr_private.node_key(path.read_bytes()) for path in paths)
        return cls(silos, OperatorCheck(public_key(str(operator))))

    def refusal(self, scope: Scope, body: bytes) -> str | None:
        """Return why a request is refused; None: it may pass. body: of a control request"""
        path, headers = str(scope["path"]), dict(scope["headers"])
        local = is_local(scope)
        if self.operator is None and not local:
            return "without keys (--insecure) only this machine may connect"
        if path.startswith(FLEET):
            if self.operator is None:
                return None
            given = headers.get(flwr_private.FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), b"")
            known = given in {base64.b64encode(key) for key in self.silos}
            return None if known else "its key is not that of a silo of the kit"
        if not local:
            return "only silos may connect from another machine"
        if path.startswith(RUNTIME):
            return None  # Flower checks the secret or the token of a task
        if path not in ALLOWED_CONTROL:
            return "it is not needed for runs"
        if self.operator is not None:
            header = headers.get(HEADER.encode(), b"").decode("latin-1")
            if why := self.operator.refusal(header, path, body):
                return why
        return start_refusal(body) if path == START else None


def is_local(scope: Scope) -> bool:
    """Return whether a connection comes from this machine."""
    peer, own = scope.get("client"), scope.get("server")
    if not peer:
        return False
    try:
        loopback = ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        return False
    return loopback or bool(own and own[0] == peer[0])


def start_refusal(body: bytes) -> str | None:
    """Return why a run is not started: it is not our bundle, given in full."""
    try:
        request = flwr_private.StartRunRequest.FromString(body)
    except Exception:  # protobuf's errors have no common public class
        return "it is not a request to start a run"
    if request.app_spec or request.connector_refs or request.connector_ids or request.user_prompt:
        return "it asks for an app of another kind"
    return bundle.refusal(request.fab.content)


@dataclass(frozen=True)
class Gate:
    """An ASGI application in front of Flower's: it passes on what `Guests` allows."""

    app: Callable[[Scope, Receive, Send], Awaitable[None]]
    guests: Guests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with code 403 or 412 and the reason, or call Flower's application."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        body, again = b"", receive
        if str(scope["path"]).startswith(CONTROL):
            body, again = await _read(receive)
        why = "it is too large" if len(body) > LARGEST_CONTROL else self.guests.refusal(scope, body)
        if why is None:
            return await self.app(scope, again, send)
        log.warning("refused %s from %s: %s", scope["path"], (scope.get("client") or "?")[0], why)
        kind = [(b"content-type", b"text/plain; charset=utf-8")]
        # Flower's own code for a node that may not join: the SuperNode ends with an error.
        code = 412 if str(scope["path"]).startswith(FLEET) else 403
        await send({"type": "http.response.start", "status": code, "headers": kind})
        await send({"type": "http.response.body", "body": f"refused: {why}".encode()})
        return None


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Return the body of a request, at most a little more than allowed, and how to read it again.

    A signature covers the whole body, so it must be here before anything is done with it.
    """
    body, more = b"", True
    while more and len(body) <= LARGEST_CONTROL:
        message = await receive()
        body += message.get("body", b"")
        more = bool(message.get("more_body"))
    sent = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return body, again


def raise_busy_timeout() -> None:
    """Let database writes of this process wait longer. Flower has no option for it."""
    pragmas = {**dict(flwr_private.SQLITE_PRAGMAS), "busy_timeout": str(1000 * BUSY_SECONDS)}
    flwr_private.set_sqlite_pragmas(pragmas.items())


def main() -> None:
    """Start the SuperLink behind the gate."""
    guests = Guests()
    if "--kit" in sys.argv:
        at = sys.argv.index("--kit")
        guests = Guests.of_kit(Path(sys.argv[at + 1]))
        del sys.argv[at : at + 2]
    elif "--insecure" not in sys.argv:
        raise ConfigError("give --kit, the server's folder of a kit, or --insecure for tests.")
    private_files()
    raise_busy_timeout()
    flwr_private.set_object_type(Sealed())
    flwr_private.check_stored_bundles(lambda content: bundle.refusal(content) is None)
    flwr_private.set_gate(Gate, guests, guests.silos)
    flwr_private.flower_superlink()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
