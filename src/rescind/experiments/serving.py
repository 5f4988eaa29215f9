"""Write what a shop needs to serve recommendations: lists of users, neighbours of items."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rescind.audits.case import TopLists, listed, lists
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.files import make_folder, write_atomically
from rescind.core.params import Params
from rescind.core.tasks.metrics import Scores
from rescind.errors import ConfigError
from rescind.methods.additive._solve import WEIGHTS
from rescind.models.item_item import LocalWeights

TOP, NEAR = "top-k.parquet", "neighbours.parquet"
AT_ONCE = 4096
"""Users whose lists are made together; changes speed only."""


@dataclass(frozen=True)
class Exported:
    """Rows that were written."""

    users: int
    items: int
    """Items with neighbours, 0 if the model has none."""


@dataclass(frozen=True)
class PopularLists(TopLists):
    """Lists of users without data, for whom a model has no scores: as `Federation.recommend`."""

    owners: Tensor = field(kw_only=True)
    """How many members own each item. [I]"""
    wants_scores: ClassVar[bool] = False

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Return "list": the most popular items that each user does not have."""
        return super().totals(self.owners.expand(len(cohort), -1), cohort, masked)


def export(fed: Federation, folder: Path, k: int) -> Exported:
    """Write both tables, each at once: a reader sees the old one or the new one.

    Users who left, and items that only they had, keep a number in the model. No table has them.
    """
    if fed.world.task == "nodes":
        raise ConfigError("this run classifies nodes; lists are for runs that rank items.")
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}.")
    make_folder(folder)
    users = _write_lists(fed, folder / TOP, k)
    return Exported(users, _write_neighbours(fed, folder / NEAR, k))


def _write_lists(fed: Federation, path: Path, k: int) -> int:
    ids = fed.world.members.nonzero().squeeze(1).cpu()
    names, items = np.array(fed.labels.users), np.array(fed.labels.items)
    columns: dict[str, list[np.ndarray]] = {"user": [], "rank": [], "item": []}
    clients, gone = fed.world.sizes.clients, fed.labels.removed_items
    has_data, owners = fed.world.available.cpu(), fed.popularity().double()
    popular = PopularLists(clients, k, mask=("had",), without=gone, owners=owners)
    for begin in range(0, len(ids), AT_ONCE):
        part = ids[begin : begin + AT_ONCE]
        top = lists(fed, part, k, without=gone, mask=("had",))
        empty = ~has_data[part]
        if empty.any():
            top[empty] = listed(fed, part[empty], popular)
        row, rank = (top >= 0).nonzero(as_tuple=True)
        columns["user"].append(names[part[row].numpy()])
        columns["rank"].append(rank.numpy().astype(np.int16) + 1)
        columns["item"].append(items[top[row, rank].numpy()])
    _write(path, {name: np.concatenate(parts) for name, parts in columns.items()})
    return len(ids)


def _write_neighbours(fed: Federation, path: Path, k: int) -> int:
    """Write the k heaviest neighbours of each item, if the model has weights between items."""
    public, items = fed.now.state.public, np.array(fed.labels.items)
    there = torch.ones(len(items), dtype=torch.bool)
    there[list(fed.labels.removed_items)] = False
    if isinstance(fed.method.model, LocalWeights):
        near, weight = public["neighbour"].cpu().long(), public["weight"].cpu().double()
        weight = weight.masked_fill((near < 0) | ~there[near], -torch.inf)
        order = weight.argsort(1, descending=True)[:, :k]
        near, weight = near.gather(1, order), weight.gather(1, order)
    elif WEIGHTS in public and public[WEIGHTS].ndim == 2:
        # B_ij is what having item i adds to the score of j: column j holds the neighbours of j.
        each = public[WEIGHTS].cpu().double().T
        each = each.masked_fill(~there, -torch.inf)
        weight, near = each.topk(min(k, each.shape[1]), dim=1)
    else:
        return 0
    item, rank = ((weight > 0) & there.unsqueeze(1)).nonzero(as_tuple=True)
    columns = {
        "item": items[item.numpy()],
        "rank": rank.numpy().astype(np.int16) + 1,
        "neighbour": items[near[item, rank].numpy()],
        "weight": weight[item, rank].float().numpy(),
    }
    _write(path, columns)
    return len(np.unique(item.numpy()))


def _write(path: Path, columns: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    texts = {n: c.tolist() if c.dtype.kind == "U" else c for n, c in columns.items()}
    pq.write_table(pa.table(texts), sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes(), private=True)
