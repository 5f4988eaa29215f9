"""Attacks on the state of a server: its public item table, its user rows, its old user rows.

fedshare.md section 4: the leak is in the user rows on the server. An attack on outputs cannot see
it, because a deleted user is never scored with these rows again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, auc_by_person, mean_of, scores_from_split
from rescind.core import jagged
from rescind.core.federation import Federation
from rescind.core.params import Params

MOMENTS = {"first", "second"}
"""Name parts that mark an optimiser's moments (`rescind.core.optim`)."""


def table(case: Case, fed: Federation) -> PerPerson:
    """Attack the public table alone: users are inferred from their validation items."""
    return auc_by_person(_table_scores(case, fed), case.tested)


def calibrated(case: Case, fed: Federation) -> PerPerson:
    """Like `table`, but subtract the score of retrained models."""
    usual = mean_of([_table_scores(case, other) for other in case.other_refs(fed)])
    return auc_by_person(_table_scores(case, fed) - usual, case.tested)


def _table_scores(case: Case, fed: Federation) -> Tensor:
    return case.cached(
        "table", fed, lambda: scores_from_split(fed, "valid", case.tested, case.before)
    )


def person_rows(own: Params, clients: int, moments: bool = False) -> dict[str, Tensor]:
    """Return the server's user rows: names that end in "user", one row per client.

    moments: also return the optimiser's moments, which are gradients and not user vectors
    """
    return {
        name: value
        for name, value in own.items()
        if name.rsplit("/", 1)[-1] == "user"
        and value.dim() == 2
        and len(value) == clients
        and (moments or not MOMENTS & set(name.split("/")))
    }


def item_table(fed: Federation, width: int) -> Tensor | None:
    """Return the public item table of this width, or None. [I, d]"""
    for name in fed.method.model.tables:
        value = fed.now.state.public.get(name)
        if value is not None and value.dim() == 2 and value.shape[1] == width:
            return value
    return None


def kept(case: Case, fed: Federation) -> PerPerson | None:
    """Attack the server's user rows after one propagation step over its graph."""
    return _rows_auc(case, fed, fed, spread=True)


def kept_rows(case: Case, fed: Federation) -> PerPerson | None:
    return _rows_auc(case, fed, fed, spread=False)


def stale(case: Case, fed: Federation) -> PerPerson | None:
    """Attack with the old user rows and the new item table, as with a kept copy."""
    return _rows_auc(case, case.before, fed, spread=False)


def carried(case: Case, fed: Federation) -> PerPerson | None:
    """Like `stale`, but rotate the old user rows from the old item table to the new one.

    Models with other initial values lie in other directions, where old rows find nothing; the same
    holds for a table that was only rotated. Orthogonal Procrustes undoes the rotation.
    """
    return _rows_auc(case, case.before, fed, spread=False, turn=True)


def rotation(old: Tensor, new: Tensor) -> Tensor:
    """Compute the rotation Q that minimises ||old Q - new||, both centred: U V' of old' new. [d, d]

    old, new: [I, d]
    """
    left, _, right = torch.linalg.svd((old - old.mean(0)).T @ (new - new.mean(0)))
    return left @ right


def _rows_auc(
    case: Case, holder: Federation, fed: Federation, spread: bool, turn: bool = False
) -> PerPerson | None:
    """Compute the AUC of cos(user row, item - mean item).

    0.5 if the server deleted its rows; None if it never had any.
    holder: model with the user rows    fed: model with the item table    turn: rotate the rows
    """
    targets = case.targets
    found = []
    for rows in person_rows(holder.now.state.own, holder.world.sizes.clients).values():
        item = item_table(fed, rows.shape[1])
        if item is None:
            continue
        user, item = rows.double().cpu(), item.double().cpu()
        if spread:
            user, item = spread_once(holder, user, item)
        old = item_table(holder, rows.shape[1]) if turn else None
        if old is not None and len(old) == len(item):
            user = user @ rotation(old.double().cpu(), item)
        # The mean item says how much a user likes items in general, not which.
        user, item = (functional.normalize(t, dim=-1) for t in (user, item - item.mean(0)))
        at = targets.records
        found.append(torch.linalg.vecdot(user[at.client], item[at.item]))
    if found:
        return auc_by_person(torch.stack(found).sum(0), targets)
    had = person_rows(case.before.now.state.own, case.before.world.sizes.clients)
    return auc_by_person(torch.zeros(len(targets)), targets) if had else None


def spread_once(fed: Federation, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Compute x + A x, A the normalised adjacency of the server's graph: (users, items)."""
    pairs = torch.unique(fed.world.shared.pairs().cpu())
    client, liked = pairs >> 31, pairs & (2**31 - 1)
    by_user = jagged.counts(client, len(user)).clamp(min=1).double()
    by_item = jagged.counts(liked, len(item)).clamp(min=1).double()
    weight = torch.rsqrt(by_user[client] * by_item[liked]).unsqueeze(1)
    near = jagged.segment_sum(weight * item[liked], client, len(user))
    return user + near, item + jagged.segment_sum(weight * user[client], liked, len(item))
