"""Get the data of a cell ready: loaded, filtered as its recipe says, without removed rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rescind.core.words import count_of
from rescind.data import Dataset, GraphDataset, k_core, load, min_user
from rescind.data.arrays import Ints
from rescind.data.blocklist import Blocklist, of_run
from rescind.data.erasing import rows_left_out
from rescind.data.partition import louvain
from rescind.data.sequences import in_order, next_item
from rescind.data.split import known_pairs, misses
from rescind.errors import BoundaryError
from rescind.experiments.recipe import Cell, DataSettings
from rescind.storage.run_folder import artefact_of

log = logging.getLogger(__name__)
_TOLD: set[str] = set()
"""Datasets whose erased rows this process has spoken of."""
_MISSES_TOLD: set[str] = set()
"""Lines about held-out pairs that are in train, too, that this process has said."""

AnyData = Dataset | GraphDataset


def prepare(
    settings: DataSettings,
    erased_too: bool = False,
    folder: Path | None = None,
    count_erased: bool = False,
) -> Dataset:
    """Load a dataset and apply the recipe's filters.

    erased_too: as in `load`; filters do not count the erased rows
    folder: of a run, whose list of removed rows counts, too
    count_erased: filters count them all the same, as earlier versions did
    """
    names = ("users", "items", "interactions", "variant")
    given = {n: v for n in names if (v := getattr(settings, n)) is not None}
    dataset = load(settings.name, erased_too=erased_too, **given)
    if not isinstance(dataset, Dataset):
        raise BoundaryError(
            f"'{settings.name}' is a graph for node classification; this recipe ranks items. "
            f"Choose one of the interaction datasets (rescind data list)."
        )
    if settings.split == "last" or settings.order:
        dataset = in_order(dataset)  # filters count distinct pairs
    if settings.filters:
        without = erased_too and not count_erased
        counted = _listed(dataset, folder).left_of(dataset) if without else dataset
        kept = _filtered(counted, settings)
        dataset = kept if counted is dataset else _of_both(dataset, kept)
    if settings.split == "random":
        dataset = replace(dataset, split=None)
    return next_item(dataset) if settings.split == "last" else dataset


def _filtered(dataset: Dataset, settings: DataSettings) -> Dataset:
    if settings.min_user is not None:
        dataset = min_user(dataset, settings.min_user)
    return dataset if settings.core is None else k_core(dataset, settings.core)


def _of_both(dataset: Dataset, kept: Dataset) -> Dataset:
    """Return the rows of a dataset whose user and item are in the other one."""
    users, items = np.isin(dataset.users, kept.users), np.isin(dataset.items, kept.items)
    return dataset.select(users[dataset.user] & items[dataset.item]).compact()


def prepare_graph(settings: DataSettings) -> GraphDataset:
    """Load a graph for node classification."""
    graph = load(settings.name)
    if not isinstance(graph, GraphDataset):
        raise BoundaryError(
            f"'{settings.name}' has no nodes to classify; this recipe's method classifies nodes. "
            f"Choose one of the graphs (rescind data list), or a method that ranks items."
        )
    return graph


def obtained(cell: Cell, erased_too: bool = False, folder: Path | None = None) -> AnyData:
    """Load the data of a cell, of the kind that its method works on; the rest as in `prepare`."""
    nodes = cell.method.model.task == "nodes"
    return prepare_graph(cell.data) if nodes else prepare(cell.data, erased_too, folder)


def withheld_from(dataset: AnyData, folder: Path | None = None) -> Blocklist:
    """Return what must not be learnt from a dataset, by its own list and that of a run's folder."""
    found = _listed(dataset, folder)
    if found != _listed_by(folder):
        _tell_left_out(dataset)
    if answered_alone(dataset, folder):
        log.warning("what requests to %s removed is left out here, and in no other run", folder)
    return found


def answered_alone(dataset: AnyData, folder: Path | None) -> bool:
    """Return whether a run leaves out, by its own list, what other runs on the data learn."""
    mine = _listed_by(folder)
    return bool(mine) and not _listed(dataset, None).covers(mine)


def _counted(rows_of_user: Mapping[str, int]) -> str:
    if not rows_of_user:
        return "none of them is stored any more"
    rows = sum(rows_of_user.values())
    users = count_of(len(rows_of_user), "user")
    return f"{count_of(rows, 'row')} of {users} {'is' if rows == 1 else 'are'} left out here"


def _tell_left_out(dataset: AnyData) -> None:
    """Say it once, not for every cell of a recipe: to count them, all rows are read."""
    if dataset.name in _TOLD:
        return
    _TOLD.add(dataset.name)
    what = "they are left out"
    if isinstance(dataset, Dataset):
        what = _counted(rows_left_out(dataset))
    log.warning("users erased rows of '%s': %s", dataset.name, what)


def tell_misses(dataset: Dataset) -> None:
    """Say once, not for every cell, which pairs of the parts that are measured nobody can hit."""
    told = misses(known_pairs(dataset))
    if told and (line := f"dataset '{dataset.name}': {told}") not in _MISSES_TOLD:
        _MISSES_TOLD.add(line)
        log.warning(line)


def _listed(dataset: AnyData, folder: Path | None) -> Blocklist:
    known = dataset.source not in ("", "generated")
    return _listed_by(folder) | Blocklist.of_dataset(dataset.name) if known else _listed_by(folder)


def _listed_by(folder: Path | None) -> Blocklist:
    name = artefact_of(folder) if folder else ""
    return Blocklist.of_dataset(of_run(name)) if name else Blocklist()


def parts_of(settings: DataSettings, graph: GraphDataset) -> Ints | None:
    """Return the client of each node; None means the METIS parts of the package. [N]"""
    if settings.parts == "louvain":
        return louvain(graph, settings.clients or 10)
    return np.zeros(len(graph), dtype=np.int64) if settings.parts == "whole" else None
