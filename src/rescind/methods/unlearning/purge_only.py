"""PurgeOnly: data and what is kept about people go, the model stays as it is (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rescind.core.records import Event, concerned
from rescind.core.state import Memory, begun_anew, without_moments
from rescind.methods.baselines.fedavg import FedAvg

if TYPE_CHECKING:
    from rescind.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class PurgeOnly(FedAvg):
    """Deletion without unlearning: it shows which measures cannot see forgetting at all."""

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "PurgeOnly"

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Rows of the people concerned begin anew; moments and memory of the server go."""
        return cleared(fed, event)


def cleared(fed: Federation, event: Event) -> Federation:
    """The world after a request, and a server with the model it had and nothing of the people.

    Rows of those who asked are first values again. What the server's optimisers remember, and its
    snapshots, were made with the records, so they go.
    """
    after = fed.apply(event)
    state, clients = after.now.state, after.world.sizes.clients
    first = after.method.server_init(after.world, after.clock).own
    own = begun_anew(without_moments(state.own), first, concerned(event), clients)
    return after.with_(state=replace(state, own=own, memory=Memory()))


def no_way_back(before: Federation, after: Federation, event: Event) -> Federation:
    """Without the points of rounds that the records mattered in, or that came after them.

    What an approximate unlearner leaves is no place from which an exact one may start again.
    """
    first = before.past.influence(event, before.now.state.round) if before.past else None
    if after.past is None or first is None:
        return after
    return replace(after, past=after.past.before(first))
