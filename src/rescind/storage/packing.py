"""Convert states, vaults and holdings to named tensors and plain facts, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Graph
from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.run_state import RunState
from rescind.core.saved import Schema, Values, fitting, must, must_count, reading, table_in
from rescind.core.state import Log, Memory, ServerState, Snapshot
from rescind.core.update import Rows
from rescind.core.versions import Versions
from rescind.errors import DataError

FORMAT = 2
"""Version of checkpoints."""
LENT: Schema = {
    "client": Values(torch.int64, ("records",), 0, "clients"),
    "item": Values(torch.int64, ("records",), 0, "items"),
    "time": Values(torch.int64, ("records",)),
}
HELD: Schema = {
    **LENT,
    "split": Values(torch.int8, ("records",), 0, 3),
    "block": Values(torch.int16, ("records",), 0),
    "lent": Values(torch.bool, ("records",)),
    "members": Values(torch.bool, ("clients",)),
}
GRAPH: Schema = {
    "owner": Values(torch.int64, ("nodes",), 0, "clients"),
    "index": Values(torch.int64, ("nodes",), 0, "items"),
    "edge": Values(torch.int64, (2, "edges"), 0, "nodes"),
    "node": Values(torch.int64, ("entries",), 0, "nodes"),
    "feature": Values(torch.int64, ("entries",), 0, "features"),
    "value": Values(torch.float32, ("entries",)),
    "label": Values(torch.int64, ("nodes",), -1, "classes"),
}
RATING: Schema = {"rating": Values(torch.int32, ("records",))}
ROWS: Schema = {
    "owner": Values(torch.int64, ("rows",), 0, "clients"),
    "index": Values(torch.int64, ("rows",), 0, "size"),
}
Facts = dict[str, Any]
Packed = tuple[dict[str, Tensor], Facts]


def pack_now(now: RunState) -> Packed:
    """Pack server and client state, with the clients that the server hosts."""
    state, facts = pack_state(now.state)
    vault, vault_facts = pack_vault(now.vault)
    tensors = {**state, **vault}
    for number, host in enumerate(now.hosted):
        packed, host_facts = pack_vault(host)
        tensors |= under(f"host{number}", packed)
        facts[f"host{number}"] = host_facts
    return tensors, {**facts, **vault_facts}


def unpack_now(tensors: Params, facts: Facts, fed: Federation) -> RunState:
    holdings = fed.now.vault.holdings
    device = str(holdings.members.device)
    hosted = tuple(
        unpack_vault(drawer(f"host{i}", tensors), facts[f"host{i}"], host.holdings, "cpu")
        for i, host in enumerate(fed.now.hosted)
    )
    vault = unpack_vault(tensors, facts, holdings, device)
    return RunState(unpack_state(tensors, facts, device), vault, hosted)


def pack_state(state: ServerState) -> Packed:
    tensors = {**under("public", state.public), **under("own", state.own)}
    kept = []
    for number, snapshot in enumerate(state.memory):
        tensors |= under(f"memory{number}", snapshot.values)
        kept.append([snapshot.name, snapshot.round])
    return tensors, {"round": state.round, "memory": kept}


def unpack_state(tensors: Params, facts: Facts, device: str) -> ServerState:
    snapshots = tuple(
        Snapshot(name, at, params.to(drawer(f"memory{number}", tensors), device))
        for number, (name, at) in enumerate(facts["memory"])
    )
    public = params.to(drawer("public", tensors), device)
    own = params.to(drawer("own", tensors), device)
    must_count(facts, "round")
    return ServerState(public, own, Memory(snapshots), facts["round"])


def pack_vault(vault: Vault) -> Packed:
    """Pack private values and logs, without the holdings."""
    tensors, facts = pack_log(vault.log)
    return tensors | under("private", vault.private), facts


def pack_log(log: Log) -> Packed:
    tensors: dict[str, Tensor] = {}
    rounds = []
    for number, (at, name, rows) in enumerate(log.entries):
        parts = {"owner": rows.owner, "index": rows.index, "value": rows.value}
        tensors |= under(f"log{number}", parts)
        rounds.append([at, name, rows.size])
    return tensors, {"log": rounds}


def unpack_vault(tensors: Params, facts: Facts, holdings: Holdings, device: str) -> Vault:
    entries = []
    for number, (at, name, size) in enumerate(facts["log"]):
        rows = params.to(drawer(f"log{number}", tensors), device)
        ids = {name: rows[name] for name in ("owner", "index")}
        fitting(ids, ROWS, {"rows": len(rows["value"]), "clients": holdings.clients, "size": size})
        entries.append((at, name, Rows(rows["owner"], rows["index"], rows["value"], size)))
    values = drawer("private", tensors)
    most = holdings.clients  # fewer in a restore point from before some came, none with silos
    must(all(value.dim() and len(value) <= most for value in values.values()), "too many clients")
    private = Versions(params.to(values, device))
    return Vault(holdings.to(device), private, Log(tuple(entries)))


def pack_holdings(holdings: Holdings, rows: bool = True) -> Packed:
    """Pack holdings. rows: with their table"""
    held = dict(holdings.table.columns) if rows else {}
    tensors = under("held", {**held, "members": holdings.members})
    facts: Facts = {"items": holdings.items, "now": holdings.now, "task": holdings.task}
    if holdings.graph is not None:
        parts = vars(holdings.graph)
        tensors |= under("graph", {n: v for n, v in parts.items() if isinstance(v, Tensor)})
        facts["graph"] = {n: v for n, v in parts.items() if isinstance(v, int)}
    return tensors, facts


def unpack_holdings(tensors: Params, facts: Facts) -> Holdings:
    held = drawer("held", tensors)
    sizes = {"clients": len(held["members"]), "items": facts["items"]}
    must_count(facts, "items", "now")
    must(facts["task"] in ("ranking", "next_item", "nodes"), "there is no such task")
    fitting(held, rated(HELD, held), sizes)
    must(bool((held["client"].diff() >= 0).all()), "records are not sorted by client")
    parts = cast(Facts, drawer("graph", tensors))
    graph = None
    if "graph" in facts:
        fitting(parts, GRAPH, {**sizes, **facts["graph"]})
        graph = Graph(**parts, **facts["graph"])
    records = Records(held["client"], held["item"], held["time"], held.get("rating"))
    rest: Facts = {name: held[name] for name in ("split", "block", "lent", "members")}
    rest |= {name: facts[name] for name in ("items", "now", "task")}
    return Holdings(records=records, graph=graph, **rest)


def rated(schema: Schema, values: Params) -> Schema:
    """Return the schema of some records, with ratings if they have any."""
    return {**schema, **RATING} if "rating" in values else schema


columns = Records.columns


def under(name: str, values: Params) -> dict[str, Tensor]:
    """Return the values with `name|` in front of each key, the same objects if possible."""
    return {f"{name}|{n}": v.detach() if v.requires_grad else v for n, v in values.items()}


def drawer(name: str, tensors: Params) -> dict[str, Tensor]:
    """Return the values whose keys start with `name|`, without this prefix."""
    start = f"{name}|"
    return {n[len(start) :]: v for n, v in tensors.items() if n.startswith(start)}


def as_notes(facts: Mapping[str, Any]) -> dict[str, str]:
    return {"facts": json.dumps(facts)}


def read_packed(path: Path, known: int = FORMAT) -> tuple[dict[str, Tensor], Facts]:
    """Read tensors and facts of a file; raise if another version wrote it."""
    tensors, notes = params.load(path)
    with reading(path):
        facts: Facts = table_in(notes)
    if (found := facts.get("format")) != known:
        raise DataError(f"{path} has format {found}, this version reads {known}. Rerun with it.")
    return tensors, facts
