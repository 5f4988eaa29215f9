"""What a curious server reads out of single updates: which items a person trained on.

The attacker is the server. It knows the model it broadcast, the recipe, and how many records a
person has (the weight in the sum tells), and it names that many items. Nothing here is given the
person's records; `named` alone compares with them.
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
"""One side must have so many times the rows of the other for its number to tell which is which.
With four negatives the sides differ threefold, with one they are alike up to repeated draws."""
CONFIRMED = 0.05
"""Share of the rows whose guessed labels IMIA confirms in one turn.

DEPARTS IMIA's lambda: 0.05 instead of 0.9 of the rows. With 0.9 nearly all of the first, random
guess is confirmed at once: in the first round on ML-100K it finds .21 of a person's items with MF
and .27 with LightGCN; with 0.05 it finds .75 and .88."""


@dataclass(frozen=True)
class View:
    """What the server has of C people after watching them for some rounds."""

    delta: Tensor
    """[C, I, d] the mean of each person's updates, tables side by side; 0 where nothing came."""
    sent: Tensor
    """[C, I] bool: rows that came at least once."""
    rounds: int = 1
    exact: bool = True
    """No noise: a short row tells as much as a long one."""
    before: Tensor | None = None
    """[C, I] bool: rows that had come before this round."""
    votes: Tensor | None = None
    """[C, I] the sum of the splits of the single rounds, where those were exact."""


def laid_out(update: Update, tables: Sequence[str], items: int) -> tuple[Tensor, Tensor]:
    """Rows of all tables in one array, and which were sent. ([C, I, d], [C, I] bool)"""
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


# -- sign-split -----------------------------------------------------------------------------------


def split(view: View, loss: str = "bpr", negatives: int = 1) -> Tensor:
    """How much each row moved like a positive: above 0 on the positive side. [C, I]

    For every ranking loss here a row moves by c_i (du s_i) + g: c_i > 0 for a person's own items
    and c_i < 0 for all others, along one direction up to the curvature of the score (the vector u
    itself for a dot product, u without its part along v_i for a cosine; g, the way through an ego
    graph, is the same for all own items). So the sign along the first right-singular vector of the
    row deltas splits the rows. Rows have length 1 where one exact update is seen; under noise long
    rows are the ones to believe. Over rounds positives recur and negatives are drawn anew: exact
    rounds are split one by one and their splits added up, noisy ones averaged before.

    -inf for rows that were not sent.    loss, negatives: of the recipe, which is public
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
    """The first right-singular vector of each person's rows. [C, I, d] -> [C, d]"""
    return torch.linalg.eigh(rows.transpose(1, 2) @ rows).eigenvectors[..., -1]


def _orientation(along: Tensor, view: View, heavy_negatives: bool) -> Tensor:
    """+1 or -1 for each person: which side is the positive one. along: [C, I] -> [C]

    One exact update: the side with clearly fewer rows, because a positive comes with several
    negatives; where both are alike, the side whose rows came in earlier rounds, or which more
    people sent, because negatives are drawn anew and uniformly, and tastes are neither.
    Otherwise: "bce" with n > 1 moves negatives further in total (n of them to one positive, all by
    about 1 / 2), so the sum of all rows leans to their side; in "bpr" and "softmax" both sides
    have the same sum on fewer positive rows, and over rounds positives recur and negatives do not:
    the third moment leans to the positives.

    Not taken: the side whose summed first embeddings agree with its summed delta. On ML-100K that
    is right for 4 people of 10 with MF, whose first vector has nothing to do with their items, and
    for anything from none to all of them with other models later in training.
    """
    if not _single(view):
        leans = -along.sum(1) if heavy_negatives else along.pow(3).sum(1)
        return torch.where(leans < 0, -1.0, 1.0).double()
    up, down = (along > 0) & view.sent, (along < 0) & view.sent
    many, few = up.sum(1), down.sum(1)
    fewer = torch.sign(few - many).double()
    clear = torch.maximum(many, few) > CLEAR * torch.minimum(many, few)
    # Rows that came in earlier rounds, too; in the first round, rows that many people sent.
    known = view.sent.double().sum(0).expand_as(along) if view.before is None else view.before
    telling = torch.sign(_mean(known.double(), up) - _mean(known.double(), down))
    turn = torch.where(clear, fewer, telling)
    return torch.where(turn == 0, 1.0, turn)


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of values over each person's chosen items. [C, I], [C, I] bool -> [C]"""
    return (values * chosen).sum(1) / chosen.sum(1).clamp(min=1)


def better_known(score: Tensor) -> Tensor:
    """Rank what the split claims by how many people it is claimed of: items that many have are
    likelier real than drawn. score: [C, I], as from `split`    -> [C, I]"""
    claimed = score > 0
    return torch.where(claimed, claimed.double().sum(0) + 1, score.clamp(max=0))


def least_moved(score: Tensor) -> Tensor:
    """Rank what the split claims by how little it moved: pseudo-items, which a trained model does
    not expect, are pulled harder. score: [C, I], as from `split`    -> [C, I]"""
    return torch.where(score > 0, 1 / score.clamp(min=1e-300), score.clamp(max=0))


# -- IMIA -----------------------------------------------------------------------------------------


def imia(
    method: Method, public: Params, view: View, count: Tensor, clock: Clock, turns: int = 20
) -> Tensor:
    """Guess labels, train as a client would, confirm the rows that moved alike; again. [C, I]

    Interaction-level membership inference (Yuan et al., WWW 2023): a fake private vector and
    `count` random rows as positives; `CONFIRMED` of the rows, those nearest to what was uploaded,
    keep their labels; the rest is guessed anew. Returns a score: higher is claimed earlier, above
    0 are the confirmed positives.

    DEPARTS IMIA's labels: BPR pairs, where the method has BPR. The guess decides which rows act as
    positives, and negatives are drawn from the other rows that were sent.

    count: [C] positives to be found (gamma |R| in the paper)    clock: the attacker's own
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
        guess = (positive & confirmed) | _some(free, need, now)
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
    """How rows move on a device for which the guessed items are the positives. [C, I, d]"""
    # "Own" is all that may not be drawn as a negative: everything but the other rows sent.
    other = sent & ~guess
    cohort = Cohort(
        torch.arange(len(guess)), guess.shape[1], _lot(guess), _lot(~other), role="train"
    )
    # The plain training, also of a method that trains on more than `cohort.train`.
    update, _ = GradientMethod.client_train(
        cast(GradientMethod, method), public, fake, cohort, clock
    )
    return laid_out(update, method.model.tables, guess.shape[1])[0]


def _lot(chosen: Tensor) -> Lot:
    owner, item = chosen.nonzero(as_tuple=True)
    return Lot(owner, item, len(chosen))


def _some(among: Tensor, many: Tensor, clock: Clock) -> Tensor:
    """So many random items of each person. among: [C, I] bool    many: [C]    -> [C, I] bool"""
    people, items = among.shape
    drawn = clock.uniform("guess", torch.arange(people).unsqueeze(1), torch.arange(items))
    return among & (_ranks(drawn.masked_fill(~among, -torch.inf)) < many.unsqueeze(1))


def _ranks(score: Tensor) -> Tensor:
    """0 for the highest of each person, 1 for the next, ... [C, I]"""
    return score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


# -- was it right? --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """How right the attacker was, person by person."""

    found: Tensor
    """[C] precision at |positives|, which is recall at |positives|: as many are named as there
    are to be found"""
    precision: Tensor
    """[C] of everything claimed (score above 0), whatever its number"""
    recall: Tensor
    """[C] of everything claimed"""


def named(score: Tensor, truth: Tensor, clock: Clock) -> Named:
    """Compare the best |positives| items with the truth. score: [C, I]    truth: [C, I] bool

    Equal scores are ordered by a hash, not by item number: low numbers are popular in many files.
    """
    mixed = torch.argsort(clock.bits("ties", torch.arange(truth.shape[1])), stable=True)
    score, truth = score[:, mixed], truth[:, mixed]
    there = truth.sum(1)
    top = _ranks(score) < there.unsqueeze(1)
    claimed = score > 0
    right = (claimed & truth).sum(1).double()
    return Named(
        (top & truth).sum(1).double() / there.clamp(min=1),
        right / claimed.sum(1).clamp(min=1),
        right / there.clamp(min=1),
    )
