"""Gradient ascent on the records to forget, then repair on the rest (baselines.md 3.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import GraphSteps
from rescind.methods.unlearning.purge_only import cleared, without_restore_points


@dataclass(frozen=True, kw_only=True)
class Ascent(Unlearner):
    """The server ascends the loss of the shared records to forget; then devices train as usual.

    Needs an item table. Uses only shared records: the server has no others, and a client that left
    cannot take part.
    """

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Ascent"

    climbs: int = 10
    """Ascent steps; more damage the model (baselines.md 3.6)."""
    climb_rate: float = 0.001
    """Learning rate of Adam in the ascent."""
    climb_layers: int = 1
    """Propagation steps on the forgotten graph."""
    climb_temperature: float = 0.2
    """Temperature of the BPR loss in the ascent."""
    repairs: int = 5
    """Rounds of the federation's own method on the remaining records."""

    def __post_init__(self) -> None:
        must_lie(self, "[0, inf)", "climbs", "repairs", "climb_layers")
        must_lie(self, "(0, inf)", "climb_rate", "climb_temperature")

    def forget(self, fed: Federation, request: Request) -> Federation:
        after = cleared(fed, request)
        public = self.server_steps(fed.now.state, fed.world, after.world, fed.clock)
        after = after.with_(state=replace(after.now.state, public=public))
        return without_restore_points(after.run(self.repairs), request)

    def server_steps(self, state: ServerState, before: World, after: World, clock: Clock) -> Params:
        """Return the public parameters after ascent on the BPR of the removed shared records."""
        removed = before.shared[~before.shared.among(after.shared)]
        table = state.public.get("item")
        if table is None or table.dim() != 2 or not table.is_floating_point():
            raise ConfigError("Ascent needs a table of item vectors. Use Retrain.")
        if not len(removed) or not self.climbs:
            return state.public
        rows = state.own.get("user")
        if rows is None or rows.shape != (before.sizes.clients, table.shape[1]):
            rows = table.new_zeros(before.sizes.clients, table.shape[1])
        ascent = GraphSteps(
            layers=self.climb_layers,
            steps=self.climbs,
            rate=self.climb_rate,
            temperature=self.climb_temperature,
            weight=-1.0,  # descent on the negative loss
        )
        graph = graph_of(replace(before, shared=removed))
        _, item, _ = ascent.run(graph, rows, table, {}, clock.at(state.round))
        return {**state.public, "item": item}
