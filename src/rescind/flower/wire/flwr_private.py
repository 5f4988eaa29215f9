"""The only module that uses private names of Flower. Everything else imports its public API.

Private names may move in any minor release of flwr, so pyproject.toml allows one minor only.
They are looked up when they are used, so that a missing one gives a clear message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rescind.errors import ConfigError

ALLOWED = ">=1.41,<1.42"
"""Releases of flwr that have all these names; the same text is in pyproject.toml."""
_SQL = "flwr.supercore.sql_mixin"
_CONTROL = "flwr.proto.control_pb2"
_EXTENSIONS = "flwr.superlink.extensions"
_SUPERNODE = "flwr.supernode.start_client_internal"
_FLEET = "flwr.supernode.fleet_http_connection"

PRIVATE = {
    # Records as bytes.
    "recorddict_from_proto": ("flwr.common.serde", "recorddict_from_proto"),
    "recorddict_to_proto": ("flwr.common.serde", "recorddict_to_proto"),
    "RecordDictProto": ("flwr.proto.recorddict_pb2", "RecordDict"),
    # The SuperLink and its database.
    "flower_superlink": ("flwr.superlink.cli", "flower_superlink"),
    "SQLITE_PRAGMAS": (_SQL, "SQLITE_PRAGMAS"),
    "StoredObject": ("flwr.supercore.state.schema.objectstore_models", "StoredObject"),
    "Status": ("flwr.common.constant", "Status"),
    # The gate in front of the SuperLink, and the silos' keys.
    "get_middleware": (_EXTENSIONS, "get_middleware"),
    "configure_app": (_EXTENSIONS, "configure_app"),
    "SqlCoreState": ("flwr.supercore.corestate.sql_corestate", "SqlCoreState"),
    "InMemoryCoreState": ("flwr.supercore.corestate.in_memory_corestate", "InMemoryCoreState"),
    "FLEET_HTTP_PUBLIC_KEY_HEADER": ("flwr.supercore.constant", "FLEET_HTTP_PUBLIC_KEY_HEADER"),
    "NOOP_FLWR_AID": ("flwr.common.constant", "NOOP_FLWR_AID"),
    "NOOP_ACCOUNT_NAME": ("flwr.common.constant", "NOOP_ACCOUNT_NAME"),
    "public_key_to_bytes": ("flwr.supercore.primitives.asymmetric", "public_key_to_bytes"),
    # The operator's requests.
    "ControlHttpClient": ("flwr.supercore.control", "ControlHttpClient"),
    "RuntimeVersionHttpInterceptor": (
        "flwr.supercore.interceptors",
        "RuntimeVersionHttpInterceptor",
    ),
    "StartRunRequest": (_CONTROL, "StartRunRequest"),
    "ListRunsRequest": (_CONTROL, "ListRunsRequest"),
    "Fab": ("flwr.supercore.fab", "Fab"),
    "fab_to_proto": ("flwr.common.serde", "fab_to_proto"),
    "user_config_to_proto": ("flwr.common.serde", "user_config_to_proto"),
    # The SuperNode.
    "flower_supernode": ("flwr.supernode.cli", "flower_supernode"),
    "pull_and_store_message": (_SUPERNODE, "_pull_and_store_message"),
    "insert_message": (_SUPERNODE, "_insert_message"),
    "make_retry_invoker": (_FLEET, "make_simple_http_retry_invoker"),
    "MAX_RETRY_DELAY": ("flwr.common.constant", "MAX_RETRY_DELAY"),
    "ErrorCode": ("flwr.common.constant", "ErrorCode"),
}
"""Name in this module -> (module, name) in flwr."""


def __getattr__(name: str) -> Any:
    if name not in PRIVATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = PRIVATE[name]
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        raise ConfigError(
            f"flwr {version('flwr')} has no '{attribute}' in {module}, which rescind needs. "
            f"Install a release that has it (pip install 'flwr{ALLOWED}'), or change its entry in "
            f"rescind/flower/wire/flwr_private.py to where it is now."
        ) from None


def set_sqlite_pragmas(pragmas: Iterable[tuple[str, str]]) -> None:
    """Replace the settings of the SuperLink's database connections in this process."""
    __getattr__("SQLITE_PRAGMAS")  # an assignment alone would not notice that the name has moved
    vars(import_module(_SQL))["SQLITE_PRAGMAS"] = tuple(pragmas)


def set_object_type(kind: Any) -> None:
    """Let the SuperLink of this process store the parts of messages by a type of column."""
    __getattr__("StoredObject").__table__.c.content.type = kind


def set_gate(gate: Callable[..., Any], guests: Any, silos: Iterable[bytes]) -> None:
    """Put a gate in front of the SuperLink of this process, and register the silos' keys.

    Runs of a SuperLink before it, whose settings and messages are gone, are stopped.
    """
    from starlette.middleware import Middleware

    def register(app: Any) -> None:
        state = app.state.linkstate_factory.state()
        status = __getattr__("Status")
        for run in state.get_run_info(statuses=(status.PENDING, status.STARTING, status.RUNNING)):
            state.stop_run(run.run_id)
        owner = __getattr__("NOOP_FLWR_AID"), __getattr__("NOOP_ACCOUNT_NAME")
        for key in silos:
            if state.get_node_id_by_public_key(key) is None:
                state.create_node(*owner, key, 0)

    __getattr__("get_middleware"), __getattr__("configure_app")
    hooks = vars(import_module(_EXTENSIONS))
    hooks["get_middleware"] = lambda: (Middleware(gate, guests=guests),)
    hooks["configure_app"] = register


def check_stored_bundles(allowed: Callable[[bytes], bool]) -> None:
    """Let the SuperLink of this process find only bundles with allowed content in its database."""
    for state in (__getattr__("SqlCoreState"), __getattr__("InMemoryCoreState")):

        def get_fab(self: Any, digest: str, found: Callable[..., Any] = state.get_fab) -> Any:
            fab = found(self, digest)
            return fab if fab is not None and allowed(fab.content) else None

        state.get_fab = get_fab


def wrap_pull(wrapper: Callable[[Any], Any]) -> None:
    """Wrap the function with which the SuperNode of this process receives a message."""
    wrapped = wrapper(__getattr__("pull_and_store_message"))
    vars(import_module(_SUPERNODE))["_pull_and_store_message"] = wrapped


def watch_connection(lost: Callable[[], None], reached: Callable[[], None]) -> None:
    """Let the SuperNode of this process call functions: its server did not answer, or answered."""
    make = __getattr__("make_retry_invoker")

    def then(first: Callable[[], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
        def both(state: Any) -> None:
            first()
            second(state)

        return both

    def watched() -> Any:
        invoker = make()
        invoker.on_backoff = then(lost, invoker.on_backoff)
        invoker.on_success = then(reached, invoker.on_success)
        return invoker

    vars(import_module(_FLEET))["make_simple_http_retry_invoker"] = watched


def node_key(ssh: bytes) -> bytes:
    """Return a silo's public key as Flower stores and sends it. ssh: the text of its file"""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    return bytes(__getattr__("public_key_to_bytes")(load_ssh_public_key(ssh)))


def missing() -> list[str]:
    """Return one sentence for every private name that the installed flwr does not have."""
    sentences = []
    for name in PRIVATE:
        try:
            __getattr__(name)
        except ConfigError as error:
            sentences.append(str(error))
    return sentences
