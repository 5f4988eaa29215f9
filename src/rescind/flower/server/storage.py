"""A federation whose devices are elsewhere, on the server's disk: a folder, and where silos are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from rescind.core import params
from rescind.core.executor import Executor
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.world import Announced
from rescind.flower.server.remote_holdings import RemoteHoldings, elsewhere
from rescind.flower.wire.payloads import (
    of_silo,
    packed_steps,
    unpacked_steps,
)
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.packing import Facts, drawer, under

SILOS = "silos.safetensors"


def save_elsewhere(fed: Federation, place: Path) -> None:
    """Write a federation; `load_elsewhere` gives it back, with the same letters to the silos."""
    save_federation(fed, place)
    tensors, facts = _pack(elsewhere(fed.now.vault))
    tensors, told = under("now", tensors), {"now": facts}
    if fed.past is not None and isinstance(fed.past.origin, RemoteHoldings):
        packed, told["origin"] = _pack(fed.past.origin)
        tensors |= under("origin", packed)
    params.save(place / SILOS, tensors, {"facts": json.dumps(told)})


def load_elsewhere(place: Path, executor: Executor | None) -> Federation:
    """What `save_elsewhere` wrote."""
    fed = load_federation(place, executor)
    tensors, notes = params.load(place / SILOS)
    told, past = json.loads(notes["facts"]), fed.past
    held = _unpack(fed.now.vault.holdings, told["now"], drawer("now", tensors))
    if past is not None and "origin" in told:
        origin = _unpack(past.origin, told["origin"], drawer("origin", tensors))
        past = replace(past, origin=origin)
    now = replace(fed.now, vault=replace(fed.now.vault, holdings=held))
    assert held.said is not None
    return replace(fed, world=replace(fed.world, announced=held.said), now=now, past=past)


def _pack(held: RemoteHoldings) -> tuple[dict[str, Tensor], Facts]:
    """What holdings elsewhere are beside their sizes, which every federation writes."""
    tensors = {
        "moment": held.moment, "validated": held.validated, "available": held.available,
        "keeps": held.keeps,
    }  # fmt: skip
    facts: Facts = {"epoch": held.epoch, "seed": held.seed}
    for silo in range(held.silos):
        owed, owed_tensors = packed_steps(f"owed{silo}of", held.owed, silo)
        never_tensors, never = pack_events(f"nevers{silo}of", of_silo(held.nevers, silo))
        facts, tensors = {**facts, **owed, **never}, {**tensors, **owed_tensors, **never_tensors}
    return tensors, facts


def _unpack(plain: Holdings, facts: Facts, tensors: Params) -> RemoteHoldings:
    names = ("records", "split", "block", "lent", "members", "items", "now", "task", "graph")
    silos = range(len(tensors["moment"]))
    return RemoteHoldings(
        **{name: getattr(plain, name) for name in names},
        moment=tensors["moment"],
        validated=tensors["validated"],
        said=Announced(tensors["available"], tensors["keeps"]),
        epoch=int(facts["epoch"]),
        seed=int(facts["seed"]),
        owed=tuple(step for s in silos for step in unpacked_steps(f"owed{s}of", facts, tensors, s)),
        nevers=tuple(
            (s, event) for s in silos for event in unpack_events(f"nevers{s}of", tensors, facts)
        ),
    )
