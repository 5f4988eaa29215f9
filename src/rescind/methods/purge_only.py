"""PurgeOnly: data and what is kept about people go, the model stays as it is (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rescind.methods.fedavg import FedAvg
from rescind.records import Erase, Event, Unshare, Withdraw
from rescind.state import Memory

if TYPE_CHECKING:
    from rescind.federation import Federation


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
    state, who = after.now.state, people(event)
    first = after.method.server_init(after.world, after.clock).own
    own: dict[str, Tensor] = {}
    for name, value in state.own.items():
        if "server/" in name:  # moments, of any optimiser
            continue
        own[name], new = value, first.get(name)
        of_people = name.rsplit("/", 1)[-1] == "user" and value.dim() == 2
        if of_people and new is not None and new.shape == value.shape:
            there = who.to(value.device)
            own[name] = value.index_copy(0, there, new.to(value).index_select(0, there))
    return after.with_(state=replace(state, own=own, memory=Memory()))


def people(event: Event) -> Tensor:
    """Whose records a request is about. [n] sorted"""
    if isinstance(event, Withdraw):
        return torch.tensor([event.client])
    assert isinstance(event, Unshare | Erase)
    return torch.unique(event.records.client)


def no_way_back(before: Federation, after: Federation, event: Event) -> Federation:
    """Without the points of rounds that the records mattered in, or that came after them.

    What an approximate unlearner leaves is no place from which an exact one may start again.
    """
    first = before.past.influence(event, before.now.state.round) if before.past else None
    if after.past is None or first is None:
        return after
    return replace(after, past=after.past.before(first))
