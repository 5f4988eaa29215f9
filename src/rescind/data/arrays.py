"""Column types, split labels, and the dataset interfaces that this package uses."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

TRAIN, VALID, TEST = 0, 1, 2

Ints = NDArray[np.int64]
Labels = NDArray[np.int8]
Mask = NDArray[np.bool_]
Strings = NDArray[np.str_]


class Interactions(Protocol):
    """User-item rows (`Dataset`)."""

    @property
    def name(self) -> str: ...
    @property
    def user(self) -> Ints: ...
    @property
    def item(self) -> Ints: ...
    @property
    def time(self) -> Ints: ...
    @property
    def split(self) -> Labels | None: ...
    @property
    def users(self) -> Strings: ...
    @property
    def items(self) -> Strings: ...
    def __len__(self) -> int: ...

    def select(self, mask: NDArray[Any]) -> Self:
        """Keep the rows of a mask."""
        ...

    def compact(self) -> Self:
        """Drop users and items without rows and renumber the rest."""
        ...


class LabelledGraph(Protocol):
    """Nodes with features, labels and edges (`GraphDataset`)."""

    @property
    def name(self) -> str: ...
    @property
    def edge_index(self) -> Ints: ...
    @property
    def features(self) -> Any: ...
    @property
    def y(self) -> Ints: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def __len__(self) -> int: ...
