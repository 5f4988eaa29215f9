"""Convert the folder of a silo that an earlier version wrote: its numbers become keys of ids.

That is possible while the data has the numbering of then. The folder itself tells: what was erased,
and what the silo still holds, must be rows of the data, under the same numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.files import write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Records
from rescind.data import Dataset
from rescind.data.blocklist import FILE, Blocklist, keyed_digest
from rescind.errors import DataError
from rescind.experiments.prepared_data import prepare
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.names import Numbering
from rescind.flower.silo.storage import Store
from rescind.flower.silo.withheld import BY, has_numbers
from rescind.flower.wire.steps import HELD
from rescind.privacy.keys import erasure_key

KEPT = "withheld-by-number.json"
"""The list as it was, beside the converted one."""


def upgrade(store: Store, data: RecipeData) -> None:
    """Convert a silo's list and name the numbering of its saved states, where they have none.

    Raises `DataError`, and changes nothing, if the list cannot be converted.
    """
    listed = Blocklist.read(store.folder)
    unnamed = [m for m in store.moments(HELD) if not store.numbering_of(m)]
    if not has_numbers(listed) and not unnamed:
        return
    found = _numbering_of_then(store, data, listed, unnamed)
    if has_numbers(listed):
        if found is None:
            raise _unknown(store, data)
        rows, numbering = found
        write_atomically(store.folder / KEPT, (store.folder / FILE).read_bytes())
        _converted(listed, rows, numbering).write(store.folder)
    if found is not None:
        name = store.save_numbering(found[1])
        for moment in unnamed:
            store.save_held(moment, store.held(moment), name)


def _numbering_of_then(
    store: Store, data: RecipeData, listed: Blocklist, unnamed: list[int]
) -> tuple[Records, Numbering] | None:
    """Return the rows and the numbering by which a folder was written; None if not known."""
    if data.is_graph:
        holdings, labels = data.hold(0)
        return holdings.records, Numbering.of(labels, holdings.clients, holdings.items)
    # Rows that the dataset's own list leaves out may have been there then, and counted by filters.
    for erased_too, counted in ((False, False), (True, False), (True, True)):
        rows = data.numbered(prepare(data.settings, erased_too, count_erased=counted))
        records = Records.of(torch.tensor(rows.user), torch.tensor(rows.item))
        held = all(bool(store.held(m).records.among(records).all()) for m in unnamed)
        if held and _explains(rows, listed):
            return records, Numbering.of(Labels.of(rows), len(rows.users), len(rows.items))
    return None


def _explains(rows: Dataset, listed: Blocklist) -> bool:
    """Return whether all that a list has numbers of is in the data, under these numbers."""
    if not has_numbers(listed):
        return True
    key = erasure_key()
    people = {keyed_digest(key, n) for n in range(len(rows.users))}
    pairs = {keyed_digest(key, u, i) for u, i in _pairs(rows.user, rows.item, listed, key)}
    return listed.withdrawn <= people and listed.erased <= pairs


def _pairs(
    user: NDArray[np.int64], item: NDArray[np.int64], listed: Blocklist, key: bytes
) -> list[tuple[int, int]]:
    """Return the pairs of people on a list that has numbers."""
    known = {n for n in np.unique(user).tolist() if keyed_digest(key, n) in listed.people}
    rows = np.flatnonzero(np.isin(user, list(known)))
    return list(zip(user[rows].tolist(), item[rows].tolist(), strict=True))


def _converted(listed: Blocklist, rows: Records, numbering: Numbering) -> Blocklist:
    """Return a list by keys that names the same people and rows as one by numbers."""
    key = erasure_key()
    pairs = [
        (u, i)
        for u, i in _pairs(rows.client.numpy(), rows.item.numpy(), listed, key)
        if keyed_digest(key, u, i) in listed.erased
    ]
    users = [numbering.users[u] for u, _ in pairs]
    items = [numbering.items[i] for _, i in pairs]
    new = Blocklist(graph=listed.graph, by=BY).with_erased(users, items)
    for number, user in enumerate(numbering.users):
        if keyed_digest(key, number) in listed.withdrawn:
            new = new.with_withdrawn(user)
    return replace(new, by=BY)


def _unknown(store: Store, data: RecipeData) -> DataError:
    name = data.settings.name
    return DataError(
        f"{store.folder / FILE} names users who withdrew by numbers, as earlier versions did, and "
        f"'{name}' was numbered anew or replaced since: who is meant is not known. Nothing was "
        f"changed. Put the data back as it was at this silo's last training (rescind data import "
        f"--replace), join once, then add the later files again (rescind data append). Or, if you "
        f"know who withdrew, delete their rows on each machine that has this data (rescind data "
        f"erase {name} --user ID), move the list away, and join."
    )
