"""A stream of blocks over silos: each brings its own block, the server hears how large it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rescind import params
from rescind.cell import Cell
from rescind.federation import Federation
from rescind.flower.elsewhere import Elsewhere, elsewhere
from rescind.flower.executor import FlowerExecutor
from rescind.flower.letters import Owed, of_silo, packed_events, unpacked_events
from rescind.packing import Facts
from rescind.params import Params
from rescind.stream_cell import Halts, blocks_of, facts_of
from rescind.streams import Stream, Watch, run_stream
from rescind.world import Announced

SILOS = "silos.safetensors"


@dataclass
class SiloHalts(Halts):
    """Beside a federation whose devices are elsewhere it keeps where they are."""

    def save(self, fed: Federation, place: Path) -> None:
        """Write a federation as a block begins."""
        super().save(fed, place)
        held = elsewhere(fed.now.vault)
        tensors = {
            "moment": held.moment, "validated": held.validated, "available": held.available,
            "keeps": held.keeps,
        }  # fmt: skip
        facts: Facts = {"epoch": held.epoch, "seed": held.seed}
        for name, events in (("owed", held.owed), ("nevers", held.nevers)):
            for silo in range(held.silos):
                told, packed = packed_events(f"{name}{silo}of", of_silo(events, silo))
                facts, tensors = {**facts, **told}, {**tensors, **packed}
        params.save(place / SILOS, tensors, {"facts": json.dumps(facts)})

    def load(self, place: Path) -> Federation:
        """What `save` wrote."""
        fed = super().load(place)
        tensors, notes = params.load(place / SILOS)
        facts, plain = json.loads(notes["facts"]), fed.now.vault.holdings
        said = Announced(tensors["available"], tensors["keeps"])
        names = ("records", "split", "block", "lent", "members", "items", "now", "task", "graph")
        held = Elsewhere(
            **{name: getattr(plain, name) for name in names},
            moment=tensors["moment"], validated=tensors["validated"], said=said,
            epoch=int(facts["epoch"]), seed=int(facts["seed"]),
            owed=_events("owed", facts, tensors), nevers=_events("nevers", facts, tensors),
        )  # fmt: skip
        now = replace(fed.now, vault=replace(fed.now.vault, holdings=held))
        past = fed.past and replace(fed.past, origin=held)
        return replace(fed, world=replace(fed.world, announced=said), now=now, past=past)


def _events(name: str, facts: Facts, tensors: Params) -> Owed:
    return tuple(
        (silo, event)
        for silo in range(len(tensors["moment"]))
        for event in unpacked_events(f"{name}{silo}of", facts, tensors)
    )


def train_stream(
    cell: Cell,
    executor: FlowerExecutor,
    folder: Path,
    again: bool,
    wait: float,
    watch: Sequence[Watch] = (),
) -> tuple[Federation, dict[str, Any]]:
    """The blocks of a cell, and what run.json says of them.

    again: go on in the block, and at the checkpoint in it, where an earlier run stopped
    """
    seed = cell.run.seed
    halts = SiloHalts(folder / "checkpoints", cell, executor.run, executor)
    if not again:
        halts.clear()
    stream = Stream(executor.gather(seed, wait), executor.arrivals(seed))
    keep = executor.watch(cell.run.checkpoint_every)
    done = run_stream(
        stream, cell.method, seed, blocks_of(cell), executor, (halts.meter, keep, *watch),
        keeper=halts,
    )  # fmt: skip
    facts = facts_of(cell, done, halts.meter)
    halts.clear()
    return done.fed, facts
