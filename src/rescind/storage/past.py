"""The history of a federation, and models and holdings, in lists of values."""

from __future__ import annotations

from dataclasses import replace

from rescind.core import params
from rescind.core.executor import Vault
from rescind.core.history import History, RestorePoint
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.saved import must
from rescind.core.state import Log
from rescind.core.versions import Versions
from rescind.storage import packing
from rescind.storage.events import pack_event, unpack_event
from rescind.storage.lists import Reader, Writer
from rescind.storage.packing import Facts, drawer, under


def add_holdings(out: Writer, facts: Facts, held: Holdings, name: str = "") -> None:
    """Add holdings to a list and to its facts. name: what comes before their keys"""
    tensors, rest = packing.pack_holdings(held, rows=False)
    out.add({name + n: v for n, v in tensors.items()})
    out.add_table(f"{name}held", held.table, apart="lent")
    facts |= rest


def add_model(out: Writer, facts: Facts, private: Params, log: Log, name: str = "") -> None:
    """Add the private values and logs of devices to a list and to its facts."""
    tensors, rest = packing.pack_log(log)
    out.add({name + n: v for n, v in tensors.items()})
    if not isinstance(private, Versions):
        out.add(under(f"{name}private", private))
    else:
        for each in private:
            out.add_rows(f"{name}private|{each}", private.rows(each))
    facts |= rest


def add_past(out: Writer, past: History) -> Facts:
    """Add a history to the list of the devices; return its facts."""
    facts: Facts = {"story": [], "points": [], "origin": {}, "same": False}
    out.add({"past|first": past.first})
    add_holdings(out, facts["origin"], past.origin, "past|origin|")
    for number, (at, event) in enumerate(past.story):
        records = getattr(event, "records", None)
        packed, event_facts = pack_event(event, rows=False)
        out.add(under(f"past|event{number}", packed))
        if isinstance(records, Records):
            if records.table is None:
                out.add(under(f"past|event{number}", packing.columns(records)))
            else:
                out.add_table(f"past|event{number}", records.table)
        facts["story"].append({**event_facts, "round": at})
    points = [p for p in (past.base, *past.points) if p is not None]
    facts["base"] = past.base is not None
    facts["points"] = [_add_point(out, f"past|point{n}|", point) for n, point in enumerate(points)]
    return facts


def _add_point(out: Writer, name: str, point: RestorePoint) -> Facts:
    """Add a model without data; return its facts."""
    tensors, facts = packing.pack_state(point.state)
    out.add({name + n: v for n, v in tensors.items()})
    add_model(out, facts, point.private, point.log, name)
    for number, (private, log) in enumerate(point.hosted):
        facts[f"host{number}"] = {}
        add_model(out, facts[f"host{number}"], private, log, f"{name}host{number}|")
    return {**facts, "hosts": len(point.hosted)}


def unpack_past(tensors: Params, facts: Facts, vault: Vault) -> History:
    """Return a history of the devices in a vault."""
    device, held = str(vault.holdings.members.device), vault.holdings
    origin = drawer("origin", tensors)
    if facts["same"]:  # saved whole: only consent differs
        start = replace(held, lent=origin["lent"].to(device), members=origin["members"].to(device))
    else:
        start = packing.unpack_holdings(origin, facts["origin"]).to(device)
    points = []
    for number, saved in enumerate(facts["points"]):
        mine = drawer(f"point{number}", tensors)
        hosts = [
            packing.unpack_vault(drawer(f"host{i}", mine), saved[f"host{i}"], held, "cpu")
            for i in range(saved["hosts"])
        ]
        model = packing.unpack_vault(mine, saved, held, device)
        pairs = tuple((v.private, v.log) for v in hosts)
        points.append(
            RestorePoint(packing.unpack_state(mine, saved, device), model.private, model.log, pairs)
        )
    base = points.pop(0) if facts["base"] else None
    story = tuple(
        (saved["round"], unpack_event(params.to(drawer(f"event{number}", tensors), device), saved))
        for number, saved in enumerate(facts["story"])
    )
    must(tensors["first"].shape == (held.clients,), "a client's first round is missing")
    return History(start, tensors["first"].to(device), base, story, tuple(points))


def remember_model(read: Reader, name: str, private: Params) -> None:
    """Note which pieces of private values lie in files."""
    if isinstance(private, Versions):
        for each in private:
            read.remember(f"{name}private|{each}", private.rows(each))


def remember_past(read: Reader, past: History) -> None:
    """Note which pieces of a history lie in files."""
    read.remember("past|origin|held", past.origin.table)
    for number, (_, event) in enumerate(past.story):
        records = getattr(event, "records", None)
        if isinstance(records, Records) and records.table is not None:
            read.remember(f"past|event{number}", records.table)
    points = [p for p in (past.base, *past.points) if p is not None]
    for number, point in enumerate(points):
        remember_model(read, f"past|point{number}|", point.private)
