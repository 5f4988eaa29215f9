"""Requests that name a person by original id, as people outside the core do.

Events of `records` name a client by index. A federation knows both (`Labels`), so it turns these
requests into events, in one place: `Federation.event_of`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from rescind.core import records
from rescind.core.labels import Labels


@dataclass(frozen=True)
class Named(ABC):
    """A request of one person, named by original id. Not an event until a federation reads it."""

    user: str | int
    """The original id, as in the data. Of data without ids (graphs), the number of the client."""

    @abstractmethod
    def event(self, labels: Labels, clients: int) -> records.Event:
        """Return the event with the index of this person; raise `DataError` if unknown."""


@dataclass(frozen=True)
class Withdraw(Named):
    """A user, given by original id, leaves with all their data."""

    def event(self, labels: Labels, clients: int) -> records.Event:
        return records.Withdraw(labels.client(self.user, clients))


@dataclass(frozen=True)
class Join(Named):
    """A user, given by original id, becomes a member again."""

    def event(self, labels: Labels, clients: int) -> records.Event:
        return records.Join(labels.client(self.user, clients))
