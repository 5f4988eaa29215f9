"""Flower's records as bytes: for a silo's resident process, and inside our own messages."""

from __future__ import annotations

from flwr.app import RecordDict

from rescind.flower.wire.flwr_private import (
    RecordDictProto,
    recorddict_from_proto,
    recorddict_to_proto,
)


def written(content: RecordDict) -> bytes:
    """Serialize records in Flower's own format."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def read(data: bytes) -> RecordDict:
    """Read what `written` wrote."""
    return recorddict_from_proto(RecordDictProto.FromString(data))
