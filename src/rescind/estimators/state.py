"""What an estimator has learnt: after an interrupt at any moment, as before a change or as after.

An interrupt (a signal, no memory) may come between any two steps, and the sum is too large to be
copied for each person. So a change marks what it is about to touch, and what is marked is repaired
by whatever looks at it next: the ledger is made to have the change, the sum is counted again. Where
records are not at hand, and a new fit, are made beside, and replace the old with one assignment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor


class Book(Protocol):
    """Who has what. A change of it has final values, so that it may be made again."""

    def apply(self, change: Any) -> None: ...


Of = TypeVar("Of", bound=Book)


@dataclass
class State(Generic[Of]):
    """Who has what, the sum over them, and what was made from it."""

    book: Of
    total: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    counted_by: Any = None
    """The settings that the sum was counted with; None: it is to be counted again."""
    made: dict[str, Any] = field(default_factory=dict)
    """From sum and settings, until either changes."""
    columns: dict[str, str] = field(default_factory=dict)
    """As given to `fit`, for the frames that follow."""
    unfinished: Any = None
    """A change that the ledger may have in part."""

    def change(self, change: Any) -> Any:
        """Change the ledger and mark the sum; return the settings that it was counted with."""
        counted, self.counted_by = self.counted_by, None
        self.made = {}
        self.unfinished = change
        self.finish()
        return counted

    def finish(self) -> None:
        """Finish what was interrupted."""
        if self.unfinished is not None:
            self.book.apply(self.unfinished)
            self.unfinished = None


class Stateful(Generic[Of]):
    """Something with a state, whose ledger is read here and nowhere else."""

    _state: State[Of]

    @property
    def _ledger(self) -> Of:
        self._state.finish()
        return self._state.book
