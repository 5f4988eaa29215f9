"""Write what a shop needs to serve recommendations: lists of users, neighbours of items."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rescind.audits.case import TopLists, listed, lists
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
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
    """Write both tables, each at once: a reader sees the old one or the new one."""
    found = tables(fed, k)
    for name, columns in found.items():
        write_table(folder / f"{name}.parquet", columns)
    near = found.get(Path(NEAR).stem, {"item": np.array([])})
    return Exported(int(fed.world.members.sum()), len(np.unique(near["item"])))


def tables(
    fed: Federation, k: int, hidden: Collection[str] = ()
) -> dict[str, dict[str, np.ndarray]]:
    """Return the lists of users, and the neighbours of items if the model has weights.

    Users who left, and items that only they had, keep a number in the model. No table has them.
    hidden: items that are in no list, by original id
    """
    if fed.world.task == "nodes":
        raise ConfigError("this run classifies nodes; lists are for runs that rank items.")
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}.")
    out = {i for i, name in enumerate(fed.labels.items) if name in hidden} if hidden else set()
    gone = tuple(sorted(out | {*fed.labels.removed_items}))
    found = {Path(TOP).stem: _lists(fed, k, gone)}
    if near := _neighbours(fed, k, gone):
        found[Path(NEAR).stem] = near
    return found


def _lists(fed: Federation, k: int, gone: tuple[int, ...]) -> dict[str, np.ndarray]:
    ids = fed.world.members.nonzero().squeeze(1).cpu()
    names, items = np.array(fed.labels.users), np.array(fed.labels.items)
    columns: dict[str, list[np.ndarray]] = {"user": [], "rank": [], "item": []}
    clients = fed.world.sizes.clients
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
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _neighbours(fed: Federation, k: int, gone: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the k heaviest neighbours of each item; {} if the model has no such weights."""
    public, items = fed.now.state.public, np.array(fed.labels.items)
    there = torch.ones(len(items), dtype=torch.bool)
    there[list(gone)] = False
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
        return {}
    item, rank = ((weight > 0) & there.unsqueeze(1)).nonzero(as_tuple=True)
    return {
        "item": items[item.numpy()],
        "rank": rank.numpy().astype(np.int16) + 1,
        "neighbour": items[near[item, rank].numpy()],
        "weight": weight[item, rank].float().numpy(),
    }


def write_table(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write a table as Parquet, at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    texts = {n: c.tolist() if c.dtype.kind == "U" else c for n, c in columns.items()}
    pq.write_table(pa.table(texts), sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes(), private=True)
