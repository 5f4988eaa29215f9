"""Save and load federations as safetensors and JSON.

A saved federation is a folder. `server.safetensors` is what the server knows, and it names all
other files by their content: `server/` has large values of the server, `devices/` what devices
hold, `labels/` the original ids. It is replaced last, so that a save counts as a whole or not at
all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from rescind.core import files, params
from rescind.core.about import about_items
from rescind.core.clock import Clock
from rescind.core.doing import step
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.federation import Federation
from rescind.core.guards import Clip, Gaussian, Laplace
from rescind.core.labels import Labels
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Records
from rescind.core.run_state import RunState
from rescind.core.saved import (
    Schema,
    Values,
    fitting,
    must,
    must_be_like,
    must_count,
    reading,
    table_in,
)
from rescind.core.settings import find, from_table, to_table
from rescind.core.world import Sizes, World
from rescind.errors import ConfigError, DataError
from rescind.methods._outside import made_by
from rescind.methods._own_file import check_name, code_of
from rescind.storage import packing
from rescind.storage.content import Store, warn_of
from rescind.storage.kinds import METHODS, MODELS
from rescind.storage.lists import Reader, Writer, read_labels, write_labels
from rescind.storage.packing import Facts, as_notes, drawer, under
from rescind.storage.past import (
    add_holdings,
    add_model,
    add_past,
    remember_model,
    remember_past,
    unpack_past,
)
from rescind.storage.run_folder import HEAD, model_in

SAVE_SECONDS = 1e-8
"""CPU time of a save for each byte that the server keeps, measured with 13 and 54 MB."""
FORMAT = 3
"""Version of saved federations."""
FLAGS: Schema = {
    name: Values(torch.bool, ("clients",)) for name in ("members", "available", "keeps")
}
SIDES = {"server": ".safetensors", "devices": ".safetensors", "labels": ".json"}
"""Folders of files that are named by their content."""

GUARDS: dict[str, type[Clip | Gaussian | Laplace]] = {
    cls.__name__: cls for cls in (Clip, Gaussian, Laplace)
}
"""Guards that can be saved with a federation."""


def save_federation(fed: Federation, folder: Path | str) -> Path:
    """Write a federation; `load_federation` restores it bit for bit.

    Into a folder with an older save of the same federation it writes what changed, and removes what
    is not part of the federation any more. If it is interrupted, the older save stays loadable
    until the new one is complete; what it would have removed goes with the next save.
    """
    folder = Path(folder)
    try:
        files.make_folder(folder)
        size = params.nbytes(fed.now.state.own)
        told = f"saving the model ({size / 1e6:,.0f} MB)"
        with files.locked(folder), step(told, seconds=size * SAVE_SECONDS):
            _save(fed, folder)
    except OSError as error:
        raise DataError(f"cannot save into {folder}: {error.strerror or error}.") from None
    return folder


def _save(fed: Federation, folder: Path) -> None:
    stores = {name: Store(folder / name, suffix) for name, suffix in SIDES.items()}
    facts, server = _facts(fed), Writer(stores["server"])
    _add_server(fed, server, facts)
    sides = {"devices": _write_devices(fed, stores["devices"])}
    sides["labels"] = write_labels(fed.labels, stores["labels"])
    for store in stores.values():
        store.sync()
    facts |= {"large": server.large, "lists": {n: name.hex() for n, name in sides.items()}}
    params.save(folder / HEAD, server.tensors, as_notes(facts))  # from now on the new one counts
    for store in stores.values():
        store.sweep()
    files.sweep(folder)


def _facts(fed: Federation) -> Facts:
    """Return what is known of a federation beside tensors."""
    check_name(type(fed.method))
    code = code_of(type(fed.method))
    return {
        "format": FORMAT,
        "method": to_table(fed.method),
        **({"code": code} if code else {}),
        "seed": fed.clock.seed,
        "task": fed.world.task,
        "sizes": vars(fed.world.sizes),
        "block": fed.world.block,
        "events": [list(event) for event in fed.events],
        "keep_every": fed.keep_every,
        "past": fed.past is not None,
        "guards": _guard_tables(fed.executor),
    }


def _add_server(fed: Federation, out: Writer, facts: Facts) -> None:
    """Add what the server knows to a list and to its facts."""
    tensors, state = packing.pack_state(fed.now.state)
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
    facts |= {**state, "hosts": hosts}
    out.add(tensors | under("flags", flags))
    out.add(under("ledger", {} if fed.spent is None else {"spent": fed.spent}))
    if (shared := fed.world.shared.table) is None:
        out.add(under("shared", fed.world.shared.columns()))
    else:
        out.add_table("shared", shared)


def _write_devices(fed: Federation, store: Store) -> bytes:
    """Write what devices hold, with the history: it names records on devices."""
    out, vault = Writer(store), fed.now.vault
    facts: Facts = {"format": FORMAT}
    add_model(out, facts, vault.private, vault.log)
    add_holdings(out, facts, vault.holdings)
    if fed.past is not None:
        facts["past"] = add_past(out, fed.past)
    facts["large"] = out.large
    return store.put(params.to_bytes(out.tensors, as_notes(facts)))


def load_federation(
    folder: Path | str, executor: Executor | None = None, method: type[Method] | None = None
) -> Federation:
    """Read a federation with its guards.

    folder: of `save_federation`, or of a finished run
    method: the class of its method. Default: found by its name; a class of a user's own file only
    if the file is as it was when the federation was saved
    """
    folder = model_in(Path(folder))
    with reading(folder):
        return _load(_read(folder), folder, executor, method)


def _load(
    read: _Read, folder: Path, executor: Executor | None, method: type[Method] | None
) -> Federation:
    server, facts, held_facts = read.server, read.facts, read.device_facts
    cls = method or _class_of(facts, folder)
    learner = cast(Method, from_table(cls, facts["method"], {"model": MODELS}))
    executor = _guarded(executor or InProcess(), facts["guards"], folder)
    executor = learner.executor_for(executor)
    device = getattr(executor, "device", "cpu")
    vault = _unpack(read.devices, held_facts, device)
    _check_world(server, facts, vault.holdings.clients)
    flags = {name: value.to(device) for name, value in drawer("flags", server).items()}
    shared = Records(**drawer("shared", server)).to(device)
    world = World(facts["task"], Sizes(**facts["sizes"]), flags["members"], vault.announced, shared)
    hosts = [_unpack(drawer(n, server), f, "cpu") for n, f in facts["hosts"].items()]
    clients = [f["client"] for f in facts["hosts"].values()]
    hosted = tuple(zip(clients, (v.holdings for v in hosts), strict=True))
    world = replace(world, block=facts["block"], hosted=hosted, about=about_items(read.labels))
    past = read.past and unpack_past(*read.past, vault)
    now = RunState(packing.unpack_state(server, facts, device), vault, tuple(hosts))
    kept = drawer("private", read.devices)
    learner.check_saved(now.state, kept, world)
    if len(vault.holdings.records):  # else silos have the data, and what devices keep
        _check_kept(kept, learner, facts["sizes"]["clients"])
    fed = Federation(
        world=world,
        method=learner,
        now=now,
        clock=Clock(facts["seed"]),
        executor=executor,
        labels=read.labels,
        events=tuple((kind, digest, at) for kind, digest, at in facts["events"]),
        past=past or None,
        keep_every=facts["keep_every"],
        spent=drawer("ledger", server).get("spent"),
    )
    _remember(fed, *read.lists)
    return fed


def _check_world(server: Params, facts: Facts, clients: int) -> None:
    """Raise `ValueError` unless what the server knows fits the numbers of clients and items."""
    sizes, lent = facts["sizes"], drawer("shared", server)
    must_count(facts, "block")
    must_count(sizes, *sizes)
    must(type(facts["seed"]) is int, "the seed is no whole number")
    must(type(facts["keep_every"]) in (int, type(None)), "keep_every is no number of rounds")
    must(clients == sizes["clients"], "devices and server differ in clients")
    fitting(drawer("flags", server), FLAGS, sizes)
    fitting(lent, packing.rated(packing.LENT, lent), sizes)


def _check_kept(kept: Params, learner: Method, clients: int) -> None:
    """Raise `ValueError` unless devices keep what their method makes them begin with."""
    nobody = torch.zeros(0, dtype=torch.int64)
    for name, first in learner.client_init(nobody, Clock(0)).values.items():
        must_be_like(name, kept.get(name), first, clients)
    must({*map(len, kept.values())} <= {clients}, "what devices keep is cut")


@dataclass(frozen=True)
class _Read:
    """What the files of a federation hold."""

    server: Params
    facts: Facts
    devices: Params
    device_facts: Facts
    past: tuple[Params, Facts] | None
    labels: Labels
    lists: tuple[Reader, Reader]
    """Of server and devices."""


def _read(folder: Path) -> _Read:
    tensors, facts = packing.read_packed(folder / HEAD, FORMAT)
    stores = {name: Store(folder / name, suffix) for name, suffix in SIDES.items()}
    names = {name: bytes.fromhex(text) for name, text in facts["lists"].items()}
    server = Reader(stores["server"], tensors, facts["large"])
    listed, notes = params.from_bytes(stores["devices"].get(names["devices"]))
    known = table_in(notes)
    devices = Reader(stores["devices"], listed, known["large"])
    held = devices.all()
    past = (drawer("past", held), known["past"]) if "past" in known else None
    labels = read_labels(stores["labels"], names["labels"])
    read = _Read(server.all(), facts, held, known, past, labels, (server, devices))
    warn_of(sum(store.unread for store in stores.values()), folder)
    return read


def _remember(fed: Federation, server: Reader, devices: Reader) -> None:
    """Note which pieces of a federation lie in files, so that the next save does not read them."""
    if (shared := fed.world.shared.table) is not None:
        server.remember("shared", shared)
    vault = fed.now.vault
    devices.remember("held", vault.holdings.table)
    remember_model(devices, "", vault.private)
    if fed.past is not None:
        remember_past(devices, fed.past)


def _guard_tables(executor: Executor) -> list[Facts]:
    """Return the guards of an executor as plain tables."""
    guards = getattr(executor, "guards", ())
    for guard in guards:
        if type(guard) not in GUARDS.values():
            raise ConfigError(
                f"the guard {type(guard).__name__} cannot be saved. Allowed: {', '.join(GUARDS)}."
            )
    return [to_table(guard) for guard in guards]


def _guarded(executor: Executor, tables: list[Facts], folder: Path) -> Executor:
    """Return an executor with the saved guards: no later round may be less protected."""
    saved = tuple(from_table(GUARDS[table["name"]], table, {}) for table in tables)
    given = getattr(executor, "guards", ())
    if not saved or given == saved:
        return executor
    if given or not isinstance(executor, InProcess):
        raise ConfigError(f"{folder} was trained with the guards {saved}, not {given}.")
    return replace(executor, guards=saved)


def _unpack(tensors: Params, facts: Facts, device: str) -> Vault:
    return packing.unpack_vault(tensors, facts, packing.unpack_holdings(tensors, facts), device)


def _class_of(facts: Facts, folder: Path) -> type:
    """Return the class of a saved method: of the code that it was saved with."""
    name, made = str(facts["method"]["name"]), str(facts.get("code", ""))
    run = folder.parent if folder.name == "model" else folder
    return made_by(METHODS[1], name, made, str(run)) if made else find(*METHODS, name)
