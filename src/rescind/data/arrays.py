"""Column types, split labels, and the dataset interfaces that this package uses."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

TRAIN, VALID, TEST = 0, 1, 2

Ints = NDArray[np.int64]
Labels = NDArray[np.int8]
Mask = NDArray[np.bool_]
Strings = NDArray[np.str_]


def both_directions(start: Ints, end: Ints, nodes: int) -> Ints:
    """Return sorted edges in both directions, without self-loops and duplicates. [2, E]"""
    start, end = start[start != end], end[start != end]
    key = np.unique(np.concatenate((start * nodes + end, end * nodes + start)))
    return np.stack((key // nodes, key % nodes))


class Interactions(Protocol):
    """User-item rows (`Dataset`)."""

    @property
    def user(self) -> Ints: ...
    @property
    def item(self) -> Ints: ...
    @property
    def users(self) -> Strings: ...
    @property
    def items(self) -> Strings: ...


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
