"""The form of a receipt: JSON that is written in one way only and read strictly."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

from rescind.audits.finding import Finding
from rescind.errors import DataError

SHOWN = 20
"""Names of fields in one message: a file may have any number."""


def to_bytes(table: dict[str, Any]) -> bytes:
    """Return the canonical bytes: sorted keys, no NaN, one newline at the end."""
    return _encoded(table, indent=1) + b"\n"


def to_compact(table: dict[str, Any]) -> bytes:
    """Return the same without spaces, for what is sealed: nobody reads it before it is parsed."""
    return _encoded(table, separators=(",", ":"))


def _encoded(table: dict[str, Any], **form: Any) -> bytes:
    try:
        text = json.dumps(table, sort_keys=True, ensure_ascii=False, allow_nan=False, **form)
        return text.encode()
    except (TypeError, ValueError) as error:  # NaN, lone surrogates, tensors
        raise DataError(f"a receipt cannot hold this: {error}. Give numbers and text.") from None


def plain(value: Any) -> Any:
    """Return a value as tables, lists, numbers and text."""
    if isinstance(value, Finding):
        return value.facts()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inside) for name, inside in value.items()}
    return [plain(inside) for inside in value] if isinstance(value, list | tuple) else value


def from_bytes(data: bytes) -> Any:
    """Read JSON in UTF-8, or raise `DataError`."""
    try:
        return json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise DataError(
            "it is empty, cut off, changed, or no JSON in UTF-8. Ask for receipt.json, the signed "
            "file, again, and save it without opening it."
        ) from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def typed(value: Any, kind: Any, where: str) -> Any:
    """Return a value as the kind that a hint names, or raise `DataError` with its place."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _table(value, kind, where)
    if type(None) in inner:
        return None if value is None else typed(value, inner[0], where)
    if origin is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(typed(one, k, f"{where}[{n}]") for n, (one, k) in pairs)
    if origin is Mapping and isinstance(value, dict):
        return {name: typed(one, inner[1], f"{where}.{name}") for name, one in value.items()}
    kinds_of_one = inner if origin is types.UnionType else (kind,)
    if type(value) in kinds_of_one:
        return value
    expected = getattr(kind, "__name__", kind)
    raise DataError(f"{where} is {str(value)[:40]!r}, expected {expected}.")


def _table(value: Any, kind: Any, where: str) -> Any:
    hints = hints_of(kind)
    if not isinstance(value, dict):
        raise DataError(f"{where} is {str(value)[:40]!r}, expected fields with names.")
    if value.keys() != hints.keys():
        apart = ", ".join(sorted(repr(str(n)[:40]) for n in value.keys() ^ hints.keys())[:SHOWN])
        raise DataError(f"{where} lacks these fields, or has them too many: {apart}.")
    return kind(**{n: typed(value[n], hint, f"{where}.{n}") for n, hint in hints.items()})


@lru_cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field that is written."""
    unsigned = ("curves", "samples") if kind is Finding else ()
    return {name: hint for name, hint in get_type_hints(kind).items() if name not in unsigned}
