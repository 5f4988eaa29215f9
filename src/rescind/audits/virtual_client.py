"""Leakage of a virtual client: edges, node identity, and presence of the real client (LiRA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.audits.case import Case
from rescind.audits.ulira import Attack, Unlearn, attack, shadow_seed
from rescind.core.cohort import Graph
from rescind.core.federation import Federation


@dataclass(frozen=True)
class Leak:
    """Leakage measures: 0.5 and 1 / n mean no leak, 1 a complete leak."""

    edge_auc: float
    """How often a real edge gets a higher likelihood than a pair without an edge."""
    found_again: float
    """Fraction of nodes whose nearest synthetic features (by cosine) are their own."""


def leak(graph: Graph, likely: Tensor, features: Tensor) -> Leak:
    """Compare a virtual client with the real subgraph. likely: [n, n]    features: [n, F]"""
    nodes = len(graph.index)
    linked = torch.zeros(nodes, nodes, dtype=torch.bool)
    linked[graph.edge[0], graph.edge[1]] = True
    above = torch.triu(torch.ones_like(linked), 1)
    real = torch.zeros(nodes, graph.features, dtype=features.dtype)
    real[graph.node, graph.feature] = graph.value.to(features.dtype)
    near = (
        torch.nn.functional.normalize(real, dim=1)
        @ torch.nn.functional.normalize(features, dim=1).T
    )
    again = (near.argmax(1) == torch.arange(nodes)).double().mean()
    return Leak(auc(likely[linked & above], likely[~linked & above]), float(again))


def auc(high: Tensor, low: Tensor) -> float:
    """Compute how often a value of `high` is above a value of `low`; ties count half."""
    order = low.sort().values
    below = torch.searchsorted(order, high).double()
    tied = torch.searchsorted(order, high, right=True).double() - below
    return float((below + tied / 2).mean() / max(len(low), 1))


def client_trained(case: Case, number: int) -> Federation:
    """Train a shadow: even numbers with the client, odd numbers without."""
    world = case.before if number % 2 == 0 else case.before.apply(case.event)
    return world.fork(seed=shadow_seed(case, number)).restart().run(case.before.now.state.round)


def client_forgotten(
    case: Case, number: int, fed: Federation, unlearn: Unlearn | None, later: int = 0
) -> Federation:
    """Let an even shadow forget the client, and train an odd one for `later` more rounds."""
    if number % 2:
        return fed.run(later)
    return fed if unlearn is None else unlearn(fed, case.event)


def client_score(case: Case, fed: Federation) -> float:
    return float(case.before.with_(state=fed.now.state).query(case.forgotten).mean())


def presence(scores: Tensor, case: Case) -> Attack:
    """Attack: shadows with the client (even numbers) against those without. scores: [M]"""
    inside = (torch.arange(len(scores)) % 2 == 0).unsqueeze(1)
    person = torch.zeros(1, dtype=torch.int64)
    return attack(scores.double().unsqueeze(1), inside, person, case.clock)
