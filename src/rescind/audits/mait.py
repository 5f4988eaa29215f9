"""The membership attack of the FedGCV paper (appendix A.2).

A threshold on the loss is fitted on the model *before* a client leaves; the rate is the fraction of
the leaving client's training nodes below it afterwards. The rate also falls when the model is
damaged on these nodes, so compare it with a retrained model: `Rate.gap`.

DEPARTS A.2 (Ma et al., arXiv 2605.02297): members are the training nodes of the remaining clients,
and the threshold has the best *balanced* accuracy. As written, the best threshold calls no node a
member, and the rate is 0 even before unlearning. Section 4.1 also mentions a gradient attack; A.2
defines only the loss attack.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.records import Records
from rescind.errors import DataError

NOISE = 0.5
"""Standard deviation of the feature noise that creates non-members (fedgcv.md section 3)."""
MARGIN = 0.5
"""Margin above the threshold in FedGCV's loss (section 4.1)."""


@dataclass(frozen=True)
class Losses:
    """Losses of all training nodes, with the true features and with noisy features."""

    client: Tensor
    member: Tensor
    other: Tensor

    def threshold(self, without: int) -> Tensor:
        """Fit the loss below which a node is called a member, without one client."""
        kept = self.client != without
        return best_threshold(self.member[kept], self.other[kept])


@dataclass(frozen=True)
class Rate:
    """The paper's rate for the unlearned and for a retrained model."""

    unlearnt: float
    retrained: float

    @property
    def gap(self) -> float:
        """Difference to the retrained model. Above 0: too little is forgotten; below: too much."""
        return self.unlearnt - self.retrained


def rate(before: Federation, after: Federation, retrained: Federation, client: int) -> Rate:
    cut = float(threshold(before, client))
    return Rate(*(fraction_below(before, model, client, cut) for model in (after, retrained)))


def fraction_below(before: Federation, model: Federation, client: int, cut: float) -> float:
    """Compute the fraction of a client's training nodes with a loss below a threshold."""
    mine = training_nodes(before, client)
    asked = before.with_(state=model.now.state)
    return float((asked.query(mine, "loss") < cut).double().mean())


def loss_auc(before: Federation, model: Federation, client: int) -> float:
    """Compute how often a training node of a client has a lower loss than a held-out node.

    Ties count half. At 0.5 nothing leaks; above, the model still knows the nodes; below, it was
    pushed away from them, which also reveals them.
    """
    held, asked = before.now.vault.holdings, before.with_(state=model.now.state)
    mine = held.records.client == client
    member, other = (
        asked.query(held.records[mine & part], "loss")
        for part in (held.split == TRAIN, held.split != TRAIN)
    )
    below = (other.unsqueeze(1) > member).double() + (other.unsqueeze(1) == member).double() / 2
    return float(below.mean())


def threshold(fed: Federation, without: int) -> Tensor:
    return losses(fed).threshold(without)


def losses(fed: Federation, clock: Clock | None = None) -> Losses:
    """Compute the losses for the threshold, client by client; noise is added to every feature."""
    if clock is None and _LAST and _LAST[0]() is fed.now:
        return cast(Losses, _LAST[1])
    found = _losses(fed, clock or Clock(fed.clock.seed))
    if clock is None:
        _LAST[:] = [weakref.ref(fed.now), found]
    return found


_LAST: list[Any] = []


def _losses(fed: Federation, clock: Clock) -> Losses:
    held = fed.now.vault.holdings
    if held.graph is None:
        raise DataError("this attack needs a graph, but these clients hold no graph.")
    client, member, other = [], [], []
    for one in held.available.nonzero().squeeze(1).tolist():
        asked = training_nodes(fed, one)
        mine = held.graph.keep(held.graph.owner == one)
        noisy_holdings = replace(held, graph=noisy(mine, clock))
        vault = replace(fed.now.vault, holdings=noisy_holdings)
        client.append(asked.client)
        member.append(fed.query(asked, "loss"))
        other.append(fed.with_(vault=vault).query(asked, "loss"))
    if not client:
        raise DataError("no client has a training node, so no threshold can be fitted.")
    return Losses(torch.cat(client), torch.cat(member), torch.cat(other))


def training_nodes(fed: Federation, client: int) -> Records:
    held = fed.now.vault.holdings
    return held.records[(held.split == TRAIN) & (held.records.client == client)]


def noisy(graph: Graph, clock: Clock) -> Graph:
    """Add N(0, NOISE^2) to every feature of every node."""
    nodes, columns = len(graph.index), torch.arange(graph.features, device=graph.index.device)
    dense = NOISE * clock.normal("mait noise", graph.index.unsqueeze(1), columns)
    dense = dense.to(graph.value.dtype)
    dense.index_put_((graph.node, graph.feature), graph.value, accumulate=True)
    at = torch.arange(nodes, device=columns.device).repeat_interleave(graph.features)
    return replace(graph, node=at, feature=columns.repeat(nodes), value=dense.reshape(-1))


def best_threshold(member: Tensor, other: Tensor) -> Tensor:
    """Find the threshold with the best balanced accuracy; the lowest of ties. []"""
    cuts = torch.unique(torch.cat([member, other]))
    cuts = torch.cat([cuts, cuts[-1:] + 1.0])  # also allow "all below"
    below = [torch.searchsorted(x.sort().values, cuts).double() / len(x) for x in (member, other)]
    return cuts[(below[0] - below[1]).argmax()]
