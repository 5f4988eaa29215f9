"""Item views on the graph of forgotten loans, and the loss that moves away (FedShare IV-C)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.methods._lent_graph.graph import SharedGraph

Reading = Literal["bpr_in_batch", "in_batch", "as_written", "positive_in_denominator"]
"""Denominator of Eq. (25): see `contrastive_forgetting`."""


def forgotten_views(
    graph: SharedGraph, user: Tensor, tables: Sequence[Tensor], layers: int, own_layer: bool
) -> Tensor:
    """Compute item views on the forgotten graph from M earlier tables (Eq. 23-24). [M, F, d]

    own_layer: include the item's own layer 0; the view is then nearly the item itself (cosine
    .997: fedshare.md section 4).

    user: [clients, d]    tables: M of [I, d]    F: the items of the forgotten graph, in order
    """
    views = []
    for table in tables:
        _, seen = graph.propagate(user.index_select(0, graph.sharers), table, layers)
        seen = seen if own_layer else seen - table / (layers + 1)
        views.append(seen.index_select(0, graph.lent_items))
    none = user.new_zeros(0, len(graph.lent_items), user.shape[1])
    return torch.stack(views) if views else none


def extend(table: Tensor, like: Tensor) -> Tensor:
    """Extend an earlier table by the rows of newer items. [I, d]"""
    return torch.cat([table, like[len(table) :]]) if len(table) < len(like) else table


def views_of(chosen: Tensor, items: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
    """Return the views of chosen items, and which items have views: ([M, n, d], [n] bool).

    chosen: [n]    items: [F] sorted    views: [M, F, d]
    """
    if not views.shape[0] or not len(items):
        none = torch.zeros(len(chosen), dtype=torch.bool, device=chosen.device)
        return views.new_zeros(views.shape[0], len(chosen), views.shape[2]), none
    place = torch.searchsorted(items, chosen).clamp(max=len(items) - 1)
    return views.index_select(1, place), items[place] == chosen


def contrastive_forgetting(
    local: Tensor,
    seen: Tensor,
    forgotten: Tensor,
    has: Tensor,
    temperature: float,
    reading: Reading = "in_batch",
) -> Tensor:
    """Compute the loss that pulls items to their new view, away from forgotten ones (Eq. 25).

    The mean over items i of -cos(l_i, s_i) / tau + log D_i, where D_i sums exp(cos / tau) over
    "as_written": the forgotten views of i; without any, the term is alignment only,
    "positive_in_denominator": also its own global view,
    "in_batch" and "bpr_in_batch": also the global views of all items.

    local, seen: [n, d]    forgotten: [M, n, d]    has: [n] bool, which items have forgotten views
    """
    each = contrastive_terms(local, seen, forgotten, has, temperature, reading)
    return each.mean() if len(each) else local.new_zeros(())


def contrastive_terms(
    local: Tensor,
    seen: Tensor,
    forgotten: Tensor,
    has: Tensor,
    temperature: float,
    reading: Reading = "in_batch",
) -> Tensor:
    """Return the terms of `contrastive_forgetting`, one per item. [n]"""
    one, two = functional.normalize(local, dim=-1), functional.normalize(seen, dim=-1)
    away = functional.normalize(forgotten, dim=-1)
    right = torch.linalg.vecdot(one, two) / temperature
    wrong = torch.einsum("nd,mnd->nm", one, away) / temperature
    if reading == "as_written":
        if not wrong.shape[1]:
            return -right
        # An empty denominator counts as 1.
        return torch.where(has, wrong.logsumexp(1), 0.0) - right
    wrong = wrong.masked_fill(~has.unsqueeze(1), float("-inf"))
    good = right.unsqueeze(1) if reading == "positive_in_denominator" else one @ two.T / temperature
    return torch.cat([good, wrong], 1).logsumexp(1) - right
