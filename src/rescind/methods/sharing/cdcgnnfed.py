"""CDCGNNFed-R: a shared graph with predicted edges, and user views sent to sharers.

A reading (baselines.md section 2.2) of Qu et al., WWW 2024 (arXiv 2401.17630). The full text was
not available: name it "-R" in tables.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Mail
from rescind.core.optim import server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.ranges import must_lie
from rescind.core.records import Records
from rescind.core.signatures import Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.tasks.ranking import draw_negatives
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import SharedGraph, Side, graph_of
from rescind.methods._lent_graph.steps import NEGATIVES, grown_rows
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN

MENDED = ("mended/user", "mended/item", "mended/weight", "mended/of")
"""Predicted edges (clients, items, weights), and a hash of the graph they were predicted from."""


@dataclass(frozen=True)
class MendedGraph(SharedGraph):
    """A shared graph with predicted ("mended") edges, which are used for propagation only."""

    more_user: Tensor
    """[m] index in `sharers`"""
    more_item: Tensor
    """[m]"""
    more_weight: Tensor
    """[m]"""

    @cached_property
    def joined(self) -> SharedGraph:
        """Return the graph of real and predicted edges."""
        user = torch.cat([self.user, self.more_user])
        item = torch.cat([self.item, self.more_item])
        strength = torch.cat([torch.ones(len(self.user), device=user.device), self.more_weight])
        order = torch.argsort(user * self.items + item)
        return _Weighted(user[order], item[order], self.sharers, self.items, strength[order])

    @property
    def matrices(self) -> tuple[Side, Side]:
        """Return the normalised adjacency with the predicted edges."""
        return self.joined.matrices


@dataclass(frozen=True)
class _Weighted(SharedGraph):
    """A graph with weighted edges; a degree is a sum of strengths."""

    strength: Tensor

    @cached_property
    def weight(self) -> Tensor:
        """Return strength / sqrt(degree of the user x degree of the item). [E]"""
        by_user = jagged.segment_sum(self.strength, self.user, self.users).clamp(min=1e-12)
        by_item = jagged.segment_sum(self.strength, self.item, self.items).clamp(min=1e-12)
        return self.strength * torch.rsqrt(by_user[self.user] * by_item[self.item])


@dataclass(frozen=True, kw_only=True)
class CDCGNNFedR(FedShare):
    """FedShare on a graph with predicted edges, with user views sent to devices.

    Every few rounds the server trains a link predictor on its graph with some edges removed, and
    adds the highest-scored items to each partial sharer. Predicted edges are used in propagation,
    never as positives of the BPR. A sharer's device gets its view z and adds
    user_pull (1 - cos(u, z)) to its loss. With `mend = 0` and `user_pull = 0` it is FedShare.

    DEPARTS the paper: mask ratio, number of edges, predictor and weights are ours (not in the text
    we could read). A partial sharer is a client that announces records the server does not have.
    """

    paper: ClassVar[str] = "Qu et al., WWW 2024 (a reading)"

    private_rate: float = 0.003
    """Rate of a user's own vector; the better of .003 and .01 on validation."""

    mend: float = 0.5
    """Edges added to a partial sharer, as a fraction of their loans: eta_m, baselines.md 2.2."""
    mend_most: int = 20
    """Maximum number of edges added; baselines.md 2.2."""
    mend_after: int = 10
    """Rounds before the first prediction, T_w."""
    mend_every: int = 10
    """Rounds between two predictions, T_m; a change of loans starts one at once."""
    mend_removed: float = 0.2
    """Fraction of edges removed to train the predictor, rho; every user keeps one."""
    mend_steps: int = 20
    """Adam steps of the predictor, each with a new set of removed edges. Ours."""
    mend_rate: float = 0.01
    """Its learning rate. Ours."""
    weighted_mend: bool = False
    """Weight predicted edges by their predicted probability instead of 1."""
    user_pull: float = 0.1
    """Weight of the distance between a sharer's vector and the server's view, lambda_u."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 1)", "mend_removed")
        must_lie(self, "[0, inf)", "mend")
        must_lie(self, "[1, inf)", "mend_every")
        if self.user_pull and not isinstance(self.model, LightGCN):
            raise ConfigError("CDCGNNFedR.user_pull needs LightGCN. Set user_pull = 0.")

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Take FedShare's step; drop edges predicted from an outdated graph."""
        state = replace(state, own=grown_rows(state.own, world, 0.04, clock))
        after = super().server_step(state, sums, world, clock)
        if "mended/of" in after.own and not self._fresh(after, world):
            after = replace(after, own={n: v for n, v in after.own.items() if n not in MENDED})
        return after

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Predict edges if due, then refine as FedShare does (Eq. 17-18)."""
        rounds = state.round - self.mend_after
        due = rounds >= 0 and (rounds % self.mend_every == 0 or not self._fresh(state, world))
        if self.mend and due:
            state = self.server_mend(state, world, clock)
        return super().server_refine(state, world, clock)

    def server_graph(self, state: ServerState, world: World) -> SharedGraph:
        """Return the shared graph, with predicted edges if they are up to date."""
        graph = graph_of(world)
        if not self.mend or not self._fresh(state, world) or not len(state.own["mended/user"]):
            return graph
        client, item, weight, _ = (state.own[name] for name in MENDED)
        kept, made = _KNOWN.get(world.shared, (None, None))
        if made is None or kept is not item or made.items != graph.items:
            more = (torch.searchsorted(graph.sharers, client), item, weight)
            made = MendedGraph(graph.user, graph.item, graph.sharers, graph.items, *more)
            _KNOWN[world.shared] = (item, made)
        return made

    def server_mend(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Predict the missing edges of partial sharers from the current loans."""
        graph = graph_of(world)
        user, item = self._predictor(state, graph, clock)
        user, item = graph.propagate(user, item, self.layers)
        partial = world.announced.keeps[graph.sharers].nonzero().squeeze(1)
        owner, what, score = self._likeliest(graph, user, item, partial)
        weight = torch.sigmoid(score) if self.weighted_mend else torch.ones_like(score)
        made = (graph.sharers[owner], what, weight, _stamp(graph))
        return replace(state, own={**state.own, **dict(zip(MENDED, made, strict=True))})

    def _predictor(
        self, state: ServerState, graph: SharedGraph, clock: Clock
    ) -> tuple[Tensor, Tensor]:
        """Train copies of the server's rows to predict removed edges, by BCE."""
        user, item = state.own["user"].index_select(0, graph.sharers), state.public["item"]
        tables, moments = {"user": user, "item": item}, dict[str, Tensor]()
        for step in range(self.mend_steps):
            now = clock.step(2 * NEGATIVES + step)
            rest, owner, positive = impair(graph, self.mend_removed, now)
            if not len(owner):
                break
            k = torch.arange(len(owner), device=owner.device)
            negative = draw_negatives(now, graph.cohort, owner, k).clamp(min=0)
            leaves = {n: v.detach().requires_grad_() for n, v in tables.items()}
            user, item = rest.propagate(leaves["user"], leaves["item"], self.layers)
            one = user.index_select(0, owner)
            pair = (item.index_select(0, other) for other in (positive, negative))
            near, far = (torch.linalg.vecdot(one, other) for other in pair)
            loss = (functional.softplus(-near) + functional.softplus(far)).mean()
            down = torch.autograd.grad(loss, list(leaves.values()))
            direction = {n: -g for n, g in zip(leaves, down, strict=True)}
            tables, moments = server_move(tables, moments, direction, "adam", self.mend_rate)
        return tables["user"], tables["item"]

    def _likeliest(
        self, graph: SharedGraph, user: Tensor, item: Tensor, partial: Tensor, block: int = 1024
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best non-edges of partial sharers: (index in sharers, item, score)."""
        count = jagged.counts(graph.user, graph.users)
        wanted = torch.round(self.mend * count).long().clamp(max=self.mend_most)
        first = jagged.starts(count)
        found = []
        for some in torch.split(partial, block):
            scores = user.index_select(0, some) @ item.T
            owner, place = jagged.take(first, count, some)
            scores[owner, graph.item[place]] = -torch.inf
            value, what = torch.topk(scores, min(self.mend_most, graph.items), dim=1)
            rank = torch.arange(value.shape[1], device=value.device)
            chosen = (rank < wanted[some].unsqueeze(1)) & (value > -torch.inf)
            owner = some.unsqueeze(1).expand_as(what)
            found.append((owner[chosen], what[chosen], value[chosen]))
        owner, what, score = (torch.cat(column) for column in zip(*found, strict=True))
        return owner, what, score

    def _fresh(self, state: ServerState, world: World) -> bool:
        """Return whether the edges were predicted from the current loans."""
        if "mended/of" not in state.own or not len(world.shared):
            return False
        return bool(torch.equal(state.own["mended/of"], _stamp(graph_of(world))))

    def server_mail(
        self, state: ServerState, world: World, ids: Tensor, clock: Clock
    ) -> Mail | None:
        if not self.user_pull or not len(world.shared):
            return None
        graph = self.server_graph(state, world)
        rows = grown_rows(state.own, world, 0.04, clock)["user"].index_select(0, graph.sharers)
        user, _ = graph.propagate(rows, state.public["item"], self.layers)
        to = ids[torch.isin(ids, graph.sharers)]
        return Mail(to, {"view": user[torch.searchsorted(graph.sharers, to)]})

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Return BPR, plus user_pull (1 - cos(u, z)) for clients with a view z. [C]"""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        if not self.user_pull or cohort.mail is None:
            return loss
        held = {name: rows.index_select(0, work.held) for name, rows in work.rows.items()}
        assert isinstance(self.model, LightGCN)  # checked in __post_init__
        user = self.model.infer(held, {**work.dense, **work.own}, cohort.train)["user"]
        far = 1 - functional.cosine_similarity(user, cohort.mail.values["view"])
        return loss + self.user_pull * torch.where(cohort.mail.values["has"], far, 0.0)

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        if self.user_pull and cohort.mail is not None and bool(cohort.mail.values["has"].any()):
            return super().client_sum(public, private, cohort, clock)
        plain = FedShare(**{f.name: getattr(self, f.name) for f in fields(FedShare)})
        return plain.client_sum(public, private, cohort, clock)


_KNOWN: weakref.WeakKeyDictionary[Records, tuple[Tensor, MendedGraph]]
_KNOWN = weakref.WeakKeyDictionary()


def impair(graph: SharedGraph, removed: float, clock: Clock) -> tuple[SharedGraph, Tensor, Tensor]:
    """Remove random edges; return the rest, and the removed edges as users and items."""
    who = graph.sharers[graph.user]
    order = jagged.shuffle(clock.bits("kept edge", who, graph.item), graph.user)
    gone = clock.uniform("impaired edges", who, graph.item) < removed
    gone[order[graph.lot.first]] = False
    rest = SharedGraph(graph.user[~gone], graph.item[~gone], graph.sharers, graph.items)
    return rest, graph.user[gone], graph.item[gone]


def _stamp(graph: SharedGraph) -> Tensor:
    """Return the sum of the hashes of all edges."""
    return Clock(0).bits("edges", graph.sharers[graph.user], graph.item).sum()
