"""Attacks on what a server holds: its public table, its rows of people, its old rows.

fedshare.md section 4: the leak sits on the user side of the server. An output attack does not see
it, since a deleted person is never scored with these rows again; whoever reads the server does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, auc_by_person, infer_from, mean_of
from rescind.core import jagged
from rescind.core.federation import Federation
from rescind.core.params import Params

MOMENTS = {"first", "second"}
"""Parts of a name that tell an optimiser's moments (`rescind.core.optim`)."""


def table(case: Case, fed: Federation) -> PerPerson:
    """The public table alone: people are inferred from their validation items."""
    return auc_by_person(_inferred(case, fed), case.tested)


def calibrated(case: Case, fed: Federation) -> PerPerson:
    """The same less the score under retrained models: what a record is worth anyway is removed."""
    usual = mean_of([_inferred(case, other) for other in case.beside(fed)])
    return auc_by_person(_inferred(case, fed) - usual, case.tested)


def _inferred(case: Case, fed: Federation) -> Tensor:
    return case.once("table", fed, lambda: infer_from(fed, "valid", case.tested, case.before))


def person_rows(own: Params, clients: int, moments: bool = False) -> dict[str, Tensor]:
    """What a server keeps in rows of people: names that end in "user", one row per client.

    moments: those of its optimiser, too, which are gradients and not vectors of people
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
    """The public rows of items that rows of people can be compared with. [I, d]"""
    for name in fed.method.model.tables:
        value = fed.now.state.public.get(name)
        if value is not None and value.dim() == 2 and value.shape[1] == width:
            return value
    return None


def kept(case: Case, fed: Federation) -> PerPerson | None:
    """What the server still has: its rows of people, one step over the graph it still has."""
    return _with_rows(case, fed, fed, spread=True)


def kept_rows(case: Case, fed: Federation) -> PerPerson | None:
    """The rows of people alone, as they were learnt."""
    return _with_rows(case, fed, fed, spread=False)


def stale(case: Case, fed: Federation) -> PerPerson | None:
    """The server's old rows of people against the new table: what a kept copy would still tell."""
    return _with_rows(case, case.before, fed, spread=False)


def carried(case: Case, fed: Federation) -> PerPerson | None:
    """The same by somebody who kept the old table, too, which was public, and carries rows over.

    Models that were begun from other first values lie in other directions, where an old row finds
    nothing; so would a table that was merely turned. The rotation that brings the old table nearest
    to the new one undoes that (orthogonal Procrustes).
    """
    return _with_rows(case, case.before, fed, spread=False, turn=True)


def rotation(old: Tensor, new: Tensor) -> Tensor:
    """The Q that brings old Q nearest to new, both less their means: U V' of old' new. [d, d]

    old, new: [I, d]
    """
    left, _, right = torch.linalg.svd((old - old.mean(0)).T @ (new - new.mean(0)))
    return left @ right


def _with_rows(
    case: Case, holder: Federation, fed: Federation, spread: bool, turn: bool = False
) -> PerPerson | None:
    """AUC of cos(row of the person, item less the mean item).

    One half for a server that dropped its rows; None where the server never had any.
    holder: whose rows of people    fed: whose item table    turn: rows to where that table lies
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
        # What all items have in common says how a person likes items, not which.
        user, item = (functional.normalize(t, dim=-1) for t in (user, item - item.mean(0)))
        at = targets.records
        found.append(torch.linalg.vecdot(user[at.client], item[at.item]))
    if found:
        return auc_by_person(torch.stack(found).sum(0), targets)
    had = person_rows(case.before.now.state.own, case.before.world.sizes.clients)
    return auc_by_person(torch.zeros(len(targets)), targets) if had else None


def spread_once(fed: Federation, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """x + A x, A the normalised adjacency of what the server still has: (people, items)."""
    pairs = torch.unique(fed.world.shared.pairs().cpu())
    who, what = pairs >> 31, pairs & (2**31 - 1)
    by_user = jagged.counts(who, len(user)).clamp(min=1).double()
    by_item = jagged.counts(what, len(item)).clamp(min=1).double()
    weight = torch.rsqrt(by_user[who] * by_item[what]).unsqueeze(1)
    near = jagged.segment_sum(weight * item[what], who, len(user))
    return user + near, item + jagged.segment_sum(weight * user[who], what, len(item))
