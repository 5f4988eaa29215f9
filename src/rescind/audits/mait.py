"""The membership attack of the FedGCV paper (its appendix A.2), and what it is worth.

A threshold on the loss is fitted on the model *before* a client leaves; the rate is the share of
the leaver's training nodes below it afterwards. The rate falls when the model is ruined on the
leaver's nodes, so it means nothing but beside the rate of a retraining: `Rate.gap`.

DEPARTS A.2 (Ma et al., arXiv 2605.02297): members are the training nodes of the clients that stay,
the threshold has the best *balanced* accuracy. To the letter (the leaver's few nodes against many
others, plain accuracy) "nobody is a member" wins, and the rate is 0 before anything is forgotten.
Section 4.1 speaks of a gradient track too; A.2 defines the loss only, and so does this.
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
"""Standard deviation of the noise on features that makes non-members (fedgcv.md section 3)."""
MARGIN = 0.5
"""How far above the threshold FedGCV's margin pushes (section 4.1)."""


@dataclass(frozen=True)
class Losses:
    """Of every training node: its loss as it is, and with noise on its client's features."""

    client: Tensor
    member: Tensor
    other: Tensor

    def threshold(self, without: int) -> Tensor:
        """The loss below which a node is called a member, fitted on everybody but one client."""
        kept = self.client != without
        return best_threshold(self.member[kept], self.other[kept])


@dataclass(frozen=True)
class Rate:
    """The paper's rate of an unlearnt model, beside that of a retrained one."""

    unlearnt: float
    retrained: float

    @property
    def gap(self) -> float:
        """Above 0: more is remembered than a retraining does; below: it is over-forgotten."""
        return self.unlearnt - self.retrained


def rate(before: Federation, after: Federation, retrained: Federation, client: int) -> Rate:
    """The attack on a client that left, always with its reference."""
    cut = float(threshold(before, client))
    return Rate(*(share_below(before, model, client, cut) for model in (after, retrained)))


def share_below(before: Federation, model: Federation, client: int, cut: float) -> float:
    """The share of a client's training nodes whose loss under a model is below a threshold."""
    mine = training_nodes(before, client)
    asked = before.with_(state=model.now.state)
    return float((asked.query(mine, "loss") < cut).double().mean())


def loss_auc(before: Federation, model: Federation, client: int) -> float:
    """How often a training node of a client has a lower loss than a held-out one, ties half.

    One half tells nothing; above, the model still knows the nodes; below, it was driven off them,
    which gives them away as well.
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
    """The threshold of the model as it is, from the clients that stay. []"""
    return losses(fed).threshold(without)


def losses(fed: Federation, clock: Clock | None = None) -> Losses:
    """What the threshold is fitted on, client by client: noise fills every feature.

    That of the model asked about last is kept: leavers are held against one model, one by one.
    """
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
        raise DataError("this attack is on nodes of a graph; these clients hold none.")
    client, member, other = [], [], []
    for one in held.available.nonzero().squeeze(1).tolist():
        asked = training_nodes(fed, one)
        mine = held.graph.keep(held.graph.owner == one)
        loud = replace(held, graph=noisy(mine, clock))
        vault = replace(fed.now.vault, holdings=loud)
        client.append(asked.client)
        member.append(fed.query(asked, "loss"))
        other.append(fed.with_(vault=vault).query(asked, "loss"))
    if not client:
        raise DataError("nobody has a training node, so no threshold can be fitted.")
    return Losses(torch.cat(client), torch.cat(member), torch.cat(other))


def training_nodes(fed: Federation, client: int) -> Records:
    """What a client trains on."""
    held = fed.now.vault.holdings
    return held.records[(held.split == TRAIN) & (held.records.client == client)]


def noisy(graph: Graph, clock: Clock) -> Graph:
    """The same graph with N(0, NOISE^2) added to every feature of every node."""
    nodes, columns = len(graph.index), torch.arange(graph.features, device=graph.index.device)
    dense = NOISE * clock.normal("mait noise", graph.index.unsqueeze(1), columns)
    dense = dense.to(graph.value.dtype)
    dense.index_put_((graph.node, graph.feature), graph.value, accumulate=True)
    at = torch.arange(nodes, device=columns.device).repeat_interleave(graph.features)
    return replace(graph, node=at, feature=columns.repeat(nodes), value=dense.reshape(-1))


def best_threshold(member: Tensor, other: Tensor) -> Tensor:
    """The cut with the best (members below + others not below) / 2; the lowest of equals. []"""
    cuts = torch.unique(torch.cat([member, other]))
    cuts = torch.cat([cuts, cuts[-1:] + 1.0])  # everybody below is an answer, too
    below = [torch.searchsorted(x.sort().values, cuts).double() / len(x) for x in (member, other)]
    return cuts[(below[0] - below[1]).argmax()]
