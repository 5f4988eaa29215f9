"""The only module that uses private names of Flower. Everything else imports its public API.

Private names may move in any minor release of flwr, so pyproject.toml allows one minor only.
They are looked up when they are used, so that a missing one gives a clear message.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rescind.errors import ConfigError

ALLOWED = ">=1.41,<1.42"
"""Releases of flwr that have all these names; the same text is in pyproject.toml."""
_SQL = "flwr.supercore.sql_mixin"

PRIVATE = {
    # Records as bytes.
    "recorddict_from_proto": ("flwr.common.serde", "recorddict_from_proto"),
    "recorddict_to_proto": ("flwr.common.serde", "recorddict_to_proto"),
    "RecordDictProto": ("flwr.proto.recorddict_pb2", "RecordDict"),
    # The SuperLink and its database.
    "flower_superlink": ("flwr.superlink.cli", "flower_superlink"),
    "SQLITE_PRAGMAS": (_SQL, "SQLITE_PRAGMAS"),
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


def missing() -> list[str]:
    """Return one sentence for every private name that the installed flwr does not have."""
    sentences = []
    for name in PRIVATE:
        try:
            __getattr__(name)
        except ConfigError as error:
            sentences.append(str(error))
    return sentences
