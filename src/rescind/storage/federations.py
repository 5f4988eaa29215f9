"""Save and load federations as safetensors and JSON.

A saved federation is a folder: `server.safetensors` is what the server knows,
`devices.safetensors` what devices hold, `past.safetensors` the history, `labels.json` the
original ids.
"""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from rescind.core import files, params
from rescind.core.about import about_items
from rescind.core.clock import Clock
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.guards import Clip, Gaussian, Laplace
from rescind.core.history import History, RestorePoint
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.run_state import RunState
from rescind.core.settings import fields_of, find, from_table, to_table
from rescind.core.world import Sizes, World
from rescind.errors import ConfigError, DataError
from rescind.storage import packing
from rescind.storage.events import pack_event, unpack_event
from rescind.storage.packing import FORMAT, Facts, Packed, as_notes, columns, drawer, under
from rescind.storage.run_folder import model_in

log = logging.getLogger(__name__)

METHODS = ("rescind.methods", "server_sample")
UNLEARNERS = ("rescind.methods", "unlearn")
"""Methods, and unlearners that are not learners."""
MODELS = ("rescind.models", "tables")
GUARDS: dict[str, type[Clip | Gaussian | Laplace]] = {
    cls.__name__: cls for cls in (Clip, Gaussian, Laplace)
}
"""Guards that can be saved with a federation."""


def save_federation(fed: Federation, folder: Path | str) -> Path:
    """Write a federation; `load_federation` restores it bit for bit.

    All files have the same stamp, a digest of everything, so that `load_federation` can refuse an
    interrupted save.
    """
    folder = Path(folder)
    server, facts = _pack_server(fed)
    devices, device_facts = packing.pack_vault(fed.now.vault)
    held, held_facts = packing.pack_holdings(fed.now.vault.holdings)
    devices, device_facts = {**devices, **held}, {**device_facts, **held_facts, "format": FORMAT}
    labels: Facts = {k: list(getattr(fed.labels, k)) for k in fields_of(Labels)}
    facts["labels"] = _labels_digest(labels)
    past, past_facts = _pack_past(fed)
    sides = [params.digest(server), facts, params.digest(devices), device_facts, labels]
    sides += [params.digest(past), past_facts] if fed.past else []
    stamp = "sha256:" + sha256(json.dumps(sides, sort_keys=True).encode()).hexdigest()
    named = json.dumps({**labels, "stamp": stamp}).encode()
    files.write_atomically(folder / "labels.json", named, private=True)
    params.save(folder / "devices.safetensors", devices, as_notes({**device_facts, "stamp": stamp}))
    if fed.past is not None:
        params.save(folder / "past.safetensors", past, as_notes({**past_facts, "stamp": stamp}))
    else:
        (folder / "past.safetensors").unlink(missing_ok=True)
    params.save(folder / "server.safetensors", server, as_notes({**facts, "stamp": stamp}))
    files.sweep(folder)
    return folder


def _pack_server(fed: Federation) -> Packed:
    tensors, facts = packing.pack_state(fed.now.state)
    flags = {
        "members": fed.world.members,
        "available": fed.world.announced.available,
        "keeps": fed.world.announced.keeps,
    }
    hosts: Facts = {}
    both = zip(fed.world.hosted, fed.now.hosted, strict=True)
    for number, ((client, data), vault) in enumerate(both):
        (kept, kept_facts), (held, held_facts) = (
            packing.pack_vault(vault),
            packing.pack_holdings(data),
        )
        tensors |= under(f"host{number}", {**kept, **held})
        hosts[f"host{number}"] = {**kept_facts, **held_facts, "client": client}
    facts |= {
        "format": FORMAT,
        "method": to_table(fed.method),
        "seed": fed.clock.seed,
        "task": fed.world.task,
        "sizes": vars(fed.world.sizes),
        "block": fed.world.block,
        "events": [list(event) for event in fed.events],
        "hosts": hosts,
        "keep_every": fed.keep_every,
        "past": fed.past is not None,
        "guards": _guard_tables(fed.executor),
    }
    tensors |= under("shared", columns(fed.world.shared)) | under("flags", flags)
    tensors |= under("ledger", {} if fed.spent is None else {"spent": fed.spent})
    return tensors, facts


def load_federation(folder: Path | str, executor: Executor | None = None) -> Federation:
    """Read a federation with its guards. folder: of `save_federation`, or of a finished run"""
    folder = model_in(Path(folder))
    server, facts = packing.read_packed(folder / "server.safetensors")
    devices, device_facts = packing.read_packed(folder / "devices.safetensors")
    labels = _read_labels(folder / "labels.json")
    if {device_facts["stamp"], labels.pop("stamp", None)} != {facts["stamp"]}:
        raise DataError(
            f"the files in {folder} do not belong together: a save of server, devices and labels "
            f"was interrupted. Rerun, or resume with --resume."
        )
    if facts.get("labels", _labels_digest(labels)) != _labels_digest(labels):
        raise DataError(
            f"{folder / 'labels.json'} does not match the digest that was saved with the model: "
            f"its ids were changed, so the wrong person could be erased. Restore it from a copy."
        )
    method = _method(facts["method"])
    executor = _guarded(executor or InProcess(), facts.get("guards") or [], folder)
    executor = method.executor_for(executor)
    device = getattr(executor, "device", "cpu")
    vault = _unpack(devices, device_facts, device)
    flags = {n: v.to(device) for n, v in drawer("flags", server).items()}
    shared = Records(**drawer("shared", server)).to(device)
    world = World(facts["task"], Sizes(**facts["sizes"]), flags["members"], vault.announced, shared)
    hosts = [_unpack(drawer(n, server), f, "cpu") for n, f in facts["hosts"].items()]
    clients = [f["client"] for f in facts["hosts"].values()]
    hosted = tuple(zip(clients, (v.holdings for v in hosts), strict=True))
    known = Labels(**{k: tuple(v) for k, v in labels.items()})
    world = replace(world, block=facts["block"], hosted=hosted, about=about_items(known))
    return Federation(
        world=world,
        method=method,
        now=RunState(packing.unpack_state(server, facts, device), vault, tuple(hosts)),
        clock=Clock(facts["seed"]),
        executor=executor,
        labels=known,
        events=tuple((kind, digest, at) for kind, digest, at in facts["events"]),
        past=_read_past(folder / "past.safetensors", facts, vault) if facts.get("past") else None,
        keep_every=facts.get("keep_every"),
        spent=drawer("ledger", server).get("spent"),
    )


def _guard_tables(executor: Executor) -> list[Facts]:
    """Return the guards of an executor as plain tables."""
    guards = getattr(executor, "guards", ())
    for guard in guards:
        if type(guard) not in GUARDS.values():
            raise ConfigError(
                f"the guard {type(guard).__name__} cannot be saved, and without it a loaded "
                f"federation would train unprotected. Allowed: {', '.join(GUARDS)}."
            )
    return [to_table(guard) for guard in guards]


def _guarded(executor: Executor, tables: list[Facts], folder: Path) -> Executor:
    """Return an executor with the saved guards: no later round may be less protected."""
    saved = tuple(from_table(GUARDS[table["name"]], table, {}) for table in tables)
    given = getattr(executor, "guards", ())
    if not saved or given == saved:
        return executor
    if given or not isinstance(executor, InProcess):
        raise ConfigError(
            f"{folder} was trained with the guards {saved}; the given executor has {given}. "
            f"Give an InProcess without guards, or with the same."
        )
    return replace(executor, guards=saved)


def _unpack(tensors: Params, facts: Facts, device: str) -> Vault:
    return packing.unpack_vault(tensors, facts, packing.unpack_holdings(tensors, facts), device)


def _method(table: Facts) -> Method:
    """Return the saved method, without settings that it had in version 0.1 and did not read."""
    cls = find(*METHODS, str(table["name"]))
    fixed = {field.name for field in fields(cls) if not field.init}
    old = fixed | (fields_of(RankingMethod).keys() - fields_of(cls).keys())
    known = {k: v for k, v in table.items() if k not in old}
    return cast(Method, from_table(cls, known, {"model": MODELS}))


def _pack_past(fed: Federation) -> Packed:
    """Pack the history. It names records on devices, so it belongs to the client side."""
    past = fed.past
    if past is None:
        return {}, {}
    tensors: dict[str, Tensor] = {"first": past.first}
    facts: Facts = {"format": FORMAT, "story": [], "points": []}
    held = fed.now.vault.holdings
    same = len(past.origin.records) == len(held.records) and past.origin.now == held.now
    facts["same"] = same and torch.equal(past.origin.records.pairs(), held.records.pairs())
    if facts["same"]:  # only consent has changed: no second copy of the records
        origin = {"lent": past.origin.lent, "members": past.origin.members}
    else:
        origin, facts["origin"] = packing.pack_holdings(past.origin)
    tensors |= under("origin", origin)
    for number, (at, event) in enumerate(past.story):
        packed, event_facts = pack_event(event)
        tensors |= under(f"event{number}", packed)
        facts["story"].append({**event_facts, "round": at})
    points = [p for p in (past.base, *past.points) if p is not None]
    facts["base"] = past.base is not None
    for number, point in enumerate(points):
        packed, point_facts = packing.pack_now(_as_now(point, held))
        tensors |= under(f"point{number}", packed)
        facts["points"].append({**point_facts, "hosts": len(point.hosted)})
    return tensors, facts


def _as_now(point: RestorePoint, holdings: Holdings) -> RunState:
    """Return a restore point with the present holdings, to pack its model."""
    hosted = tuple(Vault(holdings, private, log) for private, log in point.hosted)
    return RunState(point.state, Vault(holdings, point.private, point.log), hosted)


def _read_past(path: Path, server: Facts, vault: Vault) -> History:
    tensors, facts = packing.read_packed(path)
    if facts["stamp"] != server["stamp"]:
        raise DataError(
            f"{path} does not belong to the model next to it: a save was interrupted. "
            f"Rerun, or resume with --resume."
        )
    device, held = str(vault.holdings.members.device), vault.holdings
    origin = drawer("origin", tensors)
    if facts["same"]:
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
    return History(start, tensors["first"].to(device), base, story, tuple(points))


def _labels_digest(labels: Facts) -> str:
    return "sha256:" + sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()


def _read_labels(path: Path) -> Facts:
    try:
        labels: Facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Restore it from a copy, or rerun."
        ) from None
    lists = [labels.get(k, []) for k in fields_of(Labels)] if isinstance(labels, dict) else [None]
    if not all(isinstance(one, list) and all(isinstance(v, str) for v in one) for one in lists):
        raise DataError(
            f"{path} does not hold lists of ids and titles. Restore it from a copy, or rerun."
        )
    return labels
