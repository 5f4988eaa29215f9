"""Sketch: a graph network on subgraphs, with one client leaving under the role "forget".

Training is FedAvg with client Adam whose moments outlive the round. To forget, the leaver's
ascent (NPO) is projected off whatever would hurt the others, on the server, from two sums
(fedgcv.md section 3). A hosted client sends its sum under the role "host".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from graphs import Dense
from rescind import Clock, Federation, Holdings, Host, InProcess, OneByOne, Records, Withdraw
from rescind.core import jagged as jag
from rescind.core.cohort import Cohort, Graph, Lot
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.optim import Step, server_move
from rescind.core.params import Params, add, dot, norm, times
from rescind.core.plan import Batch, Plan
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum
from rescind.core.world import Sizes, World
from rescind.models.lightgcn import uniform

# -- the sketch ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GCN(Model):
    """Two layers, ReLU, dropout on the hidden one (Kipf and Welling 2017)."""

    task: ClassVar[str] = "nodes"
    tables: ClassVar[tuple[str, ...]] = ()

    hidden: int = 64

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Glorot weights and zero biases of two layers."""
        widths = {"one": (sizes.features, self.hidden), "two": (self.hidden, sizes.classes)}
        out: dict[str, Tensor] = {}
        for name, (come, go) in widths.items():
            bound = math.sqrt(6 / (come + go))
            out[f"{name}/weight"] = uniform(name, torch.arange(come), go, bound, clock)
            out[f"{name}/bias"] = torch.zeros(go)
        return out

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Nothing stays on the device but what its optimiser remembers."""
        return {}

    def logits(self, own: Params, graph: Graph, keep: Tensor | float = 1.0) -> Tensor:
        """own: [C, ...], each client's weights    keep: factors on the hidden layer    -> [N, K]"""
        who = graph.owner
        first = own["one/weight"][who[graph.node], graph.feature] * graph.value.unsqueeze(1)
        near = self.spread(jag.segment_sum(first, graph.node, len(who)), graph)
        hidden = torch.relu(near + own["one/bias"][who]) * keep
        out = torch.einsum("nh,nhk->nk", hidden, own["two/weight"][who])
        return self.spread(out, graph) + own["two/bias"][who]

    def spread(self, value: Tensor, graph: Graph) -> Tensor:
        """D^-1/2 (A + I) D^-1/2 value"""
        come, go = graph.edge
        degree = 1 + jag.counts(go, len(graph.owner)).to(value.dtype).unsqueeze(1)
        each = value[come] * torch.rsqrt(degree[come] * degree[go])
        return value / degree + jag.segment_sum(each, go, len(graph.owner))


@dataclass(frozen=True, kw_only=True)
class GraphAveraging(Method):
    """FedAvg on subgraphs, weighted by nodes; client Adam with decay, its moments kept."""

    tasks: ClassVar[tuple[str, ...]] = ("nodes",)

    model: GCN = GCN()
    epochs: int = 3
    optimiser: Literal["sgd", "adam"] = "adam"
    keep_moments: bool = True
    rate: float = 0.01
    decay: float = 5e-4
    dropout: float = 0.5

    def client_weight(self, cohort: Cohort) -> Tensor:
        """The number of nodes."""
        return jag.counts(cohort.graph.owner, len(cohort)).float()

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """Everything but the reference moves."""
        names = [name for name in public if not name.startswith("reference/")]
        return (Step(dict.fromkeys(names, self.rate), self.optimiser, self.decay),)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """All training nodes in one batch."""
        node = cohort.graph.find(cohort.train.item)
        return Plan.of(cohort.train.owner, len(cohort), None, None, {}, {"node": node})

    def client_loss(self, work, batch, public, private, cohort, clock) -> Tensor:
        """The mean cross-entropy of each client's nodes, with dropout."""
        each = self.entropy(work.dense, batch, cohort, clock)
        return jag.segment_mean(each, batch.owner, batch.clients)

    def entropy(self, own: Params, batch: Batch, cohort: Cohort, clock: Clock | None) -> Tensor:
        """Cross-entropy of each sample; without a clock, without dropout. [n]"""
        graph, node, keep = cohort.graph, batch.values["node"], 1.0
        if clock is not None and self.dropout:
            k = torch.arange(self.model.hidden, device=node.device)
            drawn = clock.uniform("dropout", graph.index.unsqueeze(1), k) >= self.dropout
            keep = drawn.to(own["one/weight"].dtype) / (1 - self.dropout)
        logits = self.model.logits(own, graph, keep)
        return functional.cross_entropy(logits[node], graph.label[node], reduction="none")

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Logits of every node. [N, K]"""
        return self.model.logits(each_the_same(public, len(cohort)), cohort.graph)


@dataclass(frozen=True, kw_only=True)
class Correction(GraphAveraging):
    """One step a round: the leaver's ascent, less what conflicts with the others' descent."""

    epochs: int = 1
    optimiser: Literal["sgd", "adam"] = "sgd"
    keep_moments: bool = False
    rate: float = 1.0
    decay: float = 0.0
    dropout: float = 0.3
    server_rate: float = 0.02
    sharpness: float = 1.0
    """Beta of NPO; the paper's 5 is unstable."""
    radius: float = 10.0
    """Tau: how far the model may go from where forgetting began."""

    def client_loss(self, work, batch, public, private, cohort, clock) -> Tensor:
        """The leaver: -(2 / beta) log sigma(beta (CE - reference)). The others: CE."""
        if cohort.role != "forget":
            return super().client_loss(work, batch, public, private, cohort, clock)
        before = each_the_same(reference(public), len(cohort))
        far = self.entropy(work.dense, batch, cohort, clock)
        far = far - self.entropy(before, batch, cohort, None)
        each = -2 / self.sharpness * functional.logsigmoid(self.sharpness * far)
        return jag.segment_mean(each, batch.owner, batch.clients)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Project sums["forget"] off sums["keep"] where they conflict; Adam; stay in the ball."""
        step, others = sums["forget"].mean(), sums["keep"].mean()
        against = dot(step, others)
        if against < 0:
            step = add(step, others, -against / dot(others, others))
        public, own = server_move(state.public, state.own, step, "adam", self.server_rate)
        origin = reference(state.public)
        gone = add({name: public[name] for name in origin}, origin, -1.0)
        inside = times(gone, min(1.0, self.radius / max(norm(gone), 1e-12)))
        return state.next({**public, **add(origin, inside)}, own)


def reference(public: Params) -> dict[str, Tensor]:
    """The model as it was when forgetting began."""
    start = "reference/"
    return {n[len(start) :]: v for n, v in public.items() if n.startswith(start)}


def each_the_same(params: Params, many: int) -> dict[str, Tensor]:
    """A view of the same weights for every client. [C, ...]"""
    return {name: value.expand(many, *value.shape) for name, value in params.items()}


# -- its tests -----------------------------------------------------------------------------------

TRAIN = GraphAveraging(model=GCN(hidden=5), epochs=2)
NAMES = ("one/weight", "one/bias", "two/weight", "two/bias")
FEATURES, CLASSES = 4, 3
NODES = {0: (0, 4), 1: (4, 9), 2: (9, 12)}  # client: first node, one past its last
RINGS = [(i, i + 1) for lo, hi in NODES.values() for i in range(lo, hi - 1)] + [(4, 6), (9, 11)]


def build(spans: dict[int, tuple[int, int]], links: list[tuple[int, int]]) -> Holdings:
    """Subgraphs with a few binary features; each third node is held out for testing."""
    owner = [c for c, (lo, hi) in spans.items() for _ in range(lo, hi)]
    index = [i for lo, hi in spans.values() for i in range(lo, hi)]
    place = {i: p for p, i in enumerate(index)}
    edge = [(place[a], place[b]) for a, b in links] + [(place[b], place[a]) for a, b in links]
    entry = [(place[i], f) for i in index for f in range(FEATURES) if (i * i + 3 * f) % 5 < 2]
    graph = Graph(
        owner=torch.tensor(owner),
        index=torch.tensor(index),
        edge=torch.tensor(edge).T,
        node=torch.tensor([n for n, _ in entry]),
        feature=torch.tensor([f for _, f in entry]),
        value=torch.ones(len(entry), dtype=torch.float64),
        label=torch.tensor([(i * 7) % CLASSES for i in index]),
        features=FEATURES,
        classes=CLASSES,
    )
    split = torch.tensor([2 if i % 3 == 2 else 0 for i in index], dtype=torch.int8)
    sizes = max(spans) + 1, max(index) + 1
    return Holdings.of(Records.of(owner, index), split, *sizes, task="nodes", graph=graph)


def start(method: Method, executor: InProcess | None = None) -> Federation:
    fed = Federation.start(build(NODES, RINGS), method, seed=5, executor=executor)
    return with_public(fed, {n: v.double() for n, v in fed.now.state.public.items()})


def with_public(fed: Federation, public: Params) -> Federation:
    return replace(fed, now=replace(fed.now, state=replace(fed.now.state, public=public)))


def copies(public: Params) -> dict[str, Tensor]:
    return {name: public[name].clone().requires_grad_() for name in NAMES}


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_kept_moments_equal_one_torch_adam_per_client_over_the_rounds(executor) -> None:
    method = replace(TRAIN, clients_per_round=2)  # so that clients count different steps
    fed = start(method, executor)
    held = fed.now.vault.holdings
    weights = {c: copies(fed.now.state.public) for c in NODES}
    adams = {
        c: torch.optim.Adam(w.values(), lr=0.01, weight_decay=5e-4) for c, w in weights.items()
    }
    public = {name: fed.now.state.public[name].clone() for name in NAMES}
    seen = []
    for round_ in (1, 2, 3, 4):
        clock = fed.clock.at(round_)
        ids = method.server_sample(fed.now.state, fed.world, clock).tolist()
        seen += ids
        for c in ids:
            for name in NAMES:
                weights[c][name].data.copy_(public[name])
            for epoch in range(2):
                adams[c].zero_grad()
                Dense.of(held, c).entropy(
                    weights[c], 0.5, clock.step(epoch).batch(0)
                ).mean().backward()
                adams[c].step()
        sizes = {c: NODES[c][1] - NODES[c][0] for c in ids}
        for name in NAMES:
            total = sum(sizes[c] * weights[c][name].detach() for c in ids)
            public[name] = total / sum(sizes.values())
    after = fed.run(4).now
    assert_close(dict(after.state.public), public, atol=1e-10, rtol=0.0)
    assert len({seen.count(c) for c in NODES}) > 1
    steps = after.vault.private["adam/steps/one/weight"].flatten().tolist()
    assert steps == [2.0 * seen.count(c) for c in NODES]


def forgetting(fed: Federation, radius: float = 10.0) -> tuple[Federation, Correction]:
    """The same federation with its model broadcast as the reference too."""
    public = fed.now.state.public
    held = {f"reference/{name}": value for name, value in public.items()}
    fed = with_public(fed, {**public, **held})
    return fed, Correction(model=TRAIN.model, radius=radius)


ROLES = {0: "keep", 1: "keep", 2: "forget"}


def test_the_leavers_ascent_is_projected_off_the_others_descent() -> None:
    fed, method = forgetting(start(TRAIN).run(20))
    first = fed.now.state.public
    held, weights = fed.now.vault.holdings, copies(fed.now.state.public)
    adam = torch.optim.Adam(weights.values(), lr=0.02)
    conflicts = []
    for round_ in (21, 22, 23):
        clock = fed.clock.at(round_).step(0).batch(0)
        before = Dense.of(held, 2).entropy({n: first[n] for n in NAMES})
        far = Dense.of(held, 2).entropy(weights, 0.3, clock) - before
        leave = torch.autograd.grad((2 * functional.softplus(-far)).mean(), weights.values())
        stay = [
            torch.autograd.grad(
                Dense.of(held, c).entropy(weights, 0.3, clock).mean(), weights.values()
            )
            for c in (0, 1)
        ]
        stay = [(4 * a + 5 * b) / 9 for a, b in zip(*stay, strict=True)]  # 4 and 5 nodes
        against = sum(float((a * b).sum()) for a, b in zip(leave, stay, strict=True))
        conflicts.append(against < 0)
        if against < 0:
            size = sum(float((b * b).sum()) for b in stay)
            leave = [a - against / size * b for a, b in zip(leave, stay, strict=True)]
        for weight, grad in zip(weights.values(), leave, strict=True):
            weight.grad = grad.clone()
        adam.step()
    after = fed.run(3, method=method, roles=ROLES).now.state.public
    assert any(conflicts)
    assert_close(
        {n: after[n] for n in NAMES}, {n: w.detach() for n, w in weights.items()}, atol=1e-9, rtol=0
    )
    for name in NAMES:
        assert torch.equal(after[f"reference/{name}"], first[name])


def test_the_model_stays_in_the_ball_and_nobody_sends_the_reference() -> None:
    fed, method = forgetting(start(TRAIN).run(5), radius=0.1)
    names = []
    after = fed.run(
        4, method=method, roles=ROLES, watch=[lambda moment: names.append(moment.sums)]
    ).now.state.public
    gone = add({n: after[n] for n in NAMES}, fed.now.state.public, -1.0)
    assert norm({n: gone[n] for n in NAMES}) == pytest.approx(0.1, rel=1e-9)
    for sums in names:
        assert sorted(sums) == ["forget", "keep"]
        assert (sums["forget"].clients, sums["keep"].clients) == (1, 2)
        assert (sums["forget"].weight, sums["keep"].weight) == (3.0, 9.0)
        assert all(set(total.totals) == set(NAMES) for total in sums.values())


def test_after_withdrawal_nothing_of_the_leaver_is_on_any_device() -> None:
    fed = start(TRAIN).run(2)
    assert float(fed.now.vault.private["adam/second/one/weight"][2].abs().sum()) > 0
    after = fed.apply(Withdraw(2))
    graph = after.now.vault.holdings.graph
    assert graph.owner.tolist() == [0] * 4 + [1] * 5
    assert graph.index.tolist() == list(range(9))
    assert len(graph.edge[0]) == 2 * len([link for link in RINGS if link[0] < 9])
    for name, value in after.now.vault.private.items():
        assert float(value[2].abs().sum()) == 0, name
    assert after.world.available.tolist() == [True, True, False]
    never = start(TRAIN).apply(Withdraw(2)).run(3).now.state.public
    alone = Federation.start(build({0: (0, 4), 1: (4, 9)}, [*RINGS[:7], (4, 6)]), TRAIN, seed=5)
    alone = with_public(alone, {n: v.double() for n, v in alone.now.state.public.items()})
    assert_close(never, alone.run(3).now.state.public)


def test_a_hosted_client_trains_beside_the_server_and_its_sum_comes_as_host() -> None:
    hosted = build({3: (0, 6)}, [(0, 1), (1, 2), (2, 3), (3, 5)])
    fed = start(TRAIN).apply(Host(3, hosted))
    seen = []
    after = fed.run(1, watch=[lambda moment: seen.append(moment.sums)])
    assert sorted(seen[0]) == ["host", "train"]
    assert (seen[0]["host"].clients, seen[0]["host"].weight) == (1, 6.0)
    weights, clock = copies(fed.now.state.public), fed.clock.at(1)
    adam = torch.optim.Adam(weights.values(), lr=0.01, weight_decay=5e-4)
    for epoch in range(2):
        adam.zero_grad()
        Dense.of(hosted, 3).entropy(weights, 0.5, clock.step(epoch).batch(0)).mean().backward()
        adam.step()
    for name in NAMES:
        delta = weights[name].detach() - fed.now.state.public[name]
        assert_close(seen[0]["host"].totals[name], 6 * delta, atol=1e-10, rtol=0.0)
        others = seen[0]["train"].totals[name]
        mean = fed.now.state.public[name] + (others + 6 * delta) / 18
        assert_close(after.now.state.public[name], mean, atol=1e-10, rtol=0.0)
    assert float(after.run(1).now.hosted[0].private["adam/steps/one/bias"][3].sum()) == 4.0


@dataclass(frozen=True)
class Accuracy:
    """The share of held-out nodes whose class is right."""

    split: str = "test"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """How many are right, and how many there are."""
        node = cohort.graph.find(cohort.held.item)
        right = scores[node].argmax(1) == cohort.graph.label[node]
        return {"right": right.sum()}, len(node)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """The share."""
        return {"accuracy": float(totals["right"]) / weight}


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_held_out_nodes_are_measured_where_they_are(executor) -> None:
    fed = start(TRAIN, executor).run(10)
    right = total = 0
    for client in NODES:
        dense, w = Dense.of(fed.now.vault.holdings, client), fed.now.state.public
        hidden = torch.relu(dense.near @ dense.features @ w["one/weight"] + w["one/bias"])
        best = (dense.near @ hidden @ w["two/weight"] + w["two/bias"]).argmax(1)
        right += int((best == dense.label)[~dense.train].sum())
        total += int((~dense.train).sum())
    assert fed.evaluate(metric=Accuracy()) == {"accuracy": right / total}
