"""Quality after a block: how well the items that people chose next are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.clock import Clock
from rescind.data.arrays import Ints
from rescind.life.entry import Entry
from rescind.life.ledger import TEST, TRAIN, Ledger

K = 20
PEOPLE = 2000
"""Most people who are asked; the same ones for every method."""
TOGETHER = 500


def quality(entry: Entry, ledger: Ledger, clock: Clock) -> dict[str, dict[str, float]]:
    """Return NDCG@20 and Recall@20 on the test items of the newest block and of the others."""
    wanted: dict[int, dict[str, list[int]]] = {}
    for user, item, block in ledger.held_out(TEST):
        when = "new" if block == ledger.block else "old"
        wanted.setdefault(user, {}).setdefault(when, []).append(item)
    people = [u for u in sorted(wanted) if u in ledger.members and ledger.trained(u)]
    people = drawn(people, PEOPLE, clock)
    found: dict[str, list[tuple[float, float]]] = {"new": [], "old": []}
    for begin in range(0, len(people), TOGETHER):
        some = people[begin : begin + TOGETHER]
        for user, top in zip(some, best(entry, some, ledger), strict=True):
            for when, items in wanted[user].items():
                found[when].append(gains(top, items))
    return {when: _mean(rows) for when, rows in found.items() if rows}


def drawn(people: Sequence[int], many: int, clock: Clock) -> list[int]:
    """Return at most this many people, sorted."""
    if len(people) <= many:
        return sorted(people)
    bits = clock.at(0).bits("life asked", torch.tensor(list(people)))
    order = torch.argsort(bits, stable=True)
    return sorted(people[n] for n in order[:many].tolist())


def best(entry: Entry, people: Sequence[int], ledger: Ledger) -> NDArray[Any]:
    """Return the best items that these people do not hold yet. [people, K]"""
    histories = [history_of(ledger, user) for user in people]
    scores = np.array(entry.scores(np.array(people, dtype=np.int64), histories), dtype=np.float64)
    for n, user in enumerate(people):
        hidden = [i for i, (_, split, _) in ledger.held[user].items() if split != TEST]
        scores[n, hidden] = -np.inf
    few = min(K, scores.shape[1])
    part = np.argpartition(-scores, few - 1, axis=1)[:, :few]
    order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1, kind="stable")
    return np.take_along_axis(part, order, 1)


def history_of(ledger: Ledger, user: int) -> tuple[Ints, Ints]:
    """Return the training items of a person and their times, by item."""
    mine = sorted((i, t) for i, (t, split, _) in ledger.held[user].items() if split == TRAIN)
    columns = np.array(mine, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def gains(top: NDArray[Any], items: Sequence[int]) -> tuple[float, float]:
    """Return NDCG and Recall of one list."""
    hits = np.isin(top, items)
    discount = 1 / np.log2(np.arange(len(top)) + 2)
    ideal = discount[: min(len(items), len(top))].sum()
    return float((hits * discount).sum() / ideal), float(hits.sum() / len(items))


def _mean(rows: Sequence[tuple[float, float]]) -> dict[str, float]:
    ndcg, recall = np.mean(rows, axis=0)
    return {f"NDCG@{K}": round(float(ndcg), 6), f"Recall@{K}": round(float(recall), 6)}
