"""Save and load a federation over silos on the server's disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.executor import Executor
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.saved import reading, table_in
from rescind.core.world import Announced
from rescind.flower.server.remote_holdings import RemoteHoldings, remote_holdings
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import (
    of_silo,
    packed_steps,
    unpacked_steps,
)
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.packing import Facts, drawer, under

SILOS = "silos.safetensors"


def save_remote(fed: Federation, place: Path) -> None:
    """Write a federation. After `load_remote` it sends the same messages to the silos."""
    save_federation(fed, place)
    tensors, facts = _pack(remote_holdings(fed.now.vault))
    tensors, saved = under("now", tensors), {"now": facts}
    if fed.past is not None and isinstance(fed.past.origin, RemoteHoldings):
        packed, saved["origin"] = _pack(fed.past.origin)
        tensors |= under("origin", packed)
    params.save(place / SILOS, tensors, {"facts": json.dumps(saved)})


def load_remote(place: Path, executor: Executor | None) -> Federation:
    """Read what `save_remote` wrote."""
    fed = load_federation(place, executor)
    tensors, notes = params.load(place / SILOS)
    with reading(place / SILOS):
        return _with_silos(fed, tensors, table_in(notes))


def _with_silos(fed: Federation, tensors: Params, saved: Facts) -> Federation:
    past = fed.past
    held = _unpack(fed.now.vault.holdings, saved["now"], drawer("now", tensors))
    if past is not None and "origin" in saved:
        origin = _unpack(past.origin, saved["origin"], drawer("origin", tensors))
        past = replace(past, origin=origin)
    now = replace(fed.now, vault=replace(fed.now.vault, holdings=held))
    return replace(fed, world=replace(fed.world, announced=held.known), now=now, past=past)


def _pack(held: RemoteHoldings) -> tuple[dict[str, Tensor], Facts]:
    """Return the fields that `save_federation` does not write, as (tensors, facts)."""
    tensors = {
        "moment": held.moment, "validated": held.validated, "available": held.available,
        "keeps": held.keeps, "heaviest": held.heaviest,
    }  # fmt: skip
    facts: Facts = {"epoch": held.epoch, "seed": held.seed}
    for silo in range(held.silos):
        owed, owed_tensors = packed_steps(f"owed{silo}of", held.owed, silo)
        left_tensors, left_out = pack_events(f"nevers{silo}of", of_silo(held.left_out, silo))
        facts, tensors = {**facts, **owed, **left_out}, {**tensors, **owed_tensors, **left_tensors}
    facts["letters"] = [[silo, letter.facts] for silo, letter in held.letters]
    for number, (_, letter) in enumerate(held.letters):
        tensors |= under(f"letter{number}", letter.tensors)
    return tensors, facts


def _unpack(plain: Holdings, facts: Facts, tensors: Params) -> RemoteHoldings:
    names = ("records", "split", "block", "lent", "members", "items", "now", "task", "graph")
    silos = range(len(tensors["moment"]))
    return RemoteHoldings(
        **{name: getattr(plain, name) for name in names},
        moment=tensors["moment"],
        validated=tensors["validated"],
        heaviest=tensors.get("heaviest", torch.ones_like(tensors["moment"])),
        announced=Announced(tensors["available"], tensors["keeps"]),
        epoch=int(facts["epoch"]),
        seed=int(facts["seed"]),
        owed=tuple(step for s in silos for step in unpacked_steps(f"owed{s}of", facts, tensors, s)),
        letters=tuple(
            (silo, Letter(one, drawer(f"letter{number}", tensors)))
            for number, (silo, one) in enumerate(facts.get("letters", ()))
        ),
        left_out=tuple(
            (s, event) for s in silos for event in unpack_events(f"nevers{s}of", tensors, facts)
        ),
    )
