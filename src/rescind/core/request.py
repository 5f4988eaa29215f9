"""A request to forget, as one value: the event, and what it means to a federation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rescind.core.records import Erase, EraseEdges, Records, Unshare, Withdraw


@dataclass(frozen=True)
class Request:
    """What is to be forgotten. Made once (`Federation.request`) and handed down."""

    event: Unshare | Erase | Withdraw
    records: Records
    """The records as devices hold them, or as far as the server knows them. All of one
    who withdraws; none if only edges go."""
    people: Tensor
    """[n] sorted: the clients concerned."""
    first_round: int | None
    """The first round in which the records may have had influence; None: in none so far."""
    away: tuple[int, ...] = ()
    """Clients whose devices cannot be reached now."""

    @property
    def count(self) -> int:
        """How many records are forgotten; of edges, how many edges."""
        return len(self.event.records if isinstance(self.event, EraseEdges) else self.records)

    @property
    def kind(self) -> str:
        """The kind of event, as receipts name it."""
        return type(self.event).__name__
