"""Write the story of a graph whose parts belong to silos. Everything follows from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rescind.core.labels import Labels
from rescind.core.records import (
    Arrive,
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Join,
    Records,
    Withdraw,
)
from rescind.data import GraphDataset
from rescind.data.partition import node_split
from rescind.life.authors import Author
from rescind.life.ledger import TRAIN, Pair
from rescind.life.nodes import NodeLedger
from rescind.life.story import Step, Story

RATIO = (60, 0, 40)
"""Per cent of nodes to train on, for validation, and for the test: in each silo and class."""


@dataclass(frozen=True)
class GraphPlot:
    """How much of everything happens, as shares of what there is."""

    erase: float = 0.08
    """Training nodes that are erased in each block, with their edges."""
    labels: float = 0.05
    edges: float = 0.05
    burst: float = 0.1
    """Training nodes that are erased at once, in one block."""
    away: int = 2
    """Blocks after which the silo that left comes back, with half of its nodes."""


def write_node_story(
    graph: GraphDataset, seed: int = 0, blocks: int = 12, plot: GraphPlot | None = None
) -> Story:
    """Return the story of a graph with published parts."""
    author = _NodeAuthor(graph, seed, blocks, plot or GraphPlot())
    silos, nodes = author.sizes
    about: dict[str, Any] = {
        "dataset": graph.name, "data": graph.digest, "task": "nodes", "seed": seed,
        "blocks": blocks, "users": silos, "items": nodes,
    }  # fmt: skip
    names = Labels(tuple(map(str, range(silos))), tuple(map(str, range(nodes))))
    return Story(about, tuple(author.steps()), names, graph)


class _NodeAuthor(Author):
    """Keeps a ledger to know what there is."""

    prefix = "life nodes"

    def __init__(self, graph: GraphDataset, seed: int, blocks: int, plot: GraphPlot) -> None:
        super().__init__(seed, blocks)
        self.ledger, self.plot = NodeLedger(graph), plot
        self.sizes = len(self.ledger.members), len(graph)
        labelled = np.flatnonzero(graph.y >= 0)
        split = node_split(self.ledger.home[labelled], graph.y[labelled], labelled, seed, RATIO)
        self.split = dict(zip(labelled.tolist(), split.tolist(), strict=True))
        bits = self.clock.bits("life node", torch.from_numpy(labelled))
        order = labelled[torch.argsort(bits, stable=True).numpy()]
        self.arrivals = [part.tolist() for part in np.array_split(order, blocks)]
        self.past: dict[int, list[int]] = {}
        """Nodes of silos that left, which they may bring back."""

    def steps(self) -> Iterator[Step]:
        middle = {self.blocks * 5 // 12: "burst", self.blocks * 8 // 12: "silo"}
        for number in range(self.blocks):
            self.number = number
            back = [s for s, at in self.ledger.left.items() if at == number - self.plot.away]
            yield from self._happens("back", [Join(silo) for silo in back])
            yield from self._happens("arrive", [self._arrival(back)])
            yield from self._happens("erase", self._erase("erase", self.plot.erase))
            yield from self._happens("edges", self._edges())
            yield from self._happens("labels", self._labels())
            if middle.get(number) == "burst":
                yield from self._happens("burst", self._erase("burst", self.plot.burst))
            if middle.get(number) == "silo":
                yield from self._happens("silo", self._silo())

    def _happens(self, why: str, events: list[Event]) -> Iterator[Step]:
        for event in events:
            self.ledger.apply(event)
        if events:
            yield Step(self.number, why, tuple(events))

    def _arrival(self, back: list[int]) -> Event:
        home, members = self.ledger.home, self.ledger.members
        nodes = [n for n in self.arrivals[self.number] if int(home[n]) in members]
        nodes = sorted({*nodes, *(n for silo in back for n in self.past[silo][::2])})
        kinds = torch.tensor([self.split[n] for n in nodes], dtype=torch.int8)
        return Arrive(_records(self._of(nodes)), kinds, *self.sizes)

    def _of(self, nodes: Iterable[int]) -> list[Pair]:
        return [(int(self.ledger.home[n]), n) for n in nodes]

    def _erase(self, why: str, share: float) -> list[Event]:
        chosen = self.draw(why, self.ledger.trained(), share)
        return [Erase(_records(self._of(chosen)))] if chosen else []

    def _labels(self) -> list[Event]:
        chosen = self.draw("labels", self.ledger.trained(), self.plot.labels)
        return [EraseLabels(_records(self._of(chosen)))] if chosen else []

    def _edges(self) -> list[Event]:
        kept = self.ledger.kept_edges()
        chosen = [kept[n] for n in self.draw("edges", range(len(kept)), self.plot.edges)]
        silos = [int(self.ledger.home[low]) for low, _ in chosen]
        low, high = [one for one, _ in chosen], [other for _, other in chosen]
        return [EraseEdges(Records.of(silos, low, high))] if chosen else []

    def _silo(self) -> list[Event]:
        (silo,) = self.draw("silo", self.ledger.members, 0.0)
        mine = [n for n in self.ledger.held if self.ledger.home[n] == silo]
        self.past[silo] = sorted(n for n in mine if self.split[n] == TRAIN)
        return [Withdraw(silo)]


def _records(pairs: Iterable[Pair]) -> Records:
    silos, nodes = zip(*pairs, strict=True)
    return Records.of(list(silos), list(nodes))
