"""Events as facts and tensors, for files and messages, and as JSON for requesters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.params import Params
from rescind.core.records import (
    Anew,
    Arrive,
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Join,
    Records,
    Share,
    Unshare,
    Withdraw,
)
from rescind.core.world import Host
from rescind.errors import DataError
from rescind.storage import packing
from rescind.storage.packing import Facts, Packed, drawer, under

KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Share, Unshare, Erase, EraseLabels, EraseEdges, Anew, Join, Withdraw, Arrive, Host,
    )
}  # fmt: skip
REQUESTS = (Unshare, Erase, EraseLabels, EraseEdges, Withdraw)
INNER = "inner"
"""Where a request has the numbers by which a run knows users and items: digests are over them."""


def pack_event(event: Event, rows: bool = True) -> Packed:
    """Return an event as tensors and facts. rows: with its records"""
    facts: Facts = {"kind": type(event).__name__}
    tensors: dict[str, Tensor] = {}
    if facts["kind"] not in KINDS:
        raise DataError(f"a {facts['kind']} cannot be saved. Use one of {', '.join(KINDS)}.")
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Records):
            tensors |= value.columns() if rows else {}
        elif isinstance(value, Holdings):
            held, facts[field.name] = packing.pack_holdings(value)
            tensors |= held
        elif isinstance(value, Tensor):
            tensors[field.name] = value
        else:
            facts[field.name] = int(value)
    return tensors, facts


def unpack_event(tensors: Params, facts: Facts) -> Event:
    kind = KINDS.get(str(facts.get("kind")))
    if kind is None:
        raise DataError(f"unknown event '{facts.get('kind')}'. Use one of {', '.join(KINDS)}.")
    given: dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "records":
            given["records"] = Records.of(tensors["client"], tensors["item"], tensors["time"])
        elif field.name == "data":
            given["data"] = packing.unpack_holdings(tensors, facts["data"])
        else:
            given[field.name] = (tensors if field.name == "split" else facts)[field.name]
    return kind(**given)


def pack_events(name: str, events: Iterable[Event]) -> Packed:
    """Return several events as tensors and facts under a name."""
    facts: list[Facts] = []
    tensors: dict[str, Tensor] = {}
    for number, event in enumerate(events):
        packed, one = pack_event(event)
        facts.append(one)
        tensors |= under(f"{name}{number}", packed)
    return tensors, {name: facts}


def unpack_events(name: str, tensors: Params, facts: Facts) -> list[Event]:
    return [
        unpack_event(drawer(f"{name}{number}", tensors), one)
        for number, one in enumerate(facts.get(name, ()))
    ]


def event_text(event: Event, labels: Labels | None = None) -> str:
    """Return a request as JSON for the requester. It is never kept with the receipt.

    labels: to name users and items by their original ids, too. Ratings are left out: no digest
    covers them
    """
    tensors, facts = pack_event(event)
    lists = {name: value.tolist() for name, value in tensors.items() if name != "rating"}
    kind, inner = facts.pop("kind"), {**facts, **lists}
    if labels is None:
        return json.dumps({"kind": kind, **inner}) + "\n"
    table = {"kind": kind, **_original_ids(event, inner, labels), INNER: inner}
    return json.dumps(table, indent=1) + "\n"


def _original_ids(event: Event, inner: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """Return the users and items of a request as people know them."""
    if isinstance(event, Withdraw):
        return {"user": labels.user_id(inner["client"])}
    named = {
        "user": [labels.user_id(client) for client in inner["client"]],
        "item": [labels.item_id(item) for item in inner["item"]],
    }
    if isinstance(event, EraseEdges):
        named["to"] = [labels.item_id(node) for node in inner["time"]]
    return named


def names_text(event: Event, labels: Labels) -> str:
    """Return the users and items of a request as people know them, as the bytes of a digest."""
    tensors, facts = pack_event(event)
    inner = {**facts, **{name: value.tolist() for name, value in tensors.items()}}
    return _canonical(_original_ids(event, inner, labels))


def names_in(text: str) -> str:
    """Return what the file of a request says of names, as the bytes of a digest; "" if nothing."""
    table = json.loads(text)
    if INNER not in table:
        return ""
    return _canonical({name: table[name] for name in table if name not in ("kind", INNER)})


def _canonical(table: Mapping[str, Any]) -> str:
    return json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_event(text: str) -> Event:
    """Read what `event_text` wrote, or raise `DataError`."""
    kinds = {kind.__name__: kind for kind in REQUESTS}
    try:
        table = json.loads(text)
        kind = kinds[table["kind"]]
        inner = _inner_numbers(table, kind)
        expected = {"client"} if kind is Withdraw else {"client", "item", "time"}
        if set(inner) != expected:
            raise KeyError(*(set(inner) ^ expected))
        given: Any = inner["client"] if kind is Withdraw else Records.of(**inner)
        event: Event = kind(given)
        event.digest()
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(
            f"not a request ({why_not(error)}). Give the file that came with the receipt (rescind "
            f"forget --request wrote it). A service gives none: there, press 'check it here' on "
            f"the page, or give its answer (--acknowledgement)."
        ) from None
    return event


def why_not(error: Exception) -> str:
    """Return in words why a JSON file is not what was expected."""
    if isinstance(error, json.JSONDecodeError):
        return "it is not JSON"
    if isinstance(error, KeyError):
        return f"'{error.args[0]}' is missing, or is not expected"
    return str(error)


def _inner_numbers(table: Mapping[str, Any], kind: type[Event]) -> dict[str, Any]:
    """Return the numbers that the receipt's digest covers."""
    if INNER not in table:
        return {name: value for name, value in table.items() if name != "kind"}
    inner = dict(table[INNER])
    named = {name for name in table if name not in ("kind", INNER)}
    expected = {"user"} if kind is Withdraw else {"user", "item"}
    expected |= {"to"} if kind is EraseEdges else set()
    if named != expected:
        raise KeyError(*(named ^ expected))
    if kind is not Withdraw and any(len(table[n]) != len(inner["client"]) for n in named):
        raise ValueError(f"{', '.join(sorted(named))} and {INNER} differ in length")
    return inner


def named_event(event: Event, labels: Labels) -> dict[str, Any]:
    """Return an event as a JSON table with original ids: the same on every machine."""
    tensors, facts = pack_event(event)
    table: dict[str, Any] = {**facts, **{name: value.tolist() for name, value in tensors.items()}}
    who = table.pop("client")
    one = isinstance(who, int)
    table["user"] = labels.user_id(who) if one else [labels.user_id(client) for client in who]
    if "item" in table:
        table["item"] = [labels.item_id(item) for item in table["item"]]
    return table
