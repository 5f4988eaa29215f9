"""PurgeOnly: delete data and stored user state, keep the model (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.request import Request
from rescind.core.state import Memory, reset_rows, without_optimiser_state


@dataclass(frozen=True, kw_only=True)
class PurgeOnly(Unlearner):
    """Deletion without unlearning: a control for measures that cannot detect forgetting."""

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    answers: ClassVar[bool] = False
    unlearning: ClassVar[str] = "PurgeOnly"
    tasks: ClassVar[tuple[str, ...]] = ("ranking", "nodes")

    def forget(self, fed: Federation, request: Request) -> Federation:
        return cleared(fed, request)


def cleared(fed: Federation, request: Request) -> Federation:
    """Apply a request; keep the model, reset or remove all else derived from the records."""
    after = fed.apply(request.event)
    state, clients = after.now.state, after.world.sizes.clients
    first = after.method.server_init(after.world, after.clock).own
    own = reset_rows(without_optimiser_state(state.own), first, request.people, clients)
    return after.with_(state=replace(state, own=own, memory=Memory()))


def without_restore_points(after: Federation, request: Request) -> Federation:
    """Drop the restore points that the records influenced.

    An exact unlearner must not restart from the result of an approximate one.
    """
    if after.past is None or request.first_round is None:
        return after
    return replace(after, past=after.past.before(request.first_round))
