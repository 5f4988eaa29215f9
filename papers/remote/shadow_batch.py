"""Train all shadows of one leaving client as one batch of dense matrices.

Supports the rows no-op, Retrain, Drop, FedGCV and ULKD with federated averaging or averaged
gradients, so that a GPU is used well. Random draws are those of the package;
`papers/remote/shadows.py check` compares two short shadows with the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs import load_graph
from rescind import Federation, Withdraw
from rescind.audits.case import Case
from rescind.audits.ulira import asked_about, halves
from rescind.core import clock
from rescind.core.clock import Clock
from rescind.core.world import Sizes
from rescind.experiments import learning_run as experiment
from rescind.experiments.cell import Cell

Weights = dict[str, Tensor]
"""one/weight [K, F, R, H], one/bias [K, R, H], two/weight [K, R, H, C], two/bias [K, R, C]; K = 1
if all clients have the same."""
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8


@dataclass
class Adam:
    """Adam moments of some weights, with one step count."""

    first: Weights
    second: Weights
    steps: int = 0

    @classmethod
    def fresh(cls, like: Weights) -> Adam:
        zero = {n: torch.zeros_like(v) for n, v in like.items()}
        return cls(zero, {n: v.clone() for n, v in zero.items()})

    def copy(self) -> Adam:
        one, two = ({n: v.clone() for n, v in m.items()} for m in (self.first, self.second))
        return Adam(one, two, self.steps)

    @torch.no_grad()
    def move(self, grads: Weights) -> Weights:
        """Update the moments. Return the step before the learning rate."""
        self.steps += 1
        out = {}
        for name, grad in grads.items():
            self.first[name].mul_(FIRST).add_(grad, alpha=1 - FIRST)
            self.second[name].mul_(SECOND).addcmul_(grad, grad, value=1 - SECOND)
            large = (self.second[name] / (1 - SECOND**self.steps)).sqrt_().add_(TINY)
            out[name] = self.first[name] / (1 - FIRST**self.steps) / large
        return out


class Batch:
    """R shadows of one leaving client: graphs as dense blocks, splits and seeds by shadow."""

    def __init__(self, cell: Cell, folder: Path, client: int, device: str) -> None:
        assert cell.forget is not None
        graph = load_graph(folder, cell.data.name)
        fed = experiment.start(replace(cell, run=replace(cell.run, device="cpu")), graph)
        self.cell, self.client, self.device, self.fed = cell, client, device, fed
        case = Case.of(fed, Withdraw(client))
        held, pairs = fed.now.vault.holdings, cell.forget.pairs
        self.records, self.inside = asked_about(case), None
        self.inside = halves(len(self.records), pairs, case.clock)
        numbers = torch.arange(2 * pairs)
        self.seeds = [int(case.clock.at(0).bits("audit shadow", n)) & (2**31 - 1) for n in numbers]
        self._blocks(held)
        self._splits(held)
        self.start = self._first(fed)

    def _blocks(self, held: Any) -> None:
        """Build features [K, n, F], adjacency [K, n, n], labels and node ids [K, n]."""
        g, clients = held.graph, held.clients
        size = torch.bincount(g.owner, minlength=clients)
        place = torch.zeros_like(g.owner)
        for k in range(clients):
            place[g.owner == k] = torch.arange(int(size[k]))
        n = int(size.max())
        x = torch.zeros(clients, n, g.features)
        x[g.owner[g.node], place[g.node], g.feature] = g.value
        a = torch.zeros(clients, n, n)
        a[g.owner[g.edge[1]], place[g.edge[1]], place[g.edge[0]]] = 1.0
        a[g.owner, place, place] = 1.0
        root = a.sum(2).clamp(min=1).rsqrt()
        a = root.unsqueeze(2) * a * root.unsqueeze(1)
        label, index = torch.zeros(clients, n).long(), torch.zeros(clients, n).long()
        label[g.owner, place], index[g.owner, place] = g.label.clamp(min=0), g.index
        there = torch.zeros(clients, n, dtype=torch.bool)
        there[g.owner, place] = True
        self.place, self.owner, self.n, self.classes = place, g.owner, n, g.classes
        self.x, self.a, self.label, self.index, self.there, self.size = (
            v.to(self.device) for v in (x, a, label, index, there, size.float())
        )

    def _splits(self, held: Any) -> None:
        """Build the weight of each node in its client's mean, by shadow. [K, n, R]"""
        train = torch.zeros(held.clients, self.n, len(self.seeds))
        own = held.records[(held.split == 0) & (held.records.client != self.client)]
        at = held.graph.find(own.item)
        train[self.owner[at], self.place[at]] = 1.0
        mine = held.graph.find(self.records.item)
        train[self.client, self.place[mine]] = self.inside.T.float()
        self.asked = self.place[mine].to(self.device)
        self.train = (train / train.sum(1, keepdim=True).clamp(min=1)).to(self.device)

    def _first(self, fed: Federation) -> Weights:
        """Return the initial values by seed."""
        sizes: Sizes = fed.world.sizes
        each = [fed.method.model.public(sizes, Clock(s)) for s in self.seeds]
        stack = {n: torch.stack([e[n] for e in each]) for n in each[0]}
        stack["one/weight"] = stack["one/weight"].permute(1, 0, 2)
        return {n: v.unsqueeze(0).contiguous().to(self.device) for n, v in stack.items()}

    # -- the model -------------------------------------------------------------------------------

    def keep(self, rate: float, round_: int, epoch: int) -> Tensor | float:
        """Draw dropout factors like the package. [K, n, R, H]"""
        if not rate:
            return 1.0
        hidden = self.start["one/bias"].shape[-1]
        keys = [Clock(s).at(round_).step(epoch).batch(0).key("dropout") for s in self.seeds]
        k = torch.arange(hidden, device=self.device) * clock._K_STRIDE
        where = self.index.unsqueeze(2).unsqueeze(3) * clock._ID_STRIDE + k
        bits = where + torch.tensor(keys, device=self.device).view(1, 1, -1, 1)
        drawn = ((clock._mix(bits) >> 11) & 0x1FFFFFFFFFFFFF).double().mul_(2.0**-53) >= rate
        return drawn.float() / (1 - rate)

    def logits(self, w: Weights, keep: Tensor | float = 1.0) -> Tensor:
        """Compute the logits. [K, n, R, C]"""
        one, runs = w["one/weight"], len(self.seeds)
        clients, n = self.x.shape[:2]
        flat = one.reshape(len(one), one.shape[1], -1).expand(clients, -1, -1)
        near = torch.bmm(self.a, torch.bmm(self.x, flat)).view(clients, n, runs, -1)
        hidden = torch.relu(near + w["one/bias"].unsqueeze(1)) * keep
        out = torch.matmul(hidden.transpose(1, 2), w["two/weight"]).transpose(1, 2)
        out = torch.bmm(self.a, out.reshape(clients, n, -1)).view(clients, n, runs, -1)
        return out + w["two/bias"].unsqueeze(1)

    def entropy(self, w: Weights, keep: Tensor | float = 1.0) -> Tensor:
        """Compute the cross-entropy of every node. [K, n, R]"""
        log_p = torch.log_softmax(self.logits(w, keep), 3)
        label = self.label.view(*self.label.shape, 1, 1).expand(-1, -1, log_p.shape[2], 1)
        return -log_p.gather(3, label).squeeze(3)

    def scores(self, w: Weights) -> Tensor:
        """Compute the log-odds of the true class of the tested nodes. [R, F]"""
        with torch.no_grad():
            log_p = -self.entropy(w)[self.client][self.asked].T.double()
        return log_p - torch.log((-torch.expm1(log_p)).clamp(min=1e-300))

    # -- learning --------------------------------------------------------------------------------

    def averaged(
        self, w: Weights, moments: Adam, rounds: Iterable[int], without: bool, sent: Any = None
    ) -> Weights:
        """Run rounds of federated averaging. without: leave out the leaving client"""
        method: Any = self.cell.method
        weight = self.size.clone()
        if without:
            weight[self.client] = 0.0
        weight = weight / weight.sum()
        for round_ in rounds:
            clients = len(self.x)
            own = {n: v.expand(clients, *v.shape[1:]).clone() for n, v in w.items()}
            for epoch in range(method.epochs):
                keep = self.keep(method.dropout, round_, epoch)
                leaves = {n: v.requires_grad_() for n, v in own.items()}
                loss = (self.entropy(leaves, keep) * self.train).sum()
                grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))  # noqa: B905
                with torch.no_grad():
                    grads = {n: g + method.weight_decay * own[n] for n, g in grads.items()}
                    move = moments.move(grads)
                    own = {n: v.detach() - method.rate * move[n] for n, v in own.items()}
            change = {n: own[n] - w[n] for n in w}
            if sent is not None:
                for n, v in change.items():
                    sent[n] = sent.get(n, 0.0) + weight[self.client] * v[self.client].unsqueeze(0)
            w = {
                n: w[n] + torch.tensordot(weight, v, dims=1).unsqueeze(0) for n, v in change.items()
            }
        return w

    def descended(self, w: Weights, adam: Adam, rounds: Iterable[int], without: bool) -> Weights:
        """Run rounds of averaged gradients with Adam on the server. without: as in `averaged`"""
        method: Any = self.cell.method
        weight = self.size.clone()
        if without:
            weight[self.client] = 0.0
        weight = (weight / weight.sum()).unsqueeze(1)
        for round_ in rounds:
            keep = self.keep(method.dropout, round_, 0)
            leaves = {n: v.detach().clone().requires_grad_() for n, v in w.items()}
            loss = ((self.entropy(leaves, keep) * self.train).sum(1) * weight).sum()
            grads = torch.autograd.grad(loss, list(leaves.values()))
            step = {
                n: -(g + method.weight_decay * w[n]) for n, g in zip(leaves, grads, strict=True)
            }
            w = self.global_step(w, adam, step, method.server_rate)
        return w

    def learnt(
        self,
        w: Weights,
        moments: Adam | None,
        rounds: Iterable[int],
        without: bool,
        sent: Any = None,
    ) -> tuple[Weights, Adam | None]:
        """Run rounds of the cell's method; client moments continue, server moments restart."""
        if type(self.cell.method).__name__ == "GraphFedSGD":
            return self.descended(w, Adam.fresh(w), rounds, without), None
        like = {n: v.expand(len(self.x), *v.shape[1:]) for n, v in w.items()}
        moments = Adam.fresh(like) if moments is None else moments.copy()
        return self.averaged(w, moments, rounds, without, sent), moments

    def global_step(self, w: Weights, adam: Adam, step: Weights, rate: float) -> Weights:
        """Take one Adam step on the server."""
        move = adam.move(step)
        return {n: v + rate * move[n] for n, v in w.items()}

    # -- forgetting ------------------------------------------------------------------------------

    def fedgcv(self, w: Weights, moments: Adam | None, method: Any, rounds_done: int) -> Weights:
        """Run FedGCV: NPO on the leaving client, corrected by the others' gradient; then repair."""
        first, adam = w, Adam.fresh(w)
        with torch.no_grad():
            before = self.entropy(first)[self.client]
        others = self.size.clone()
        others[self.client] = 0.0
        others = others / others.sum()
        for round_ in range(rounds_done + 1, rounds_done + 1 + method.forget_rounds):
            keep = self.keep(method.forget_dropout, round_, 0)
            leaves = {n: v.detach().clone().requires_grad_() for n, v in w.items()}
            each = self.entropy(leaves, keep)
            increase = each[self.client] - before
            npo = -2 / method.sharpness * functional.logsigmoid(method.sharpness * increase)
            forget_loss = (npo * self.train[self.client]).sum()
            keep_loss = ((each * self.train).sum(1) * others.unsqueeze(1)).sum()
            names = list(leaves.values())
            ascent = torch.autograd.grad(forget_loss, names, retain_graph=True)
            descent = torch.autograd.grad(keep_loss, names)
            step = {n: -g for n, g in zip(leaves, ascent, strict=True)}
            rest = {n: -g for n, g in zip(leaves, descent, strict=True)}
            inner, size = self.dot(step, rest), self.dot(rest, rest)
            factor = torch.where(inner < 0, inner / size.clamp(min=1e-30), 0.0)
            step = {n: v - self.each(factor, n) * rest[n] for n, v in step.items()}
            step = {n: v * method.forget_rate * method.scale for n, v in step.items()}
            step = self.clipped(step, method.clip)
            w = self.global_step(w, adam, step, method.forget_rate)
            if method.radius_share is not None:
                raise SystemExit("a batch of shadows knows no radius_share; run them one by one.")
            change = self.clipped({n: w[n] - first[n] for n in w}, method.radius)
            w = {n: first[n] + v for n, v in change.items()}
        end = rounds_done + method.forget_rounds
        return self.learnt(w, moments, range(end + 1, end + 1 + method.repair_rounds), True)[0]

    def ulkd(
        self, w: Weights, moments: Adam | None, sent: Weights, method: Any, rounds_done: int
    ) -> Weights:
        """Run ULKD: subtract the leaving client's updates, distil the old model; then repair."""
        with torch.no_grad():
            old = torch.log_softmax(self.logits(w) / method.heat, 3)
        w, adam = {n: v - sent[n] for n, v in w.items()}, Adam.fresh(w)
        weight = self.size.clone()
        weight[self.client] = 0.0
        weight = weight / weight.sum()
        mean = (self.there.float() / self.size.unsqueeze(1) * weight.unsqueeze(1)).unsqueeze(2)
        for _ in range(method.forget_rounds):
            leaves = {n: v.detach().clone().requires_grad_() for n, v in w.items()}
            new = torch.log_softmax(self.logits(leaves) / method.heat, 3)
            divergence = (old.exp() * (old - new)).sum(3) * method.heat**2
            grads = torch.autograd.grad((divergence * mean).sum(), list(leaves.values()))
            step = {n: -g for n, g in zip(leaves, grads, strict=True)}
            w = self.global_step(w, adam, step, method.forget_rate)
        end = rounds_done + method.forget_rounds
        return self.learnt(w, moments, range(end + 1, end + 1 + method.repair_rounds), True)[0]

    def dot(self, left: Weights, right: Weights) -> Tensor:
        """Compute the inner product by shadow. [R]"""
        total = torch.zeros(len(self.seeds), dtype=torch.float64, device=self.device)
        for n, v in left.items():
            axis = 2 if n == "one/weight" else 1
            total += (v.double() * right[n].double()).movedim(axis, 0).flatten(1).sum(1)
        return total

    def each(self, by: Tensor, name: str) -> Tensor:
        """Reshape a factor by shadow, to multiply it with a parameter."""
        shape = {"one/weight": (1, 1, -1, 1), "two/weight": (1, -1, 1, 1)}.get(name, (1, -1, 1))
        return by.float().view(*shape)

    def clipped(self, step: Weights, longest: float) -> Weights:
        """Clip the norm of each shadow's step."""
        by = (longest / self.dot(step, step).sqrt().clamp(min=1e-12)).clamp(max=1.0)
        return {n: v * self.each(by, n) for n, v in step.items()}


NAMES = ("no-op", "Retrain", "Drop", "FedGCV", "ULKD")
LEARNERS = ("GraphFedAvg", "GraphFedSGD")


def fits(cell: Cell) -> bool:
    """Return whether a row is supported."""
    assert cell.forget is not None
    parts = ("margin", "literal", "virtual", "private_virtual", "retention", "batch_size")
    plain = not any(getattr(cell.forget.unlearner, n, None) for n in parts)
    return plain and cell.forget.name in NAMES and type(cell.method).__name__ in LEARNERS


def shadow_scores(batch: Batch, cells: list[Cell]) -> Iterable[tuple[Cell, Tensor, Tensor]]:
    """Yield the scores of all shadows before and after each row's method. [R, F] both"""
    rounds = batch.cell.run.rounds
    sent = dict[str, Tensor]()
    w, moments = batch.learnt(batch.start, None, range(1, rounds + 1), False, sent)
    before = batch.scores(w)
    for cell in cells:
        assert cell.forget is not None
        method: Any = cell.forget.unlearner
        match cell.forget.name:
            case "no-op":
                after = w
            case "Retrain":
                after, _ = batch.learnt(batch.start, None, range(1, rounds + 1), True)
            case "Drop":
                later = range(rounds + 1, rounds + 1 + method.repair_rounds)
                after, _ = batch.learnt(w, moments, later, True)
            case "FedGCV":
                after = batch.fedgcv(w, moments, method, rounds)
            case "ULKD":
                after = batch.ulkd(w, moments, sent, method, rounds)
            case _:
                continue
        yield cell, before, batch.scores(after)
