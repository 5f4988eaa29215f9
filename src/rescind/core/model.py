"""What a model must answer. A model holds settings, never parameters."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.params import Params
from rescind.core.world import Sizes


@runtime_checkable
class Model(Protocol):
    """Parameters and their first values, for any task."""

    task: ClassVar[str]
    """"ranking" or "nodes"; a method given the other says so by name."""
    tables: ClassVar[tuple[str, ...]]
    """Names of public parameters with one row per item: clients copy only the rows they touch."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """First values the server broadcasts; each row from its own index, so tables can grow."""
        ...

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """First values on devices, [C, ...]; each client's from its own id, so none is stored."""
        ...


class RankingModel(Model, Protocol):
    """A model that scores items for people."""

    def infer(self, rows: Params, own: Params, lot: Lot) -> Params:
        """What a device makes of its own parameters with its own items (an ego graph, say).

        rows: by table [n, d], the rows of the items in `lot`    own: [C, ...]
        """
        return own

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """Scores of flat samples. rows: by table [n, d]    own: inferred, [C, ...]    -> [n]"""
        ...

    def scores(self, public: Params, own: Params) -> Tensor:
        """Scores of all items for every client. own: inferred, [C, ...]    -> [C, I]"""
        ...
