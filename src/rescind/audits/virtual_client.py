"""What a virtual client gives away of the client it stands for: edges, who is who, and whether
there was such a client at all (LiRA on clients instead of records)."""

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
    """.5 and 1 / n tell nothing; 1 tells all."""

    edge_auc: float
    """How often a real edge is given a higher likelihood than a pair that has none."""
    found_again: float
    """The share of nodes whose nearest synthetic features (by cosine) are their own."""


def leak(graph: Graph, likely: Tensor, features: Tensor) -> Leak:
    """Hold a stand-in against the subgraph it was made of. likely: [n, n]    features: [n, F]"""
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
    """How often one of the first is above one of the second; ties count half."""
    order = low.sort().values
    below = torch.searchsorted(order, high).double()
    tied = torch.searchsorted(order, high, right=True).double() - below
    return float((below + tied / 2).mean() / max(len(low), 1))


# -- was there such a client? ---------------------------------------------------------------------


def client_trained(case: Case, number: int) -> Federation:
    """A shadow: even ones learn with the client, odd ones never had it."""
    world = case.before if number % 2 == 0 else case.before.apply(case.event)
    return world.fork(seed=shadow_seed(case, number)).restart().run(case.before.now.state.round)


def client_forgotten(
    case: Case, number: int, fed: Federation, unlearn: Unlearn | None, later: int = 0
) -> Federation:
    """A shadow after even ones forgot the client, and odd ones went on for `later` rounds.

    As many as a repair has, so that what is told apart is the client and not the training.
    unlearn: None does nothing
    """
    if number % 2:
        return fed.run(later)
    return fed if unlearn is None else unlearn(fed, case.event)


def client_said(case: Case, fed: Federation) -> float:
    """The mean log-odds of the true class over the leaver's training nodes."""
    return float(case.before.with_(state=fed.now.state).query(case.forgotten).mean())


def presence(said: Tensor, case: Case) -> Attack:
    """How well shadows with the client are told from those without. said: [M], even: with it"""
    inside = (torch.arange(len(said)) % 2 == 0).unsqueeze(1)
    person = torch.zeros(1, dtype=torch.int64)
    return attack(said.double().unsqueeze(1), inside, person, case.clock)
