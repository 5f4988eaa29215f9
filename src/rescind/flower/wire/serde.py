"""Flower's records as bytes: for the way to a silo's own process, and inside letters."""

from __future__ import annotations

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Written


def written(content: RecordDict) -> bytes:
    """Records as bytes, in Flower's own form."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def read(data: bytes) -> RecordDict:
    """What `written` wrote."""
    return recorddict_from_proto(Written.FromString(data))
