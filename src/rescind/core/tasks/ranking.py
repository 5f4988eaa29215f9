"""Ranking items for users: negatives, losses, and the samples of an epoch."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.model import RankingModel, TakenRows
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.tasks import Metric, Question
from rescind.core.tasks.metrics import Ranking


class Settings(Protocol):
    """The fields of a method that this task reads."""

    @property
    def loss(self) -> Literal["bpr", "bce", "softmax"]: ...
    @property
    def reduce(self) -> Literal["mean", "sum"]: ...
    @property
    def negatives(self) -> int: ...
    @property
    def candidates(self) -> int | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def decay(self) -> float: ...


def draw_negatives(clock: Clock, cohort: Cohort, owner: Tensor, k: Tensor) -> Tensor:
    """Draw items uniformly from those each client does not own, one per (owner, k). [n]

    The r-th item that a client does not own is r plus the number of its items (sorted,
    i_0 < i_1 < ...) with i_p - p <= r: one binary search per draw and no rejection. A client that
    owns all items gets -1.
    """
    own, items = cohort.own, cohort.items
    free = (items - own.count)[owner]
    upper = (clock.bits("negatives", cohort.ids[owner], k) >> 32) & 0xFFFFFFFF
    rank = (upper * free.clamp(min=0)) >> 32
    gap = own.item - own.place
    before = torch.searchsorted(own.owner * items + gap, owner * items + rank, right=True)
    drawn = rank + before - own.first[owner]
    return torch.where(free > 0, drawn, -1)


def plan(settings: Settings, cohort: Cohort, clock: Clock) -> Plan:
    """Return the samples of one local epoch.

    "bpr": a pair (positive, negative) for each training record and each of its negatives.
    "bce": the record with label 1 and its negatives with label 0, shuffled together.
    "softmax": every candidate of a client, with label 1 where the client owns it; one batch.
    """
    if settings.loss == "softmax":
        owner, item, values = candidates(settings, cohort, clock)
        return Plan.of(owner, len(cohort), None, None, {"item": item}, values)
    train, negatives = cohort.train, settings.negatives
    owner = train.owner.repeat_interleave(negatives)
    offset = torch.arange(negatives, device=owner.device)
    k = (train.place.unsqueeze(1) * negatives + offset).reshape(-1)
    negative = draw_negatives(clock, cohort, owner, k)
    if settings.loss == "bpr":
        positive = train.item.repeat_interleave(negatives)
        if bool((negative < 0).any()):
            kept = negative >= 0
            owner, positive, negative, k = owner[kept], positive[kept], negative[kept], k[kept]
        bits = None if settings.batch_size is None else clock.bits("order", cohort.ids[owner], k)
        items = {"positive": positive, "negative": negative}
        return Plan.of(owner, len(cohort), settings.batch_size, bits, items)
    return _labelled(settings, cohort, clock, negative.view(-1, negatives))


def _labelled(settings: Settings, cohort: Cohort, clock: Clock, negative: Tensor) -> Plan:
    """Return each record followed by its negatives, with labels 1, 0, 0, ..."""
    train, each = cohort.train, settings.negatives + 1
    item = torch.cat([train.item.unsqueeze(1), negative], 1).reshape(-1)
    place = torch.arange(each, device=item.device)
    label = (place == 0).float().repeat(len(train))
    owner = train.owner.repeat_interleave(each)
    k = (train.place.unsqueeze(1) * each + place).reshape(-1)
    if bool((item < 0).any()):
        kept = item >= 0
        owner, item, label, k = owner[kept], item[kept], label[kept], k[kept]
    bits = None if settings.batch_size is None else clock.bits("order", cohort.ids[owner], k)
    return Plan.of(owner, len(cohort), settings.batch_size, bits, {"item": item}, {"label": label})


def candidates(
    settings: Settings, cohort: Cohort, clock: Clock
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the items of each client's softmax: (owner [n], item [n], "label" and "shift" [n]).

    Its training items, and all items it does not own or a sample of them. A sampled item stands
    for rest / drawn items, so that the sum of exponentials is right on average (additive.md 2).
    """
    train, clients, device = cohort.train, len(cohort), cohort.ids.device
    if settings.candidates is None:
        shown = torch.ones(clients, cohort.items, dtype=torch.bool, device=device)
        shown[cohort.own.owner, cohort.own.item] = False  # shared: neither positive nor negative
        shown[train.owner, train.item] = True
        label = torch.zeros(clients, cohort.items, device=device)
        label[train.owner, train.item] = 1.0
        owner, item = shown.nonzero(as_tuple=True)
        return owner, item, {"label": label[shown], "shift": torch.zeros(len(item), device=device)}
    owner = torch.arange(clients, device=device).repeat_interleave(settings.candidates)
    k = torch.arange(settings.candidates, device=device).repeat(clients)
    drawn = draw_negatives(clock, cohort, owner, k)
    owner, drawn = owner[drawn >= 0], drawn[drawn >= 0]
    rest = (cohort.items - cohort.own.count).clamp(min=1).float()
    label = torch.cat([torch.ones(len(train)), torch.zeros(len(drawn))]).to(device)
    shift = torch.log(rest / settings.candidates)[torch.cat([train.owner, owner])] * (1 - label)
    owner, item = torch.cat([train.owner, owner]), torch.cat([train.item, drawn])
    order = torch.argsort(owner, stable=True)
    return owner[order], item[order], {"label": label[order], "shift": shift[order]}


def loss(
    settings: Settings, model: RankingModel, work: Work, batch: Batch, cohort: Cohort
) -> Tensor:
    """Compute the loss of each client on one batch. [C]

    bpr: softplus(-(s_positive - s_negative) / temperature)   (FedShare Eq. 15 with a temperature)
    bce: binary cross-entropy of sigmoid(s / temperature) with the label
    softmax: mean over own items of -log softmax(s / temperature) over all candidates
    plus decay * |row|^2 for every sampled row: touched rows only.
    """
    held = {name: rows.index_select(0, work.held) for name, rows in work.rows.items()}
    own = model.infer(held, {**work.dense, **work.own}, cohort.train)
    taken = {
        column: {table: _take(rows, place) for table, rows in work.rows.items()}
        for column, place in batch.rows.items()
    }
    by = {"positive": getattr(model, "score_held", model.score)}  # items of the training graph
    scores = {c: by.get(c, model.score)(rows, own, batch.owner) for c, rows in taken.items()}
    if settings.loss == "softmax":
        return _softmax(settings, batch, scores["item"])
    if settings.loss == "bpr":
        each = functional.softplus((scores["negative"] - scores["positive"]) / settings.temperature)
    else:
        logit = scores["item"] / settings.temperature
        label = batch.values["label"].to(logit.dtype)
        each = functional.binary_cross_entropy_with_logits(logit, label, reduction="none")
    if settings.decay:
        for rows in taken.values():
            each = each + settings.decay * sum(r.square().sum(-1) for r in rows.values())
    over = jagged.segment_sum if settings.reduce == "sum" else jagged.segment_mean
    return over(each, batch.owner, batch.clients)


def _softmax(settings: Settings, batch: Batch, score: Tensor) -> Tensor:
    """Compute the cross-entropy of each client's own items against all candidates. [C]"""
    label = batch.values["label"].to(score.dtype)
    logit = score / settings.temperature
    owned = jagged.segment_sum(label, batch.owner, batch.clients)
    near = jagged.segment_sum(logit * label, batch.owner, batch.clients)
    shifted = logit + batch.values["shift"].to(score.dtype)
    whole = jagged.segment_logsumexp(shifted, batch.owner, batch.clients)
    return (owned * whole - near) / (owned.clamp(min=1) if settings.reduce == "mean" else 1)


def _take(rows: Tensor, place: Tensor) -> Tensor:
    """Return rows[place]; `index_select` costs half of indexing, backward included."""
    flat = rows.index_select(0, place.reshape(-1))
    return flat if place.dim() == 1 else flat.view(*place.shape, -1)


def scores(model: RankingModel, public: Params, own: Params, cohort: Cohort) -> Tensor:
    """Score all items for every client, inferred from all its own items. [C, I]"""
    clients = len(cohort)
    dense = {n: v.expand(clients, *v.shape) for n, v in public.items() if n not in model.tables}
    rows = TakenRows(public, model.tables, cohort.own)
    return model.scores(public, model.infer(rows, {**dense, **own}, cohort.own))


def answer(scores: Tensor, cohort: Cohort, owner: Tensor, item: Tensor, ask: Question) -> Tensor:
    """Return the scores of single records, or for audits the loss -log sigmoid(score). [n]"""
    scores = scores.to(torch.float64, copy=True)
    if ask == "open":
        scores[cohort.own.owner, cohort.own.item] = -torch.inf
    out = scores[owner, item]
    return functional.softplus(-out) if ask == "loss" else out


def metric(split: str, k: tuple[int, ...]) -> Metric:
    """Return the metric of full rankings against held-out items."""
    return Ranking(split=split, k=k)
