"""A search over settings of FedMF on a stream, all settings at once, judged by validation alone.

    python bench/stream_search.py carried.npz DATASET OUT [--device cuda] [--seed 10] [--rounds 100]

`carried.npz` is what `bench/grid.py prepare` packs. Every setting is one entry of a batch; people
by items is dense, which a GPU likes, and no table is copied per client (f3crec.md section 4). Draws
are those of a run, but rounds are numbered by block, so that settings share negatives.

A setting is judged on halves of validation: one half of the people chooses the round and the other
is measured, in eight ways. The best of a hundred rounds on all of them is a maximum over noise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.records import Arrive, Records
from rescind.core.tasks import ranking
from rescind.core.world import Sizes
from rescind.experiments.streams import Stream
from rescind.methods.continual.finetune import FineTune
from rescind.models.mf import MF

KNOBS = {
    "rate": 1.0,  # of items, times their number
    "prate": 1.0,  # of people's vectors
    "beta": 0.0,  # F3CRec Eq. (10): how much of the old table stays, by item
    "betaflat": 0.0,  # the same for all items alike
    "old": 1.0,  # later blocks: moves of items known before
    "newi": 1.0,  # of new items
    "user": 1.0,  # of people who return
    "first": 1.0,  # of newcomers
    "kd": 0.0,  # distillation from lists of 30
    "kdown": 0.0,  # 1: a person's own items are not on the list
    "soft": 0.0,  # negatives of people who return are labelled by their old model, times this
    "prior": 0.0,  # newcomers start at the mean person, times this
    "mom": 0.0,  # momentum at the server
    "ema": 0.0,  # running means over rounds, of items and of people's vectors
    "pull": 0.0,  # to a person's old vector
    "wd": 0.0,  # weight decay of people's vectors
}
BASES = [{"rate": 0.5, "prate": 0.25}, {"rate": 0.5, "prate": 1, "beta": 0.7}]
BASES += [{"rate": 1, "prate": 1, "beta": 0.9}]
TRIED: dict[str, list[float]] = {
    "beta": [0.3, 0.5, 0.7, 0.9], "betaflat": [0.03, 0.1, 0.3], "old": [0, 0.3, 0.6, 1.5],
    "newi": [0.3, 3], "user": [0.3, 0.6, 2], "first": [0.5, 2, 4], "kd": [0.03, 0.1, 0.3, 1],
    "soft": [0.3, 0.6, 1], "prior": [0.5, 1], "mom": [0.5, 0.8, 0.9], "ema": [0.8, 0.9, 0.95],
    "pull": [0.01, 0.03, 0.1], "wd": [1e-4, 1e-3, 1e-2],
}  # fmt: skip
LONG = 30
Trial = dict[str, float]


def trials() -> list[Trial]:
    """Fine-tuning at thirty pairs of rates, then one knob at a time around three bases."""
    pairs = [(r, p) for r in (0.125, 0.25, 0.5, 1, 2) for p in (0.0625, 0.125, 0.25, 0.5, 1, 2)]
    made: list[Trial] = [{"rate": r, "prate": p} for r, p in pairs]
    for base in BASES:
        for knob, values in TRIED.items():
            for value in values:
                made.append({**base, knob: value})
                if knob == "kd":
                    made.append({**base, knob: value, "kdown": 1})
    return made


@dataclass
class Model:
    """All settings' models: Q [B, I, d], P [B, C, d] of those who train in the block."""

    items: Tensor
    people: Tensor


@dataclass
class Block:
    """One block on the device: who trains on what, who is asked, and what there was before."""

    cohort: Cohort
    old: int
    """Items known before."""
    back: Tensor
    """[C] who was there before."""
    then: Model
    """The model when the block before ended, for the same people."""
    lists: tuple[Tensor, Tensor]
    """[B, C, 30] items, -1 for none, and their scores then."""
    asked: Tensor
    """[V] places of people with validation items."""
    wanted: Tensor
    """[V, I] bool"""
    hidden: Tensor
    """[V, I] bool"""


def _lot(records: Records, place: Tensor, items: int, device: str) -> tuple[Tensor, Tensor]:
    pair = torch.unique(place[records.client] * items + records.item).to(device)
    return pair // items, pair % items


def _mask(records: Records, place: Tensor, rows: int, items: int, device: str) -> Tensor:
    mask = torch.zeros(rows, items, dtype=torch.bool, device=device)
    owner, item = _lot(records, place, items, device)
    mask[owner, item] = True
    return mask


class Search:
    """A stream under many settings."""

    def __init__(self, stream: Stream, seed: int, settings: list[Trial], device: str) -> None:
        self.device, self.clock, first = device, Clock(seed), stream.first
        begins = Arrive(first.records, first.split, first.clients, first.items)
        self.blocks = [begins, *stream.later]
        self.k = {
            name: torch.tensor([t.get(name, first) for t in settings], device=device).view(-1, 1, 1)
            for name, first in KNOBS.items()
        }
        self.on = {name: bool((value != KNOBS[name]).any()) for name, value in self.k.items()}
        self.size, self.model = len(settings), MF()
        clients = self.blocks[-1].clients
        first = self.model.private(torch.arange(clients), self.clock.at(0))["user"]
        self.people = first.to(device).float().expand(self.size, -1, -1).clone()
        self.known = torch.zeros(clients, dtype=torch.bool, device=device)
        self.items = torch.zeros(self.size, 0, self.model.dim, device=device)
        shape = (self.size, clients, LONG)
        self.top, self.told = torch.full(shape, -1, device=device), torch.zeros(shape).to(device)

    def run(self, rounds: int, patience: int = 30) -> list[list[float]]:
        """What each block gave each setting on halves of validation. [blocks][B]"""
        return [self.block(number, rounds, patience) for number in range(len(self.blocks))]

    def begin(self, arrival: Arrive) -> tuple[Block, Model, Tensor]:
        """A block arrives: tables grow, newcomers get first values."""
        items, old, device = arrival.items, self.items.shape[1], self.device
        fresh = self.model.public(Sizes(arrival.clients, items), self.clock.at(0))["item"]
        new = fresh[old:].to(device).float().expand(self.size, -1, -1)
        self.items = torch.cat([self.items, new], 1)
        train, valid = (arrival.records[arrival.split == s] for s in (0, 1))
        ids = torch.unique(train.client)
        place = torch.full((arrival.clients,), -1)
        place[ids] = torch.arange(len(ids))
        lot = Lot(*_lot(train, place, items, device), len(ids))
        ids, asks = ids.to(device), torch.unique(valid.client)
        back = self.known[ids]
        if self.on["prior"] and bool(self.known.any()):
            start = self.k["prior"] * self.people[:, self.known].mean(1, keepdim=True)
            newcomers = torch.zeros_like(self.known).index_fill(0, ids[~back], True)
            self.people += start * newcomers.view(1, -1, 1)
        row = torch.full((arrival.clients,), -1)
        row[asks] = torch.arange(len(asks))
        mine = train[torch.isin(train.client, asks)]
        weight = torch.ones(len(ids), device=device)
        block = Block(
            cohort=Cohort(ids=ids, items=items, train=lot, own=lot, held=None, weight=weight),
            old=old,
            back=back,
            then=Model(self.items.clone(), self.people[:, ids].clone()),
            lists=(self.top[:, ids], self.told[:, ids]),
            asked=place[asks].to(device),
            wanted=_mask(valid, row, len(asks), items, device),
            hidden=_mask(mine, row, len(asks), items, device),
        )
        return block, Model(self.items.clone(), self.people[:, ids].clone()), asks

    def block(self, number: int, rounds: int, patience: int) -> list[float]:
        """Train one block; everybody goes on from their best round."""
        block, now, asks = self.begin(self.blocks[number])
        bits = [Clock(self.clock.seed + 777).bits("half", asks, n) >> 40 & 1 for n in range(4)]
        halves = torch.stack([h for b in bits for h in (b == 1, b == 0)]).to(self.device).float()
        best, other = (torch.full((len(halves), self.size), -1.0).to(self.device) for _ in "ab")
        top, wait = (torch.full((self.size,), v).to(self.device) for v in (-1.0, 0.0))
        kept, done = now, torch.zeros(self.size, dtype=torch.bool, device=self.device)
        speed, slow = torch.zeros_like(now.items), now
        for turn in range(rounds):
            clock = self.clock.at(1000 * number + turn + 1)
            moved, people = self.local(block, now, clock)
            speed = self.k["mom"] * speed + moved * self.paces(block)
            now = Model(self.blended(block, now.items + speed), people)
            stays = torch.minimum(self.k["ema"], torch.tensor(turn / (turn + 1.0)))
            slow = Model(*(stays * a + (1 - stays) * b for a, b in _both(slow, now)))
            each = self.measured(block, slow)
            mine = each @ halves.T / halves.sum(1)
            theirs = each @ (1 - halves).T / (1 - halves).sum(1)
            better = (best < mine.T) & ~done
            best, other = (torch.where(better, v.T, o) for v, o in ((mine, best), (theirs, other)))
            whole = each.mean(1)
            better = (whole > top) & ~done
            top, wait = torch.where(better, whole, top), torch.where(better, 0.0, wait + 1)
            pick = better.view(-1, 1, 1)
            kept = Model(*(torch.where(pick, a, b) for a, b in _both(slow, kept)))
            done |= wait >= patience
            if bool(done.all()):
                break
        self.end(block, kept)
        return [round(float(v), 5) for v in other.mean(0)]

    def paces(self, block: Block) -> Tensor | float:
        """How fast old and new items move in later blocks."""
        if not block.old:
            return 1.0
        new = self.k["newi"].expand(-1, block.cohort.items - block.old, 1)
        return torch.cat([self.k["old"].expand(-1, block.old, 1), new], 1)

    def blended(self, block: Block, items: Tensor) -> Tensor:
        """F3CRec's temporal mean, Eq. (8)-(13), or one weight for all."""
        before, now = block.then.items[:, : block.old], items[:, : block.old]
        shift = (before - now).square().sum(-1, keepdim=True) / math.sqrt(items.shape[2])
        flat = self.k["betaflat"].expand_as(shift)
        share = torch.where(flat > 0, flat, self.k["beta"] / (1 + shift))
        return torch.cat([(1 - share) * now + share * before, items[:, block.old :]], 1)

    def local(self, block: Block, now: Model, clock: Clock) -> tuple[Tensor, Tensor]:
        """One local epoch of everybody: (the mean move of items [B, I, d], people [B, C, d]).

        A client's table after some batches is Q less a sum of outer products of gradients and its
        vector then, so that none is copied (f3crec.md section 4).
        """
        k, rate = self.k, self.k["rate"] * block.cohort.items
        plan = ranking.plan(FineTune(), block.cohort, clock.step(0))
        total, people = torch.zeros_like(now.items), now.people.clone()
        past: list[tuple[Tensor, Tensor, Tensor]] = []
        back, at = block.back.view(1, -1, 1), 0
        pace = torch.where(back, k["user"], k["first"]) if block.old else torch.ones_like(back)
        for size in plan.sizes:
            cut = slice(at, at + size)
            at += size
            who, owner = torch.unique(plan.owner[cut], return_inverse=True)
            mine = people[:, who]
            score = torch.bmm(mine, now.items.transpose(1, 2))
            for slope, vector, those in past:
                here = torch.searchsorted(those, who)
                dot = (mine * vector[:, here]).sum(-1, keepdim=True)
                score -= rate * slope[:, here] * dot
            item, label = plan.items["item"][cut], plan.values["label"][cut]
            slope = self.slopes(block, score, who, owner, item, label)
            pull = torch.bmm(slope, now.items)
            for then, vector, those in past:
                here = torch.searchsorted(those, who)
                pull -= rate * (slope * then[:, here]).sum(-1, keepdim=True) * vector[:, here]
            total -= rate * torch.bmm(slope.transpose(1, 2), mine)
            new = mine - k["prate"] * pace[:, who] * pull - k["wd"] * mine
            new += k["pull"] * back[:, who] * (block.then.people[:, who] - mine)
            people = people.index_copy(1, who, new)
            past.append((slope, mine, who))
        return total / len(block.cohort), people

    def slopes(
        self, block: Block, score: Tensor, who: Tensor, owner: Tensor, item: Tensor, label: Tensor
    ) -> Tensor:
        """The gradient of each client's loss by the score of each item. [B, C', I]"""
        flat, k = owner * score.shape[2] + item, self.k
        target = label.expand(self.size, -1)
        if self.on["soft"] and block.old:
            before = block.then.items[:, : block.old]
            old = torch.bmm(block.then.people[:, who], before.transpose(1, 2))
            old = torch.nn.functional.pad(old, (0, score.shape[2] - block.old))
            answers = torch.sigmoid(old.reshape(self.size, -1)[:, flat]) * k["soft"].view(-1, 1)
            there = block.back[who][owner] & (item < block.old) & (label == 0)
            target = torch.where(there & (k["soft"].view(-1, 1) > 0), answers, target)
        many = torch.bincount(owner, minlength=len(who))[owner]
        error = (torch.sigmoid(score.reshape(self.size, -1)[:, flat]) - target) / many
        slope = torch.zeros_like(score).view(self.size, -1).index_add_(1, flat, error)
        slope = slope.view_as(score)
        if self.on["kd"] and block.old:
            listed, told = (part[:, who] for part in block.lists)
            there = listed >= 0
            gap = torch.sigmoid(score.gather(2, listed.clamp(min=0))) - torch.sigmoid(told)
            gap = k["kd"] * gap * there / there.sum(-1, keepdim=True).clamp(min=1)
            slope = slope.scatter_add(2, listed.clamp(min=0), gap)
        return slope

    def measured(self, block: Block, model: Model) -> Tensor:
        """NDCG@20 of everybody who is asked. [B, V]"""
        score = torch.bmm(model.people[:, block.asked], model.items.transpose(1, 2))
        top = score.masked_fill(block.hidden, -torch.inf).topk(20, dim=2).indices
        hit = block.wanted.expand(self.size, -1, -1).gather(2, top).float()
        gain = 1 / torch.log2(torch.arange(20, device=self.device) + 2.0)
        ideal = torch.cumsum(gain, 0)[block.wanted.sum(1).clamp(max=20) - 1]
        return (hit * gain).sum(-1) / ideal

    def end(self, block: Block, kept: Model) -> None:
        """A block ends: what is carried over, and everybody's list."""
        ids, own = block.cohort.ids, block.cohort.own
        self.items, self.known[ids] = kept.items, True
        self.people = self.people.index_copy(1, ids, kept.people)
        score = torch.bmm(kept.people, kept.items.transpose(1, 2))
        hidden = score.clone()
        hidden[:, own.owner, own.item] = -torch.inf
        top = torch.where(self.k["kdown"] > 0, hidden, score).topk(LONG, dim=2).indices
        self.top = self.top.index_copy(1, ids, top)
        self.told = self.told.index_copy(1, ids, score.gather(2, top))


def _both(one: Model, two: Model) -> list[tuple[Tensor, Tensor]]:
    return [(one.items, two.items), (one.people, two.people)]


def main() -> None:
    """Search one dataset."""
    sys.path.insert(0, str(Path(__file__).parent))
    from grid import carried

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("carried", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--together", type=int, default=100)
    given: Any = parser.parse_args()
    name = json.dumps({"name": given.dataset, "variant": "f3crec"}, sort_keys=True)
    stream, every = Stream.of(carried(given.carried, name), given.seed), trials()
    with open(given.out, "a", encoding="utf-8") as file:
        for at in range(0, len(every), given.together):
            part = every[at : at + given.together]
            found = Search(stream, given.seed, part, given.device).run(given.rounds)
            for trial, values in zip(part, zip(*found, strict=True), strict=True):
                line = {"data": given.dataset, "seed": given.seed, "knobs": trial, "halves": values}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
