"""What a method must be able to do to take part: learn a block, forget a request, score items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints, Mask

Kind = Literal["unshare", "erase", "withdraw", "edges", "labels"]


@dataclass(frozen=True)
class Setting:
    """What is known before the first block: sizes and the task."""

    users: int
    """People are numbered from 0 to below this."""
    items: int
    task: str = "ranking"
    """"ranking", "next" (the order in time counts) or "nodes"."""
    classes: int = 0
    """Of nodes."""


@dataclass(frozen=True)
class Arrival:
    """The training records of one block, sorted by user and item. One entry per record."""

    block: int
    user: Ints
    item: Ints
    time: Ints
    lent: Mask
    """Whether the person lends the record to the server."""

    def __len__(self) -> int:
        return len(self.user)

    def only(self, chosen: Mask) -> Arrival:
        """Return some of the records."""
        user, item, time = (column[chosen] for column in (self.user, self.item, self.time))
        return Arrival(self.block, user, item, time, self.lent[chosen])


@dataclass(frozen=True)
class Asked:
    """A request to forget, of one or several people at once."""

    kind: Kind
    user: Ints
    item: Ints
    """user, item: [n] the training records it names; of who leaves, all of them."""
    leavers: Ints
    """People who leave; nobody unless the kind is "withdraw"."""

    def names(self, arrival: Arrival) -> Mask:
        """Return which records of an arrival the request names. [n] bool"""
        return np.isin(pair_keys(arrival.user, arrival.item), pair_keys(self.user, self.item))


@dataclass
class Cost:
    """What learning and forgetting took so far. An entry adds to it; 0 if it does not apply."""

    rounds: int = 0
    client_rounds: int = 0
    bytes: int = 0
    online: set[int] = field(default_factory=set)
    """People whose devices took part."""


class Entry(ABC):
    """A method that takes part. One object lives through one story.

    It gets training records only: held-out records stay with the benchmark. It is told nothing of
    what it will be asked. `settings` go into the digest of a result line.
    """

    exact: ClassVar[bool] = False
    """True: claims that `digest` is that of a life without the forgotten records, bit for bit."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed, self.cost = setting, seed, Cost()

    @abstractmethod
    def arrive(self, arrival: Arrival) -> None:
        """Learn from one more block."""

    @abstractmethod
    def forget(self, asked: Asked) -> None:
        """Answer a request: afterwards nothing may be left of the records it names.

        Of an "unshare" the records stay on the device; only the loan must be forgotten.
        """

    @abstractmethod
    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        """Score all items for some people; higher is better. [len(users), items]

        histories: (item, time) per person, by item: what to recommend from. The auditor asks about
        people who have left, too, with items that were never trained on: score by the history then
        """

    def digest(self) -> str:
        """Return a digest of all that was learnt; '' if the same life does not give the same."""
        return ""

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        """Live through these blocks without any request. Only called on a fresh object."""
        for arrival in arrivals:
            self.arrive(arrival)

    def life(self, arrivals: Sequence[Arrival]) -> bytes:
        """Return a key of all that `relive` depends on, beside the seed; b"" if it is not known.

        The auditor lives a life once only, also if different entries have it in common.
        """
        return b""

    def settings(self) -> dict[str, Any]:
        """Return the settings that a result line states."""
        return {"name": type(self).__name__}


def pair_keys(user: Ints, item: Ints) -> Ints:
    """Return each (user, item) as one number. [n]"""
    return (user.astype(np.int64) << 31) + item


def joined(arrivals: Sequence[Arrival]) -> Arrival:
    """Return all records as one arrival, sorted by user and item; of a pair, the first counts."""
    columns = [
        np.concatenate([getattr(a, name) for a in arrivals])
        for name in ("user", "item", "time", "lent")
    ]
    _, first = np.unique(pair_keys(columns[0], columns[1]), return_index=True)
    last = max((a.block for a in arrivals), default=0)
    return Arrival(last, *(column[first] for column in columns))
