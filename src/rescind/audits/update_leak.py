"""Attacks of a curious server on single updates: which items did a user train on?

The server knows the model it broadcast, the recipe, and how many records a user has, and it names
that many items. Only `score_attack` sees the user's records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.gradient import GradientMethod
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.update import Rows, Update

CLEAR = 1.5
"""Smallest ratio of the sizes of the two sides at which the smaller side is taken as positive.
With four negatives the ratio is about three, with one negative about one."""
CONFIRMED = 0.05
"""Fraction of the rows whose guessed labels IMIA confirms per turn.

DEPARTS IMIA's lambda: 0.05 instead of 0.9 of the rows. With 0.9 nearly all of the first, random
guess is confirmed at once: in the first round on ML-100K it finds .21 of a user's items with MF
and .27 with LightGCN; with 0.05 it finds .75 and .88."""


@dataclass(frozen=True)
class View:
    """What the server has seen of C users after some rounds."""

    delta: Tensor
    """[C, I, d] mean of each user's updates, tables concatenated; 0 where nothing was sent."""
    sent: Tensor
    """[C, I] bool: rows sent at least once."""
    rounds: int = 1
    exact: bool = True
    """No noise was added, so short rows are as reliable as long ones."""
    before: Tensor | None = None
    """[C, I] bool: rows sent before this round."""
    votes: Tensor | None = None
    """[C, I] sum of the splits of single rounds, if those were exact."""


def dense_rows(update: Update, tables: Sequence[str], items: int) -> tuple[Tensor, Tensor]:
    """Return rows of all tables in one array, and which were sent. ([C, I, d], [C, I] bool)"""
    wide, sent = [], torch.zeros(update.clients, items, dtype=torch.bool)
    for name in tables:
        entry = update.entries.get(name)
        if not isinstance(entry, Rows):
            continue
        whole = entry.value.new_zeros(update.clients, items, entry.value.shape[-1])
        whole[entry.owner, entry.index] = entry.value
        sent[entry.owner, entry.index] = True
        wide.append(whole)
    return torch.cat(wide, 2), sent


def split(view: View, loss: str = "bpr", negatives: int = 1) -> Tensor:
    """Score how much each row moved like a positive: above 0 on the positive side. [C, I]

    For every ranking loss here a row moves by c_i (du s_i) + g: c_i > 0 for a user's own items
    and c_i < 0 for all others, along one direction up to the curvature of the score (the vector u
    itself for a dot product, u without its part along v_i for a cosine; g, the path through an ego
    graph, is the same for all own items). So the sign along the first right-singular vector of the
    row deltas splits the rows. Rows are normalised if one exact update is seen; under noise long
    rows are more reliable. Over rounds positives recur and negatives are drawn again: exact rounds
    are split one by one and the splits are added, noisy rounds are averaged first.

    -inf for rows that were not sent.    loss, negatives: from the recipe, which is public
    """
    if view.votes is not None:
        return view.votes
    rows = functional.normalize(view.delta, dim=2) if _single(view) else view.delta
    rows = rows.double()
    along = torch.einsum("cid,cd->ci", rows, _first_direction(rows))
    turned = along * _orientation(along, view, loss == "bce" and negatives > 1).unsqueeze(1)
    return turned.masked_fill(~view.sent, -torch.inf)


def _single(view: View) -> bool:
    return view.exact and view.rounds == 1


def _first_direction(rows: Tensor) -> Tensor:
    """Return the first right-singular vector of each user's rows. [C, I, d] -> [C, d]"""
    return torch.linalg.eigh(rows.transpose(1, 2) @ rows).eigenvectors[..., -1]


def _orientation(along: Tensor, view: View, heavy_negatives: bool) -> Tensor:
    """Decide for each user which side is positive: +1 or -1. along: [C, I] -> [C]

    One exact update: the side with clearly fewer rows, because each positive has several negatives.
    If both sides have similar size: the side whose rows were sent in earlier rounds, or by more
    users, because negatives are drawn uniformly in each round and positives are not. Otherwise:
    "bce" with n > 1 moves negatives further in total (n per positive, each by about 1 / 2), so the
    sum of all rows points to their side. In "bpr" and "softmax" both sides have the same sum with
    fewer positive rows, and over rounds only positives recur: the third moment points to the
    positives.
    """
    if not _single(view):
        leans = -along.sum(1) if heavy_negatives else along.pow(3).sum(1)
        return torch.where(leans < 0, -1.0, 1.0).double()
    up, down = (along > 0) & view.sent, (along < 0) & view.sent
    n_up, n_down = up.sum(1), down.sum(1)
    fewer = torch.sign(n_down - n_up).double()
    clear = torch.maximum(n_up, n_down) > CLEAR * torch.minimum(n_up, n_down)
    # Rows sent in earlier rounds; in the first round, the number of users who sent a row.
    known = view.sent.double().sum(0).expand_as(along) if view.before is None else view.before
    by_known = torch.sign(_mean(known.double(), up) - _mean(known.double(), down))
    turn = torch.where(clear, fewer, by_known)
    return torch.where(turn == 0, 1.0, turn)


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of values over each user's chosen items. [C, I], [C, I] bool -> [C]"""
    return (values * chosen).sum(1) / chosen.sum(1).clamp(min=1)


def rank_by_popularity(score: Tensor) -> Tensor:
    """Rank claimed items by how many users they are claimed for, since popular items are more
    likely true than drawn. score: [C, I], from `split`    -> [C, I]"""
    claimed = score > 0
    return torch.where(claimed, claimed.double().sum(0) + 1, score.clamp(max=0))


def rank_by_smallest_move(score: Tensor) -> Tensor:
    """Rank claimed items by how little they moved, since pseudo-items, which a trained model does
    not expect, move more. score: [C, I], from `split`    -> [C, I]"""
    return torch.where(score > 0, 1 / score.clamp(min=1e-300), score.clamp(max=0))


def imia(
    method: Method, public: Params, view: View, count: Tensor, clock: Clock, turns: int = 20
) -> Tensor:
    """Guess labels, train like a client, confirm the rows that moved alike; repeat. [C, I]

    Interaction-level membership inference (Yuan et al., WWW 2023): a fake private vector and
    `count` random rows as positives; a fraction `CONFIRMED` of the rows, those nearest to the
    upload, keep their labels; the rest is guessed again. Returns a score: higher is claimed
    earlier, above 0 are the confirmed positives.

    DEPARTS IMIA's labels: BPR pairs, if the method uses BPR. The guess decides which rows are
    positives, and negatives are drawn from the other rows that were sent.

    count: [C] positives to find (gamma |R| in the paper)    clock: the attacker's clock
    """
    fake = method.client_init(torch.arange(len(view.sent)), clock)
    confirmed = torch.zeros_like(view.sent)
    positive = torch.zeros_like(view.sent)
    score = torch.full(view.sent.shape, -torch.inf, dtype=torch.float64)
    score[view.sent] = -2.0
    each_turn = (view.sent.sum(1) * CONFIRMED).ceil().long()
    for turn in range(turns):
        now = clock.at(turn + 1)
        need = (count - (positive & confirmed).sum(1)).clamp(min=0)
        if not bool(need.any()):
            break
        free = view.sent & ~confirmed
        guess = (positive & confirmed) | _draw(free, need, now)
        moved = _shadow(method, public, fake, guess, view.sent, now)
        near = -torch.linalg.vector_norm(moved - view.delta, dim=2).double()
        near = near.masked_fill(~free, -torch.inf)
        new = free & (_ranks(near) < each_turn.unsqueeze(1))
        positive |= new & guess
        confirmed |= new
        score[new & guess] = float(turns - turn)
        score[new & ~guess] = -3.0
    return score


def _shadow(
    method: Method, public: Params, fake: Private, guess: Tensor, sent: Tensor, clock: Clock
) -> Tensor:
    """Compute how rows move if the guessed items are the positives. [C, I, d]"""
    # "Own" items are never drawn as negatives: all items except the other rows sent.
    other = sent & ~guess
    cohort = Cohort(
        torch.arange(len(guess)), guess.shape[1], _lot(guess), _lot(~other), role="train"
    )
    # The base training, also for methods that train on more than `cohort.train`.
    update, _ = GradientMethod.client_train(
        cast(GradientMethod, method), public, fake, cohort, clock
    )
    return dense_rows(update, method.model.tables, guess.shape[1])[0]


def _lot(chosen: Tensor) -> Lot:
    owner, item = chosen.nonzero(as_tuple=True)
    return Lot(owner, item, len(chosen))


def _draw(among: Tensor, n: Tensor, clock: Clock) -> Tensor:
    """Draw n random items of each user. among: [C, I] bool    n: [C]    -> [C, I] bool"""
    people, items = among.shape
    drawn = clock.uniform("guess", torch.arange(people).unsqueeze(1), torch.arange(items))
    return among & (_ranks(drawn.masked_fill(~among, -torch.inf)) < n.unsqueeze(1))


def _ranks(score: Tensor) -> Tensor:
    """Rank each user's scores: 0 for the highest, 1 for the next, ... [C, I]"""
    return score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


@dataclass(frozen=True)
class AttackScore:
    """Accuracy of an attack for each user."""

    found: Tensor
    """[C] precision at |positives|, which equals recall at |positives|"""
    precision: Tensor
    """[C] of all claimed items (score above 0)"""
    recall: Tensor
    """[C] of all claimed items"""


def score_attack(score: Tensor, truth: Tensor, clock: Clock) -> AttackScore:
    """Compare the best |positives| items with the truth. score: [C, I]    truth: [C, I] bool

    Ties are ordered by a hash, not by item number: low numbers are popular in many files.
    """
    mixed = torch.argsort(clock.bits("ties", torch.arange(truth.shape[1])), stable=True)
    score, truth = score[:, mixed], truth[:, mixed]
    positives = truth.sum(1)
    top = _ranks(score) < positives.unsqueeze(1)
    claimed = score > 0
    right = (claimed & truth).sum(1).double()
    return AttackScore(
        (top & truth).sum(1).double() / positives.clamp(min=1),
        right / claimed.sum(1).clamp(min=1),
        right / positives.clamp(min=1),
    )
